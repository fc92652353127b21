"""What a volunteer sees of a swarm in which things go wrong: lines, with names of people, and nothing of libraries."""

import contextlib
import json
import re
import time

import pytest
from published_runs import LOOPBACK, interrupt, kill_family, started_command

NOT_FOR_PEOPLE = re.compile(
    r"Traceback|never retrieved|already awaited|never awaited|was destroyed|Exception ignored|\w+Warning:|^  File ",
    re.M,
)


def wait_for_step(path, process, log, **expected):
    """Wait until a trainer has ended an epoch in which its report said this."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines()[:-1] if path.exists() else []
        steps = [step for step in map(json.loads, lines) if step["event"] == "step"]
        if any(step.items() >= expected.items() for step in steps[-2:]):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"no {expected} within the time: {log.read_text()}")


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_the_log_of_a_peer_beside_one_that_is_killed_is_lines_for_people(training_material, tmp_path):
    hub, repository = training_material.hub, training_material.create_run("org/logged-run", run_id="logged")
    bob = hub.create_user("bob")
    more = ("--host", LOOPBACK, "--micro-batch-size", "8", "--shuffle-buffer", "64")
    logs = {name: tmp_path / name for name in ("assist", "alice", "bob")}
    events = {name: tmp_path / f"{name}.jsonl" for name in logs}
    with contextlib.ExitStack() as stack:

        def start(name, *arguments, **options):
            told = ("--events", str(events[name]))
            return stack.enter_context(started_command(hub, logs[name], *arguments, *told, **options))

        auxiliary = start("assist", "run", "assist", repository, "--host", LOOPBACK)
        while not events["assist"].exists():
            assert auxiliary.poll() is None, logs["assist"].read_text()
            time.sleep(0.1)
        alice = start("alice", "join", repository, *more)
        killed = start("bob", "join", repository, *more, token=bob)
        wait_for_step(events["alice"], alice, logs["alice"], num_peers=2, share_averaged=1.0)
        kill_family(killed.pid)
        wait_for_step(events["alice"], alice, logs["alice"], num_peers=1)
        assert {interrupt(alice), interrupt(auxiliary)} <= {0, 130}
    for log in logs.values():
        text = log.read_text()
        assert "Joined" in text or log == logs["assist"]
        assert NOT_FOR_PEOPLE.search(text) is None, text
