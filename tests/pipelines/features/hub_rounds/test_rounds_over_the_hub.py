"""Real peers whose only wire is the embedded Hub: equal bits, whoever comes late, and nothing of hivemind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial

import pytest
from assistants import assistant
from lonely_links import lonely_links
from published_runs import command_environment, killed_with_family, started_command
from running_programs import end_of, wait_for
from support_files import SUPPORT

from hub_tools.processes.child_process import ChildProcess
from hub_tools.processes.event_files import read_events
from pipelines.core.signing.signed_statement import read_statement
from pipelines.features.hub_rounds.statements import RoundList
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

NUM_ROUNDS = 8
HUB_SETTINGS = dict(
    wire="hub", window_seconds=6, num_epochs=NUM_ROUNDS, num_warmup_epochs=1, local_steps=4, inner_batch_size=8,
    target_batch_size=24, inner_optimizer="adamw", peak_learning_rate=4e-3, bucket_interval_epochs=2,
    checkpoint_interval_epochs=3, who_may_contribute="everybody",
)  # fmt: skip
SECONDS = 240


@pytest.fixture(scope="module")
def volunteers(hub):
    """Return the tokens of people who may create buckets in the organisation, and nothing else; xenia is a stranger."""
    tokens = {}
    for name in ("vera", "wanda", "xenia"):
        hub.create_user(name)
        if name != "xenia":
            hub.add_member("org", name, "contributor")
        tokens[name] = hub.create_token(name, role="contributor", name="volunteer")
    return tokens


def any_event(events, name):
    return next((event for event in read_events(events) if event.get("event") == name), None)


def lists_of(material, run):
    """Return the lists of a run's rounds, by round."""
    bucket, api = f"{run}.rounds", material.api
    paths = [
        file.path
        for file in api.list_bucket_tree(bucket, recursive=True)
        if "/rounds/" in file.path and not file.path.endswith("newest.json")
    ]
    folder = material.hub.root / "client_home" / run.replace("/", "-")
    targets = {path: folder / path for path in paths}
    api.download_bucket_files(bucket, list(targets.items()))
    read = [read_statement(RoundList, target.read_bytes()) for target in targets.values()]
    return {closed.round: closed for closed in sorted(read, key=lambda one: one.round)}


def test_volunteers_train_over_the_hub_alone_and_a_late_one_comes_to_the_same_bits(
    training_material, volunteers, tmp_path
):
    run = training_material.create_run("org/over-the-hub", **HUB_SETTINGS)
    with ExitStack() as stack:
        auxiliary = stack.enter_context(assistant(training_material, run, tmp_path, "aux"))

        def join_on_a_foreign_system(name):
            events, log = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.log"
            words = ["join", run, "--micro-batch-size", "4", "--device", "cpu", "--events", str(events)]
            command = [sys.executable, "-W", "ignore", str(SUPPORT / "foreign_system.py"), *words]
            with log.open("w", encoding="utf-8") as output:
                environment = command_environment(training_material.hub, volunteers[name])
                process = ChildProcess(command, env=environment, stdout=output, stderr=output)
            return stack.enter_context(killed_with_family(process)), events, log

        def join(name):
            events, log = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.log"
            words = ["join", run, "--micro-batch-size", "4", "--device", "cpu", "--events", str(events)]
            start = training_material.commands.started_worker(log, *words, HF_TOKEN=volunteers[name])
            process = stack.enter_context(start)
            return process, events, log

        peers = {}

        def joined(name, start=join):
            # The others wait meanwhile: a busy machine may take long to load libraries, and there are few rounds.
            for process, _, _ in peers.values():
                os.kill(process.pid, signal.SIGSTOP)
            new, events, log = start(name)
            wait_for(partial(any_event, events, "joined"), name, SECONDS, process=new, log=log)
            for process, _, _ in peers.values():
                os.kill(process.pid, signal.SIGCONT)
            peers[name] = new, events, log

        joined("wanda", join_on_a_foreign_system)  # rounds wait until somebody contributes
        joined("vera")
        auxiliary.wait_until(lambda look: look["held_epoch"] >= 1, "the first round", SECONDS)
        joined("xenia")
        for process, _, log in peers.values():
            assert process.wait(SECONDS) == 0, end_of(log)
        assert auxiliary.process.wait(SECONDS) == 0, auxiliary.log()
    closed = lists_of(training_material, run)
    assert list(closed) == list(range(NUM_ROUNDS + 1))
    assert all(closed[number].previous == closed[number - 1].state for number in range(1, NUM_ROUNDS + 1))
    for _, _, log in peers.values():
        said = log.read_text(encoding="utf-8")
        assert f"Left {run}: contributed" in said and "Traceback" not in said, said
    assert {"vera", "wanda"} <= {member.pointer.user for one in closed.values() for member in one.members}
    late = peers["xenia"][2].read_text(encoding="utf-8")
    assert re.search(r"as xenia at epoch [1-9]", late) and "Your request to contribute waits" in late
    assert "over-the-hub-xenia" not in str(list(training_material.api.list_buckets(namespace="org")))
    assert "xenia" in {member.pointer.user for one in closed.values() for member in one.members}
    state = json.loads(training_material.file(run, "run_state.json").read_text(encoding="utf-8"))
    assert state["epoch"] == NUM_ROUNDS
    told = training_material.commands.run("run", "audit", run, "--rounds")
    assert told.returncode == 0, told.stderr
    assert f"rounds 1 to {NUM_ROUNDS} repeated, {NUM_ROUNDS} lists right and 0 false" in told.stdout + told.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_a_run_publishes_beside_its_state_and_a_rollback_that_all_follow(training_material, volunteers, tmp_path):
    settings = HUB_SETTINGS | dict(
        num_epochs=10_000, window_seconds=4, checkpoint_interval_epochs=2, keep_optimizer_states=100,
        held_out_share=0.2, reel_prompts=["picture number 7"], reel_interval_epochs=2,
    )  # fmt: skip
    run = training_material.create_run("org/rolled-back", **settings)
    evaluating = "--evaluation-interval-epochs", "2", "--evaluation-records", "8", "--evaluation-drawings", "1"
    options = *evaluating, "--metrics-seconds", "2"
    events, log = tmp_path / "vera.jsonl", tmp_path / "vera.log"
    joining = "join", run, "--micro-batch-size", "4", "--device", "cpu", "--events", str(events)

    def joined_again():
        found = [event for event in read_events(events) if event.get("event") == "joined"]
        return found[1] if len(found) > 1 else None

    with (
        assistant(training_material, run, tmp_path, "aux", *options, forked=False) as closer,
        started_command(training_material.hub, log, *joining, token=volunteers["vera"]) as peer,
    ):
        evaluated = closer.wait_until(lambda look: look["evaluation"], "evaluated", SECONDS)
        assert evaluated["evaluation"]["problem"] is None, closer.log()
        closer.wait_until(lambda look: look["published_epoch"] >= 4, "two checkpoints", SECONDS)
        done = training_material.commands.run("run", "rollback", run, "2", "--yes")
        assert done.returncode == 0, done.stderr
        published = training_material.snapshot(run)
        assert list(published.glob("progress_reel/*.webp")), "the reel"
        credited = read_contributions(published / "metrics").total()
        assert set(credited) == {"vera"} and credited["vera"].samples > 0
        for words in (("run", "ledger", run), ("run", "recompute", run)):
            refused = training_material.commands.run(*words)
            assert refused.returncode == 1 and f"dalle-collab run audit {run} --rounds" in refused.stderr, (
                refused.stderr
            )
        count = len(closer.looks())
        closer.wait_until(lambda look: look["held_epoch"] == 2, "in the new generation", SECONDS, after=count)
        again = wait_for(joined_again, "the peer in the new generation", SECONDS, process=peer, log=log)
        assert again["epoch"] >= 2
        closer.wait_until(lambda look: look["held_epoch"] >= 4, "rounds of the new generation", SECONDS, after=count)
    assert "Traceback" not in log.read_text(encoding="utf-8") + closer.log()
    paths = [file.path for file in training_material.api.list_bucket_tree(f"{run}.rounds", recursive=True)]
    lists = sorted(path for path in paths if "/generation-1/rounds/" in path and not path.endswith("newest.json"))
    assert lists[0].endswith("/00000002.json")


def may_make_namespaces():
    made = subprocess.run(["ip", "netns", "add", "dalle-trial"], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", "dalle-trial"], check=True)
    return made


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("ip") or not may_make_namespaces(), reason="needs network namespaces")
def test_four_peers_that_reach_nothing_but_the_hub_and_have_no_hivemind_come_to_equal_states_in_sixty_rounds(
    training_material, volunteers, tmp_path
):
    run = training_material.create_run("org/lonely", **(HUB_SETTINGS | dict(num_epochs=60, kept_rounds=60)))
    hub, names = training_material.hub, [*volunteers, "alice"]
    tokens = {**volunteers, "alice": hub.alice_token}
    with ExitStack() as stack:
        port = int(hub.endpoint.rpartition(":")[2])
        links = stack.enter_context(lonely_links("lonely", len(names), port))
        auxiliary = stack.enter_context(assistant(training_material, run, tmp_path, "aux"))
        processes = []
        for name, (inside, endpoint) in zip(names, links, strict=True):
            log = tmp_path / f"{name}.log"
            words = ["join", run, "--micro-batch-size", "4", "--device", "cpu", "--cpu-threads", "1"]
            environment = command_environment(hub, tokens[name]) | {
                "HF_ENDPOINT": endpoint, "DALLE_COLLAB_WORKER": "1", "HF_HOME": str(tmp_path / name),
            }  # fmt: skip
            with log.open("w", encoding="utf-8") as output:
                command = [*inside, sys.executable, str(SUPPORT / "peer_without_hivemind.py"), *words]
                peer = ChildProcess(command, env=environment, stdout=output, stderr=output)
            processes.append((stack.enter_context(killed_with_family(peer)), log))
        for process, log in processes:
            assert process.wait(900) == 0, end_of(log)
        assert auxiliary.process.wait(SECONDS) == 0, auxiliary.log()
    closed = lists_of(training_material, run)
    assert list(closed) == list(range(61))
    assert all(closed[number].previous == closed[number - 1].state for number in range(1, 61))
    counted = Counter(member.pointer.user for one in closed.values() for member in one.members)
    assert min(counted[name] for name in names) > 40, counted
    for _, log in processes:
        said = log.read_text(encoding="utf-8")
        assert "takes the newest checkpoint" not in said and "Traceback" not in said, said
