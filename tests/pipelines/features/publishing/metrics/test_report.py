"""The report of a run, in the unit that the run counts."""

import math

import pytest
from swarm_of_processes import tiny_run

from hub_tools.counted import file_size
from pipelines.features.publishing.metrics.credit.contributors import Contributor
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure
from pipelines.features.publishing.metrics.report import report_markdown
from pipelines.features.publishing.metrics.run_archive import RunArchive

HISTORY = [
    dict(
        epoch=epoch, time=1.8e9 + epoch, loss=3.0, num_peers=2, samples_per_second=9.0, share_averaged=1.0,
        round_seconds=1.0, bytes_sent=8000 * epoch,
    )
    for epoch in (1, 2)
]  # fmt: skip


@pytest.mark.parametrize(("task", "unit"), [("text-to-image", "sample"), ("text-generation", "token")])
def test_a_report_counts_what_the_run_counts(task, unit):
    run = tiny_run(task)
    record = RunArchive(
        repository="org/run", run=run, epoch=2, history=HISTORY,
        evaluations=[dict(epoch=2, loss=math.log(44.0), num_records=7)],
        contributors=[Contributor(username="alice", samples=64, hours=1.0)], checkpoints=[], checkpoint_bytes=None,
        dataset_bytes=None, num_commits=1,
    )  # fmt: skip
    text = report_markdown(record, loss_curve=None, now=1.8e9)
    assert f"| {unit}s of these epochs, at least | {2 * run.target_batch_size:,} |" in text
    assert f"| user | {unit}s claimed | time |" in text and f"{unit}s/s" in text and f"9.0 {unit}s per second" in text
    assert f"| per {unit} | {file_size(16000 / 2 / run.target_batch_size)} |" in text
    assert "| best held-out loss (nats) | 3.7842 at epoch 2, on 7 records: too few to tell small differences |" in text
    assert ("| best held-out perplexity | 44.0 |" in text) == (unit == "token")


def test_a_report_has_the_latest_evaluation_with_its_interval_and_its_records():
    loss = dict(num_records=400, low=2.9, high=3.1)
    figure = CheckpointFigure(
        epoch=2, name="cmmd", value=0.5, low=0.4, high=0.6, num_items=2, items="drawings", better="lower",
        num_records=400, commit="c" * 40, weights="d" * 64, command="dalle-collab evaluate org/run --records 400",
        time=1.8e9, seconds=30.0,
    )  # fmt: skip
    record = RunArchive(
        repository="org/run", run=tiny_run(), epoch=2, history=HISTORY, figures=[figure],
        evaluations=[dict(epoch=1, loss=2.0), dict(epoch=2, loss=3.0, **loss)], contributors=[], checkpoints=[],
        checkpoint_bytes=None, dataset_bytes=None, num_commits=1,
    )  # fmt: skip
    text = report_markdown(record, loss_curve=None, now=1.8e9)
    latest = "3.0000 (95 % interval 2.9000 to 3.1000) at epoch 2, on 400 records"
    assert (
        f"| newest held-out loss (nats) | {latest} |" in text
        and "| best held-out loss (nats) | 2.0000 at epoch 1 |" in text
    )
    assert "| `cmmd` | 0.5 | 0.4 to 0.6 | 2 drawings of 400 records | lower |" in text
    assert "dalle-collab evaluate org/run --records 400" in text and "too few" not in text
