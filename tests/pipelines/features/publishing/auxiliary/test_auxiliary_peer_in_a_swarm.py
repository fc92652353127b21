"""The real auxiliary peer on the embedded Hub: what survives when trainers, and then it too, are killed."""

import contextlib
import json
import subprocess
import sys
import time

import pytest
import torch
from assistants import assistant
from isolation import PROJECT, environment_without
from made_up_tasks import made_up_batch
from published_runs import command_environment, family_of, interrupt, still_alive
from swarm_of_processes import Swarm

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.history import read_history_files

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

INTERVAL = 3


def read_run(material, repository):
    return TrainingRun.from_file(material.file(repository, "training_run.json"))


def hub_epoch(material, repository):
    return json.loads(material.file(repository, "run_state.json").read_text())["epoch"]


def loss_of_hub_checkpoint(material, repository, run):
    model = DalleCollabForConditionalGeneration.from_pretrained(material.snapshot(repository))
    batch = made_up_batch(run, seed=2**31, batch_size=16)
    with torch.no_grad():
        return model(**batch, return_logits=False).loss.item()


@pytest.mark.timeout(600)
def test_a_run_survives_the_death_of_all_trainers_and_then_of_the_auxiliary_peer(training_material, tmp_path):
    repository = training_material.create_run(
        "org/mortal-run", checkpoint_interval_epochs=INTERVAL, optimizer_bits=8, run_id="mortal"
    )
    swarm_folder = tmp_path / "swarm"
    swarm_folder.mkdir()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(assistant(training_material, repository, tmp_path, "first"))
        first.wait_until(lambda look: True, "up")
        run = read_run(training_material, repository)
        assert len(run.entry_addresses) >= 1, "the auxiliary peer announces where newcomers find the swarm"
        addresses = list(run.entry_addresses)
        keys = training_material.anchors(repository)
        swarm = stack.enter_context(Swarm(swarm_folder, run, num_peers=2, entry_addresses=addresses, anchor_keys=keys))
        trainers = [swarm.start(name, seconds_per_batch=0.3, evaluate_epochs=True) for name in ("one", "two")]
        first.wait_until(lambda look: look["published_epoch"] >= INTERVAL, "published")
        trainers[0].wait_for("evaluation", after=time.time())  # of the epoch that the auxiliary peer is at, too
        for trainer in trainers:
            trainer.kill()
        held, published = settled_epochs(first)

        # A newcomer resumes from the auxiliary peer alone: the same epoch, the same loss.
        newcomer = swarm.start("newcomer", num_peers=1)
        ready, evaluation = newcomer.wait_for("ready"), newcomer.wait_for("evaluation")
        assert (ready["source"], ready["epoch"]) == ("peers", held)
        seen = {e["epoch"]: e["loss"] for trainer in trainers for e in trainer.events("evaluation")}
        assert evaluation["loss"] == pytest.approx(seen[held], abs=1e-5)
        assert abs(seen[held] - seen[0]) > 1e-2, "the run had learnt something that could have been lost"
        newcomer.wait_for("step", ended_epoch=True)

        # The auxiliary peer and the newcomer are killed with SIGKILL as well: all that is left is the Hub.
        family = family_of(first.process.pid)
        assert any(process.name() == "p2pd" for process in family)
        first.process.kill()
        newcomer.kill()
        assert still_alive(family) == []
        published = hub_epoch(training_material, repository)
        second = stack.enter_context(assistant(training_material, repository, tmp_path, "second"))
        look = second.wait_until(lambda look: True, "up again")
        assert (look["held_epoch"], look["published_epoch"]) == (published, published) and published >= INTERVAL
        assert set(read_run(training_material, repository).entry_addresses).isdisjoint(addresses)
        swarm.entry_addresses = list(read_run(training_material, repository).entry_addresses)
        swarm.anchor_keys = training_material.anchors(repository)
        last = swarm.start("last", num_peers=1)
        ready, evaluation = last.wait_for("ready"), last.wait_for("evaluation")
        assert (ready["source"], ready["epoch"]) == ("peers", published)
        expected = loss_of_hub_checkpoint(training_material, repository, run)
        assert evaluation["loss"] == pytest.approx(expected, abs=1e-5)

        # Ctrl-C in mid-training publishes what is held.
        second.wait_until(lambda look: look["held_epoch"] > published, "following the newcomer")
        last.kill()
        family = family_of(second.process.pid)
        assert interrupt(second.process) == 0, second.log()
        assert still_alive(family) == []
        assert hub_epoch(training_material, repository) >= max(look["held_epoch"] for look in second.looks())
    check_the_checkpoint_elsewhere(training_material, repository, tmp_path)


def settled_epochs(auxiliary):
    """Wait until the auxiliary peer sees no trainer any more; return what it holds and has published then."""
    count = len(auxiliary.looks())
    auxiliary.wait_until(lambda look: look in auxiliary.looks()[count:] and look["num_trainers"] == 0, "alone")
    look = auxiliary.looks()[-1]
    return look["held_epoch"], look["published_epoch"]


ELSEWHERE = """
import sys

from transformers import AutoModel, AutoProcessor

processor = AutoProcessor.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
codes = model.generate_image_codes(processor(text=["picture number 7"]).input_ids, num_candidates=2, seed=3)
print(codes.tolist())
"""


def check_the_checkpoint_elsewhere(material, repository, folder):
    """The checkpoint on the Hub is whole, and draws the same codes where the project is not installed."""
    checkpoint = material.snapshot(repository)
    files = {path.name: path for path in checkpoint.iterdir()}
    assert {"optimizer_state.safetensors", "run_state.json", "checkpoint_manifest.json", "loss_curve.png"} <= set(files)
    assert f"dalle-collab join {repository}" in files["README.md"].read_text()
    history = read_history_files(checkpoint / "metrics")
    assert [point["epoch"] for point in history] == sorted({point["epoch"] for point in history})
    assert history and all(point["share_averaged"] == 1.0 for point in history)
    model = DalleCollabForConditionalGeneration.from_pretrained(checkpoint)
    processor = DalleCollabProcessor.from_pretrained(checkpoint)
    input_ids = processor(text=["picture number 7"])["input_ids"]
    expected = model.generate_image_codes(input_ids, num_candidates=2, seed=3)
    script = folder / "elsewhere.py"
    script.write_text(ELSEWHERE)
    environment = command_environment(material.hub, material.hub.alice_token)
    environment |= {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, script, repository],
        cwd=folder, env=environment_without(PROJECT, environment), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(expected.tolist())
