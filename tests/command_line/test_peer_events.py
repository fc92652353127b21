"""Events for programs: a line each, and a disk that is full costs lines, never the peer."""

import json
import resource
from dataclasses import dataclass

from pipelines.command_line.terminal.peer_events import SECONDS_BETWEEN_EQUAL_REPORTS, EventFile


@dataclass(frozen=True)
class Report:
    epoch: int


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip() and line.endswith("}")]


def test_equal_reports_are_written_now_and_then(tmp_path):
    now = [0.0]
    events = EventFile(tmp_path / "events", clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        events.write_report(Report(epoch=second // 12))
    assert [line["epoch"] for line in lines(tmp_path / "events")] == [0, 0, 1, 1, 2]
    assert SECONDS_BETWEEN_EQUAL_REPORTS == 10.0


def test_a_full_disk_costs_lines_and_the_next_ones_are_whole(tmp_path, caplog):
    events = EventFile(tmp_path / "events")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    events.happened("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (80, before[1]))
    try:
        for _ in range(3):
            events.happened("lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    events.happened("last")
    assert [line["event"] for line in lines(tmp_path / "events")] in (["first", "last"], ["first", "lost", "last"])
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
    assert json.loads((tmp_path / "events").read_text().splitlines()[-1])["event"] == "last"


def test_without_a_path_nothing_is_written():
    EventFile(None).happened("nothing")
