"""The dashboard goes on, and says why, when the Hub or the swarm is away, unknown, empty or damaged."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from recorded_run import publish_recorded_run, recorded_history
from support_files import SUPPORT
from swarm_of_processes import tiny_run

from hub_tools.local_hub import LocalHub
from pipelines.features.publishing.metrics.history import write_history

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:It seems that you are about to commit a data file")]

PROGRAM = SUPPORT / "failing_sources.py"
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
SPARSE = dict(synchronisation="sparse", local_steps=4, outer_momentum=0.0, aggregation_rule="mean")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the readers say, in a process whose Hub this test stops and starts again."""
    folder = tmp_path_factory.mktemp("sources")
    with LocalHub(folder / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.create_user("alice"))
        run = tiny_run(num_epochs=5000, entry_addresses=(NOBODY,))
        publish_recorded_run(api, "alice/run", run, num_epochs=1500, num_users=3, end=time.time(), checkpoints=[100])
        api.create_repo("alice/empty")
        fresh = run.replace(entry_addresses=())
        over_hub = fresh.replace(wire="hub", bucket="alice/hub.rounds", **SPARSE)
        for name, settings in (("alice/fresh", fresh), ("alice/hub", over_hub)):
            api.create_repo(name)
            text = settings.to_json().encode()
            api.upload_file(repo_id=name, path_in_repo="training_run.json", path_or_fileobj=text)
        environment = {**os.environ, **hub.environment()}
        process = subprocess.Popen(
            [sys.executable, PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def ask(question):
            print(question, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, f"no answer to {question}"
            return json.loads(answer)

        ask.hub, ask.api, ask.run = hub, api, run
        yield ask
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_an_unknown_run_and_an_empty_repository_are_explained(answers):
    assert "There is no model repository alice/nothing on this Hub" in answers("look alice/nothing")["problem"]
    assert "alice/empty has no training_run.json" in answers("look alice/empty")["problem"]


def test_a_run_that_has_not_started_shows_empty_parts(answers):
    answer = answers("page alice/fresh")
    assert answer["problem"] == "" and answer["epoch"] == 0
    for sentence in ("Nothing to show yet", "Nobody trains now", "Nobody has contributed", "No checkpoint"):
        assert sentence in answer["html"]


def test_a_new_commit_is_read_and_what_has_not_changed_is_not_downloaded_again(answers, tmp_path):
    first = answers("look alice/run")
    assert (first["problem"], first["epoch"], first["checkpoints"]) == ("", 1500, [100])
    again = answers("look alice/run")
    assert again["downloaded"] == first["downloaded"] and again["read_at"] >= first["read_at"]
    (shard,) = write_history(recorded_history(2000, time.time()), tmp_path, from_epoch=1001)
    answers.api.upload_file(repo_id="alice/run", path_in_repo=f"metrics/{shard.name}", path_or_fileobj=str(shard))
    later = answers("look alice/run")
    assert later["epoch"] == 2000
    new = [file for file in later["downloaded"] if file not in first["downloaded"]]
    assert [name for name, *_ in new] == ["epochs-00001.parquet"]


def test_a_hub_that_goes_away_leaves_what_is_known_and_comes_back(answers):
    answers("look alice/run")
    answers.hub.stop()
    away = answers("look alice/run")
    assert "Cannot reach the Hub" in away["problem"] or "does not answer" in away["problem"]
    assert away["epoch"] == 2000
    answers.hub.start()
    assert answers("look alice/run")["problem"] == ""


def test_a_swarm_in_which_nobody_answers_is_explained(answers):
    assert "No entry address of alice/run answers (1 tried: " in answers("swarm alice/run")["problem"]
    assert "has no entry address yet" in answers("swarm alice/fresh")["problem"]
    assert answers("swarm alice/hub")["problem"] == "", "its rounds have not begun, which is no fault of the Hub"


def test_a_run_that_is_over_misses_nobody(answers):
    over = answers.run.replace(num_epochs=100)
    publish_recorded_run(answers.api, "alice/over", over, num_epochs=100, num_users=2, end=time.time(), checkpoints=[])
    html = answers("page alice/over")["html"]
    assert "The run is over: all 100 epochs are trained" in html and "<b>Swarm</b>" not in html
    assert "<b>Swarm</b>" in answers("page alice/run")["html"], "it is not over, and nobody has looked yet"


def test_another_runs_curve_is_what_anybody_may_read_and_what_is_none_is_explained(answers):
    assert answers("compare alice/run") == dict(problem="", epoch=1500)
    assert "alice/nothing" in answers("compare alice/nothing")["problem"]
    for name, text in (("alice/odd", "[1]"), ("alice/long", json.dumps(dict(history=dict(epoch=list(range(10**5))))))):
        answers.api.create_repo(name)
        path = "metrics/summary.json"
        answers.api.upload_file(repo_id=name, path_in_repo=path, path_or_fileobj=text.encode())
        assert answers(f"compare {name}")["problem"] == "Its summary has no history that can be read."
    answers.api.create_repo("alice/secret", private=True)
    answers.api.upload_file(
        repo_id="alice/secret", path_in_repo="metrics/summary.json", path_or_fileobj=summary_of(answers).encode()
    )
    assert "alice/secret" in answers("compare alice/secret")["problem"], "whatever the page's own token may read"


def summary_of(answers):
    return Path(answers.api.hf_hub_download("alice/run", "metrics/summary.json")).read_text()


def test_the_joining_page_reads_one_run_at_a_time_and_shows_the_one_that_was_asked_for_last(answers):
    told = answers("learn alice/run")
    assert told["most"] == 1 and (told["repository"], told["costs"]) == (
        "alice/run",
        ["memory", "network", "processor"],
    )
    assert answers("learn alice/nothing")["state"] == "unreachable"
