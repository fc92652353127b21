"""Which checkpoints are evaluated, how, and what comes of an evaluation that hangs or fails: no round waits for it."""

import json
import sys
import time
from dataclasses import asdict

import pytest
from swarm_of_processes import tiny_run

from hub_tools.run_files import OPTIMIZER_FILE, RESULTS_FILE, TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import (
    CheckpointEvaluator,
    bounded_environment,
    public_command,
)
from pipelines.features.publishing.auxiliary.evaluating.evaluation_options import EvaluationOptions
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import may_be_because_of_results
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure
from pipelines.features.publishing.metrics.run_metrics import RunMetrics

RUN = tiny_run(num_epochs=100)
COMMIT = "c" * 40
REPORT = dict(
    subject=dict(weights="d" * 64), settings=dict(num_records=7), left_out=dict(psnr="no originals"),
    figures=[dict(name="loss", value=3.0, low=2.0, high=4.0, num_items=7, items="records", better="lower")],
)  # fmt: skip
WRITE = f"""
import os, pathlib, sys
checkpoint, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
assert (checkpoint / "model.safetensors").read_text() == "weights" and not (checkpoint / {OPTIMIZER_FILE!r}).exists()
(output / "evaluation.json").write_text(REPORT)
"""
HANG = "import time; time.sleep(600)"
FAIL = "raise SystemExit('dalle-collab: the Hub does not answer')"
SECONDS = 60


@pytest.fixture
def evaluating(tmp_path):
    """A function that makes an evaluator around a program of a few lines; it ends with the test."""
    made = []

    def make(program, **options):
        metrics = RunMetrics(RUN, tmp_path / "metrics")
        evaluator = CheckpointEvaluator(
            "org/birds", RUN, EvaluationOptions(**(dict(interval_epochs=10) | options)),
            folder=tmp_path / "evaluation", metrics=metrics,
            program=[sys.executable, "-c", program.replace("REPORT", repr(json.dumps(REPORT)))],
        )  # fmt: skip
        made.append(evaluator.__enter__())
        return evaluator, metrics

    yield make
    for evaluator in made:
        evaluator.__exit__(None, None, None)
    assert not (tmp_path / "evaluation").exists()


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "spooled"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    (folder / OPTIMIZER_FILE).write_text("statistics")
    return folder


def outcome_of(evaluator):
    deadline = time.monotonic() + SECONDS
    while (outcome := evaluator.look()) is None:
        assert time.monotonic() < deadline, "no outcome"
        time.sleep(0.02)
    return outcome


def test_a_published_checkpoint_is_evaluated_after_it_has_left_the_spool(evaluating, checkpoint, tmp_path, caplog):
    caplog.set_level("INFO")
    evaluator, metrics = evaluating(WRITE, num_records=7, num_drawings=3)
    before = metrics.mark()
    evaluator.take(10, checkpoint, COMMIT)
    (kept,) = (tmp_path / "evaluation").glob("epoch-*/checkpoint")
    assert TrainingRun.from_file(kept / TRAINING_RUN_FILE) == RUN
    assert (kept / "model.safetensors").stat().st_ino == (checkpoint / "model.safetensors").stat().st_ino, "no copy"
    for path in checkpoint.iterdir():
        path.unlink()
    assert evaluator.is_busy and evaluator.current_epoch is None, "it waits"
    assert evaluator.look() is None and evaluator.current_epoch == 10, "it has begun"
    outcome = outcome_of(evaluator)
    (figure,) = outcome.figures
    command = f"dalle-collab evaluate org/birds --revision {COMMIT} --records 7 --drawings 3 --training-records 0"
    assert asdict(figure) == asdict(CheckpointFigure(
        epoch=10, name="loss", value=3.0, low=2.0, high=4.0, num_items=7, items="records", better="lower",
        num_records=7, commit=COMMIT, weights="d" * 64, command=command, time=figure.time, seconds=figure.seconds,
    ))  # fmt: skip
    assert 0 < figure.seconds < SECONDS and "Not evaluated: {'psnr': 'no originals'}" in caplog.text
    assert metrics.figures() == [figure] and metrics.mark() != before, "worth publishing"
    assert not evaluator.is_busy and not list((tmp_path / "evaluation").glob("epoch-*")), "the disk is free again"


def test_only_what_is_due_is_evaluated_and_the_last_checkpoint_is(evaluating, checkpoint):
    evaluator, metrics = evaluating(WRITE)
    taken = []
    for epoch in (3, 9, 12, 15, 19, 25, 97, 99, 100):
        evaluator.take(epoch, checkpoint, COMMIT)
        if evaluator.is_busy:
            taken.append(outcome_of(evaluator).epoch if evaluator.look() is None else None)
    assert taken == [12, 25, 97, 100] and [figure.epoch for figure in metrics.figures()] == taken


def test_while_one_hangs_the_newest_waits_and_gets_its_turn_when_the_time_is_up(evaluating, checkpoint, caplog):
    evaluator, metrics = evaluating(HANG, limit_seconds=2.0)
    evaluator.take(10, checkpoint, COMMIT)
    assert evaluator.look() is None
    started = time.monotonic()
    for epoch in (20, 30):
        evaluator.take(epoch, checkpoint, COMMIT)
        assert evaluator.look() is None
    assert time.monotonic() - started < 1.5, "neither a publication nor a poll waits"
    assert "Epoch 20 is not evaluated: epoch 30 has come before its turn." in caplog.text
    first, second = outcome_of(evaluator), outcome_of(evaluator)
    assert (first.epoch, second.epoch) == (10, 30) and not evaluator.is_busy and metrics.figures() == []
    assert first.problem == "it ended with exit code 124: Its 2 seconds were up."


def test_one_that_fails_is_one_line_and_the_next_one_is_evaluated(evaluating, checkpoint, caplog):
    evaluator, _ = evaluating(FAIL)
    evaluator.take(10, checkpoint, COMMIT)
    problem = "it ended with exit code 1: dalle-collab: the Hub does not answer"
    assert outcome_of(evaluator).problem == problem
    assert [record.message for record in caplog.records] == [f"The evaluation of epoch 10 has failed: {problem}"]
    evaluator.take(20, checkpoint, COMMIT)
    assert outcome_of(evaluator).epoch == 20


@pytest.mark.parametrize(
    ("report", "said"),
    [("'not JSON'", "Expecting value"), ("'{}'", "lacks something"), ("'x' * 2**21", "2097152 bytes")],
)
def test_a_report_that_is_none_is_a_failure(evaluating, checkpoint, report, said):
    evaluator, _ = evaluating(WRITE.replace("REPORT", report))
    evaluator.take(10, checkpoint, COMMIT)
    assert said in outcome_of(evaluator).problem


def test_a_checkpoint_that_cannot_be_kept_is_published_all_the_same(evaluating, tmp_path, caplog):
    evaluator, _ = evaluating(WRITE)
    (tmp_path / "evaluation").write_text("in the way")
    try:
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "model.safetensors").touch()
        evaluator.take(10, tmp_path / "one", COMMIT)
    finally:
        (tmp_path / "evaluation").unlink()
    assert not evaluator.is_busy and "is published, but cannot be evaluated" in caplog.text


def test_an_evaluation_has_the_threads_and_the_gpu_that_it_may_use():
    given = dict(HF_TOKEN="secret", OMP_NUM_THREADS="64", DALLE_COLLAB_WORKER="1", CUDA_VISIBLE_DEVICES="0")
    on_cpu = bounded_environment(given, num_threads=3, device="cpu")
    assert (on_cpu["OMP_NUM_THREADS"], on_cpu["CUDA_VISIBLE_DEVICES"], on_cpu["HF_TOKEN"]) == ("3", "", "secret")
    assert "DALLE_COLLAB_WORKER" not in on_cpu
    assert bounded_environment(given, num_threads=1, device="cuda")["CUDA_VISIBLE_DEVICES"] == "0"
    assert "secret" not in public_command("org/birds", COMMIT, EvaluationOptions(interval_epochs=1), "fill-mask")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(interval_epochs=0), "interval_epochs"), (dict(num_records=1), "num_records is 1"),
        (dict(num_drawings=0), "num_drawings"), (dict(device="tpu"), "device is 'tpu'; expected cpu or cuda"),
        (dict(limit_seconds=1e9), "limit_seconds is 1e.09"), (dict(num_threads=0), "num_threads"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        EvaluationOptions(**(dict(interval_epochs=1) | change))


def test_checkpoints_go_on_where_the_hub_refuses_evaluation_results():
    assert may_be_because_of_results(400, [RESULTS_FILE]) and may_be_because_of_results(422, [RESULTS_FILE])
    assert not may_be_because_of_results(400, ["README.md"]), "something else was wrong"
    assert not may_be_because_of_results(412, [RESULTS_FILE]) and not may_be_because_of_results(500, [RESULTS_FILE])
