"""A run's last epoch, as its volunteers and its organiser start it: two `join` and one `run assist`, on a Hub."""

import contextlib
import json
import re
import time

import pytest
from assistants import assistant
from ledger_runs import Trainer
from published_runs import kill_family

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

NUM_EPOCHS = 4
SECONDS_TO_LEAVE, SECONDS_TO_CLOSE = 20.0, 10.0


WATCHING = """
import sys, threading
from hub_tools.endpoint import prepare_hub_client
prepare_hub_client()
from pipelines.features.publishing.repository.generation_watch import watching_generation
from pipelines.features.publishing.repository.key_list import TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot
run, stop = RunSnapshot.read(sys.argv[1]).run, threading.Event()
with watching_generation(sys.argv[1], run, stop, TrustedKeys(run), is_ending=lambda: True) as watch:
    stop.wait(60)
    print(watch.is_over, watch.found_new_generation)
"""


@contextlib.contextmanager
def short_run(material, folder, name):
    """Start a run of a few epochs with an auxiliary peer and two trainers; yield them with the run's name."""
    repository = material.create_run(f"org/{name}", run_id=name, num_epochs=NUM_EPOCHS, target_batch_size=256)
    with contextlib.ExitStack() as stack:
        auxiliary = stack.enter_context(assistant(material, repository, folder, "auxiliary"))
        auxiliary.wait_until(lambda look: True, "up")
        joining = (Trainer.joining(material, repository, folder, trainer) for trainer in ("first", "second"))
        yield repository, auxiliary, [stack.enter_context(trainer) for trainer in joining]


def seconds_to_leave(trainers, *others, seconds=300.0):
    """Wait until all have ended; return how long after the first trainer's last epoch each of them did."""
    processes = [peer.process for peer in (*trainers, *others)]
    over, ended, deadline = None, {}, time.monotonic() + seconds
    while len(ended) < len(processes):
        assert time.monotonic() < deadline, "somebody is still there"
        if over is None and any(NUM_EPOCHS - 1 in trainer.epochs() for trainer in trainers):
            over = time.monotonic()
        for number, process in enumerate(processes):
            if number not in ended and process.poll() is not None:
                assert process.poll() == 0
                ended[number] = time.monotonic()
        time.sleep(0.05)
    return [ended[number] - over for number in range(len(processes))]


@pytest.mark.timeout(600)
def test_everybody_leaves_within_seconds_of_the_last_epoch(training_material, tmp_path):
    with short_run(training_material, tmp_path, f"ending-run-{tmp_path.name[-1]}") as (repository, auxiliary, trainers):
        seconds = seconds_to_leave(trainers, auxiliary)
    state = json.loads(training_material.file(repository, "run_state.json").read_text(encoding="utf-8"))
    assert state["epoch"] == NUM_EPOCHS
    assert max(seconds) < SECONDS_TO_LEAVE, f"{seconds}"
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("first", "second")]
    # Who ends the last round a moment after the other may find it signed already.
    assert any(f"has reached its last epoch, {NUM_EPOCHS}. Waiting until an anchor has signed" in said for said in logs)
    for said in logs:
        assert re.search(rf"Left {repository}: contributed \d+ samples in \d+ epochs? and \d+ s; at epoch 4 of 4", said)
    assert re.search(rf"Left {repository} after \d+ s: at epoch 4 of 4, published up to 4; 1 user con", auxiliary.log())
    # Who has missed all this, because its machine slept, learns it from the Hub: nobody else is there.
    (program := tmp_path / "watching.py").write_text(WATCHING)
    assert training_material.commands.run_program(program, repository).stdout.split() == ["True", "False"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_trainers_whose_anchor_is_killed_in_the_last_epoch_leave_and_say_what_is_missing(training_material, tmp_path):
    with short_run(training_material, tmp_path, f"orphaned-run-{tmp_path.name[-1]}") as (
        repository,
        auxiliary,
        trainers,
    ):
        auxiliary.wait_until(lambda look: look["swarm_epoch"] >= NUM_EPOCHS - 1, "in the last epoch", seconds=240)
        kill_family(auxiliary.process.pid)
        seconds = seconds_to_leave(trainers)
    assert max(seconds) < SECONDS_TO_LEAVE + SECONDS_TO_CLOSE, f"{seconds}"
    said = (tmp_path / "first.log").read_text()
    assert "Waited 20 s in vain until an anchor has signed" in said and f"run assist {repository}" in said
