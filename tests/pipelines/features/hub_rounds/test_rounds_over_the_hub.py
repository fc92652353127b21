"""Real peers whose only wire is the embedded Hub: equal bits, whoever comes late, and nothing of hivemind."""

import json
from contextlib import ExitStack

import pytest
from assistants import assistant
from running_programs import end_of

from pipelines.core.signing.signed_statement import read_statement
from pipelines.features.hub_rounds.statements import RoundList

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

HUB_SETTINGS = dict(
    wire="hub", window_seconds=6, num_epochs=8, num_warmup_epochs=1, local_steps=4, inner_batch_size=8,
    target_batch_size=24, inner_optimizer="adamw", peak_learning_rate=4e-3, bucket_interval_epochs=2,
    checkpoint_interval_epochs=3,
)  # fmt: skip
SECONDS = 240


@pytest.fixture(scope="module")
def volunteers(hub):
    """Return the tokens of people who may create buckets in the organisation, and nothing else."""
    tokens = {}
    for name in ("vera", "wanda", "xenia"):
        hub.create_user(name)
        hub.add_member("org", name, "contributor")
        tokens[name] = hub.create_token(name, role="contributor", name="volunteer")
    return tokens


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

        def join(name):
            events, log = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.log"
            words = ["join", run, "--micro-batch-size", "4", "--device", "cpu", "--events", str(events)]
            start = training_material.commands.started_worker(log, *words, HF_TOKEN=volunteers[name])
            process = stack.enter_context(start)
            return process, events, log

        peers = {name: join(name) for name in ("vera", "wanda")}
        auxiliary.wait_until(lambda look: look["held_epoch"] >= 2, "the second round", SECONDS)
        peers["xenia"] = join("xenia")
        for process, _, log in peers.values():
            assert process.wait(SECONDS) == 0, end_of(log)
        assert auxiliary.process.wait(SECONDS) == 0, auxiliary.log()
    closed = lists_of(training_material, run)
    assert list(closed) == list(range(9))
    assert all(closed[number].previous == closed[number - 1].state for number in range(1, 9))
    for _, _, log in peers.values():
        said = log.read_text(encoding="utf-8")
        assert f"Left {run}: contributed" in said and "Traceback" not in said, said
    assert {member.pointer.user for one in closed.values() for member in one.members} == {"vera", "wanda", "xenia"}
    state = json.loads(training_material.file(run, "run_state.json").read_text(encoding="utf-8"))
    assert state["epoch"] == 8
    told = training_material.commands.run("run", "audit", run, "--rounds")
    assert told.returncode == 0, told.stderr
    assert "rounds 1 to 8 repeated, 8 lists right and 0 false" in told.stdout + told.stderr
