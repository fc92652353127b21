"""Durations go by a clock that nobody sets: what waits for a time of the other waits for hours once that is moved."""

import re

from support_files import ROOT

DURATION = re.compile(r"time\.time\(\) *[-+<>]|[-+<>]=? *time\.time\(\)")
AGES_OF_WHAT_HAS_A_DATE = {
    "pipelines/features/hub_rounds/files.py": "the Hub's time, until the Hub has told it",
    "pipelines/tools/chaos/chaos_processes.py": "an event that another process has dated",
    "pipelines/tools/pages/dashboard/dashboard.py": "a snapshot that another process has dated",
    "pipelines/tools/pages/dashboard/swarm/rounds_watch.py": "a list that another machine has dated",
    "pipelines/features/publishing/repository/run_bucket.py": "a file",
}


def test_no_duration_is_measured_by_the_clock_that_people_set():
    found = {
        str(path.relative_to(ROOT))
        for folder in ("pipelines", "hub_tools", "modeling_dalle_collab")
        for path in (ROOT / folder).rglob("*.py")
        if DURATION.search(path.read_text(encoding="utf-8"))
    }
    assert found == AGES_OF_WHAT_HAS_A_DATE.keys()
