"""An auxiliary peer audits servers by a program of its own: what that finds right is credited, and nothing else is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from swarm_of_processes import tiny_run

from pipelines.features.publishing.auxiliary.serving_audits import ServingAuditOptions, read_prompts, read_report

PROGRAM = """
import json, sys, time
from pathlib import Path
from hub_tools.endpoint import prepare_hub_client
prepare_hub_client()
from pipelines.features.publishing.auxiliary.serving_audits import ServingAudits, ServingAuditOptions

folder, repository = Path(sys.argv[1]), sys.argv[2]
audit = "import pathlib, sys; pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).write_text(REPORT)"
reports = [
    json.dumps(dict(servers=[dict(username="ann", num_right=20), dict(username="bob", num_right=4)])),
    json.dumps(dict(servers=[dict(username="ann", num_right=5)])),
    "no JSON",
]
fail = "raise SystemExit('dalle-collab: nobody draws')"
options = ServingAuditOptions(prompts=folder / "prompts.txt", interval_seconds=3600.0)
for number, text in enumerate([audit.replace("REPORT", repr(report)) for report in reports] + [fail]):
    with ServingAudits(repository, options, folder / str(number), program=[sys.executable, "-c", text]) as audits:
        right = audits.look()
        while audits.is_busy:
            right = audits.look() or right
            time.sleep(0.05)
        print(json.dumps(right))
"""


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n a red star \n\na green circle\n", encoding="utf-8")
    return path


def test_what_audits_find_right_is_added_to_the_runs_repository(hub, prompts, tmp_path):
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.create_repo("org/audited-run")
    text = tiny_run(run_id="audited").to_json().encode()
    api.upload_file(repo_id="org/audited-run", path_in_repo="training_run.json", path_or_fileobj=text)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "org/audited-run"],
        env={**os.environ, **hub.environment(hub.alice_token), "PYTHONPATH": str(Path(__file__).parents[5])},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [dict(ann=20, bob=4), dict(ann=5), None, None]
    assert "The audit's report cannot be read" in done.stderr and "dalle-collab: nobody draws" in done.stderr
    (name,) = [name for name in api.list_repo_files("org/audited-run") if "served-" in name]
    assert name.startswith("metrics/served-2") and len(api.list_repo_commits("org/audited-run")) == 4
    from pipelines.features.publishing.metrics.credit.served import read_served

    path = api.hf_hub_download("org/audited-run", name, cache_dir=tmp_path / "cache")
    totals = {}
    for (_, user), number in read_served(Path(path)).items():
        totals[user] = totals.get(user, 0) + number
    assert totals == dict(ann=25, bob=4)


def test_prompts_are_the_lines_of_a_file(prompts, tmp_path):
    assert read_prompts(prompts) == ["a red star", "a green circle"]
    prompts.write_text("\n \n")
    with pytest.raises(ValueError, match="has no prompts; expected one in each line"):
        ServingAuditOptions(prompts=prompts)
    prompts.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="cannot be read"):
        read_prompts(prompts)
    with pytest.raises(ValueError, match="cannot be read"):
        read_prompts(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"servers": [1]}', '{"servers": [{"username": "a"}]}', "x" * 2**21])
def test_what_is_no_report_credits_nobody(text, tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no report of an audit|expected at most"):
        read_report(path)
