"""Real auxiliary peers and trainers: the Hub goes away and comes back, the publisher dies, the run is rolled back."""

import contextlib
import itertools
import json

import pytest
import yaml
from assistants import assistant
from huggingface_hub import parse_eval_result_entries
from published_runs import family_of, still_alive
from swarm_of_processes import Swarm

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import read_figures
from pipelines.features.publishing.metrics.evaluation.held_out_losses import read_evaluations
from pipelines.features.publishing.metrics.history import read_history_files

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

INTERVAL = 3
MAX_COMMITS = 40
EVALUATING = ("--evaluation-interval-epochs", "3", "--evaluation-records", "8", "--evaluation-drawings", "1")


def checkpoint_epochs(material, repository):
    """Epochs of the checkpoints on the Hub in the order of their commits."""
    titles = [commit.title for commit in material.api.list_repo_commits(repository)][::-1]
    return [int(title.rsplit(" ", 1)[1]) for title in titles if title.startswith("Checkpoint of epoch")]


def read_run(material, repository):
    return TrainingRun.from_file(material.file(repository, "training_run.json"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_checkpoints_go_on_through_an_outage_of_the_hub_the_publishers_death_and_a_rollback(
    training_material, tmp_path
):
    hub = training_material.hub
    repository = training_material.create_run(
        "org/published-run", run_id="published", checkpoint_interval_epochs=INTERVAL, held_out_share=0.2,
        evaluation_interval_epochs=INTERVAL, num_evaluation_records=8, max_commits_per_hour=MAX_COMMITS,
        reel_prompts=["picture number 7"], reel_interval_epochs=INTERVAL, keep_optimizer_states=100,
    )  # fmt: skip
    quick = ("--takeover-seconds", "10", "--retry-seconds", "0.5", "--metrics-seconds", "5")
    (tmp_path / "swarm").mkdir()
    with contextlib.ExitStack() as stack:

        def start(name, *more, **how):
            options = (*quick, *more, "--state-folder", str(tmp_path / f"state-{name}"))
            return stack.enter_context(assistant(training_material, repository, tmp_path, name, *options, **how))

        first = start("first", *EVALUATING)
        first.wait_until(lambda look: look["is_publisher"], "publisher")
        second = start("second", forked=False)  # the rollback starts its worker again
        second.wait_until(lambda look: not look["is_publisher"], "standing by")
        num_looks = len(second.looks())
        run = read_run(training_material, repository)
        assert len(run.entry_addresses) >= 2, "the addresses of both auxiliary peers"
        who = dict(num_peers=1, anchor_keys=training_material.anchors(repository))
        swarm = Swarm(tmp_path / "swarm", run, entry_addresses=list(run.entry_addresses), **who)
        trainer = stack.enter_context(swarm).start("trainer", seconds_per_batch=0.3, evaluate_epochs=True)
        first.wait_until(lambda look: look["published_epoch"] >= INTERVAL, "published")

        # A checkpoint is evaluated in a process of its own, and rounds go on meanwhile.
        begun = first.wait_until(lambda look: look["evaluating_epoch"], "evaluating")
        ended = first.wait_until(lambda look: look["evaluation"], "evaluated")
        assert ended["evaluation"]["problem"] is None, first.log()
        assert ended["evaluation"]["epoch"] == begun["evaluating_epoch"] and ended["held_epoch"] > begun["held_epoch"]

        # The Hub is away for several checkpoints; the run goes on, and afterwards all of them are there in order.
        hub.kill()
        try:
            away = first.wait_until(lambda look: look["num_waiting"] >= 3, "three checkpoints waiting")
        finally:
            hub.start()
        count = len(first.looks())
        look = first.wait_until(lambda look: look["num_waiting"] == 0, "all published", after=count)
        assert look["published_epoch"] >= away["held_epoch"] - INTERVAL
        assert not any(look["is_publisher"] for look in second.looks()[num_looks:]), "one publisher at a time"
        epochs = checkpoint_epochs(training_material, repository)
        assert epochs == sorted(set(epochs)) and max(gap(epochs)) <= INTERVAL + 2, epochs

        # The publisher is killed with all that it has started: the other one takes over, no epoch is published twice.
        first.wait_until(lambda look: look["evaluating_epoch"], "evaluating", after=count)
        family = family_of(first.process.pid)
        first.process.kill()
        assert still_alive(family) == []
        taken_over = second.wait_until(lambda look: look["is_publisher"], "publisher", seconds=90)
        second.wait_until(lambda look: look["published_epoch"] > taken_over["published_epoch"], "published")
        epochs = checkpoint_epochs(training_material, repository)
        assert epochs == sorted(set(epochs)), epochs
        check_metrics(training_material, repository)

        # Rolled back: the auxiliary peer starts again by itself, and a trainer goes on from that epoch.
        trainer.kill()
        epoch = epochs[1]
        before = {e["epoch"]: e["loss"] for e in trainer.events("evaluation")}[epoch]
        done = training_material.commands.run("run", "rollback", repository, str(epoch), "--yes")
        assert done.returncode == 0, done.stderr
        count = len(second.looks())
        second.wait_until(lambda look: look["held_epoch"] == epoch, "in the new generation", seconds=240, after=count)
        rolled_back = read_run(training_material, repository)
        assert rolled_back.generation == 1
        next_swarm = Swarm(tmp_path / "swarm", rolled_back, entry_addresses=list(rolled_back.entry_addresses), **who)
        last = stack.enter_context(next_swarm).start("last", seconds_per_batch=0.1)
        assert (last.wait_for("ready")["source"], last.wait_for("ready")["epoch"]) == ("peers", epoch)
        assert last.wait_for("evaluation")["loss"] == pytest.approx(before, abs=1e-5)
        count = len(second.looks())
        second.wait_until(lambda look: look["published_epoch"] > epoch, "published in the new generation", after=count)
        manifest = json.loads(training_material.file(repository, "checkpoint_manifest.json").read_text())
        assert manifest["generation"] == 1 and manifest["parent_epoch"] == epoch
    commits = [commit.title for commit in training_material.api.list_repo_commits(repository)]
    assert len(commits) <= 2 * MAX_COMMITS, "each of two peers has kept to its budget"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_elsewhere_than_at_the_organisers_it_says_how_it_is_listed_and_publishes_from_then_on(
    training_material, tmp_path
):
    repository, own, commands = "org/assisted-elsewhere", tmp_path / "organiser.pem", training_material.commands
    made = commands.run(*training_material.create_arguments(repository), "--organiser-key", own)
    assert made.returncode == 0, made.stderr
    options = ("--state-folder", str(tmp_path / "state"))
    with assistant(training_material, repository, tmp_path, "elsewhere", *options) as peer:
        look = peer.wait_until(lambda look: True, "serving")
        assert not look["is_listed"] and not look["is_publisher"]
        assert read_run(training_material, repository).entry_addresses, "newcomers find the swarm"
        (line,) = [line for line in peer.log().splitlines() if "run keys" in line]
        _day, _time, level, *words = line.split()  # as in every line of a log in a file
        assert level == "INFO"
        assert words[:-1] == ["dalle-collab", "run", "keys", repository, "--add"]
        listed = commands.run(*words[1:], "--organiser-key", own)
        assert listed.returncode == 0, listed.stderr
        peer.wait_until(lambda look: look["is_listed"] and look["is_publisher"], "publisher", seconds=120)


def gap(epochs):
    return [later - earlier for earlier, later in itertools.pairwise(epochs)]


def check_metrics(material, repository):
    """Evaluations, contributions, history and reel are on the Hub."""
    snapshot = material.snapshot(repository)
    history = read_history_files(snapshot / "metrics")
    assert [point["epoch"] for point in history] == sorted({point["epoch"] for point in history})
    evaluations = read_evaluations(snapshot / "metrics")
    assert evaluations and all(row["num_records"] == 8 and 0 < row["loss"] < 20 for row in evaluations)
    assert all(row["low"] < row["loss"] < row["high"] for row in evaluations)
    figures = {(figure.epoch, figure.name): figure for figure in read_figures(snapshot / "metrics")}
    losses = [figure for (_, name), figure in figures.items() if name == "loss"]
    assert losses and all(one.num_records == 8 and one.low < one.value < one.high for one in losses)
    tags = {tag.name: tag.target_commit for tag in material.api.list_repo_refs(repository).tags}
    assert all(one.commit == tags[f"epoch-{one.epoch}"] for one in losses)
    same = [(row, figures[row["epoch"], "loss"]) for row in evaluations if (row["epoch"], "loss") in figures]
    assert all(row["weights"] == one.weights and row["loss"] == pytest.approx(one.value) for row, one in same)
    entries = parse_eval_result_entries(yaml.safe_load((snapshot / ".eval_results/dalle_collab.yaml").read_text()))
    newest = [figure for figure in figures.values() if figure.epoch == max(epoch for epoch, _ in figures)]
    assert {entry.task_id: entry.value for entry in entries} == pytest.approx(
        {f.name: f.value for f in newest}, rel=1e-4
    )
    assert f"--revision {newest[0].commit}" in (snapshot / "README.md").read_text()
    total = read_contributions(snapshot / "metrics").total()
    assert total["trainer"].samples >= 32 * (history[-1]["epoch"] - 2)
    reel = json.loads((snapshot / "progress_reel" / "index.json").read_text())
    assert reel["pictures"] and (snapshot / "progress_reel" / reel["pictures"][0]["file"]).stat().st_size > 100
