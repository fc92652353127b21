"""Evaluations as files: the spread of a held-out loss, figures of checkpoints, cards; strangers' rows are bounded."""

import json
import math
import random
import statistics
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from swarm_of_processes import tiny_run

from hub_tools.run_files import EVALUATIONS_FILE, FIGURES_FILE
from pipelines.features.held_out_loss import held_out_loss_of
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import (
    FIGURE_SCHEMA,
    CheckpointFigure,
    figures_of_report,
    merged_figures,
    possible_figures,
    read_figures,
    write_figures,
)
from pipelines.features.publishing.metrics.evaluation.figure_table import evaluation_section
from pipelines.features.publishing.metrics.evaluation.held_out_losses import (
    held_out_loss,
    read_evaluations,
    write_evaluations,
)
from pipelines.features.publishing.metrics.evaluation.model_index import model_index
from pipelines.features.publishing.metrics.evaluation.result_files import results_yaml
from pipelines.features.publishing.metrics.parquet_rows import LARGEST_FILE_BYTES, MOST_ROWS

COMMIT, DIGEST = "c" * 40, "d" * 64
COMMAND = f"dalle-collab evaluate org/birds --revision {COMMIT} --records 40 --drawings 2 --training-records 0"
FIGURE = CheckpointFigure(
    epoch=6, name="fid@clip", value=0.5, low=0.4, high=0.6, num_items=2, items="drawings", better="lower",
    num_records=40, commit=COMMIT, weights=DIGEST, command=COMMAND, time=1.8e9, seconds=30.0,
)  # fmt: skip
LOSS = replace(FIGURE, name="loss", value=3.0, low=2.5, high=3.5, num_items=40, items="records")
ROW = dict(epoch=6, loss=3.0, num_records=40, time=1.8e9, seconds=2.0, low=2.5, high=3.5, weights=DIGEST)


def test_the_spread_of_equally_heavy_samples_is_that_of_their_mean():
    values = [random.Random(1).gauss(4.0, 1.5) for _ in range(1)] + [
        random.Random(n).gauss(4.0, 1.5) for n in range(99)
    ]
    loss = held_out_loss_of([(5 * value, 5) for value in values])
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert loss.mean == pytest.approx(statistics.fmean(values)) and loss.num_samples == 100
    assert (loss.low, loss.high) == pytest.approx((loss.mean - 1.96 * error, loss.mean + 1.96 * error), rel=1e-4)


def test_the_interval_of_unequal_samples_has_the_true_loss_in_it_about_95_times_in_100():
    hits = 0
    for trial in range(400):
        chance = random.Random(trial)
        weights = [chance.randint(1, 30) for _ in range(60)]
        samples = [(weight * chance.gauss(2.0, 0.3) + chance.gauss(0, 2.0), weight) for weight in weights]
        loss = held_out_loss_of(samples)
        assert loss.mean == pytest.approx(sum(total for total, _ in samples) / sum(weights))
        hits += loss.low <= 2.0 <= loss.high
    assert 360 <= hits <= 398


def test_one_sample_says_nothing_of_the_spread():
    loss = held_out_loss_of([(6.0, 3)])
    assert (loss.mean, loss.low, loss.high, loss.num_samples) == (2.0, None, None, 1)


def test_a_file_from_before_intervals_is_read_and_an_interval_that_cannot_be_is_left_out(tmp_path):
    old = {name: ROW[name] for name in ("epoch", "loss", "num_records", "time", "seconds")}
    pq.write_table(pa.Table.from_pylist([old]), tmp_path / EVALUATIONS_FILE)
    assert read_evaluations(tmp_path) == [old | dict(low=None, high=None, weights=None)]
    wrong = [dict(low=4.0), dict(high=math.inf), dict(low=math.nan), dict(high=None), dict(low=-1e300)]
    write_evaluations([ROW, *(ROW | change for change in wrong), ROW | dict(weights="rm -rf")], tmp_path)
    first, *others, last = read_evaluations(tmp_path)
    assert first == ROW and all((row["loss"], row["low"], row["high"]) == (3.0, None, None) for row in others)
    assert last == ROW | dict(weights=None)
    write_evaluations([ROW | change for change in (dict(loss=1e300), dict(epoch=-1), dict(num_records=None))], tmp_path)
    assert read_evaluations(tmp_path) == []


def test_a_held_out_loss_says_its_interval_and_when_it_stands_on_few_records():
    few = "too few to tell small differences"
    assert held_out_loss(ROW) == f"3.0000 (95 % interval 2.5000 to 3.5000) at epoch 6, on 40 records: {few}"
    many = ROW | dict(num_records=4000, low=None, high=None)
    assert held_out_loss(many) == "3.0000 at epoch 6, on 4,000 records"


def test_figures_come_back_as_they_were_and_none_make_no_file(tmp_path):
    assert write_figures([], tmp_path) is None and read_figures(tmp_path) == []
    write_figures([LOSS, FIGURE], tmp_path)
    assert read_figures(tmp_path) == [LOSS, FIGURE]


@pytest.mark.parametrize(
    "change",
    [
        dict(epoch=0), dict(epoch=2**62), dict(value=math.nan), dict(value=7.0), dict(high=math.inf), dict(low=None),
        dict(name="<b>fid</b>"), dict(name="f" * 200), dict(num_items=-1), dict(num_records=None),
        dict(items="rec|ords"),
        dict(better="lowest"), dict(commit="main"), dict(weights=""), dict(time=1e300), dict(seconds=math.nan),
        dict(command="rm -rf / #"), dict(command="dalle-collab evaluate org/run; rm -rf /"),
        dict(command="dalle-collab evaluate " + "x" * 1000), dict(command=None),
    ],
    ids=str,
)  # fmt: skip
def test_a_strangers_row_that_cannot_be_true_is_left_out_and_the_others_stay(tmp_path, change):
    rows = [asdict(LOSS), asdict(FIGURE) | change, asdict(FIGURE)]
    pq.write_table(pa.Table.from_pylist(rows, schema=FIGURE_SCHEMA), tmp_path / FIGURES_FILE)
    assert read_figures(tmp_path) == [LOSS, FIGURE]
    assert possible_figures([asdict(FIGURE) | dict.fromkeys(change, object())]) == []


def test_a_strangers_file_that_is_none_or_too_large_is_left_out(tmp_path, caplog):
    path = tmp_path / FIGURES_FILE
    path.write_bytes(b"PAR1 this is none")
    assert read_figures(tmp_path) == [] and "checkpoint_figures.parquet is not a metrics file" in caplog.text
    pq.write_table(pa.table({"epoch": [1]}), path)
    assert read_figures(tmp_path) == [] and "does not exist in schema" in caplog.text
    columns = {field.name: pa.nulls(MOST_ROWS + 1, field.type) for field in FIGURE_SCHEMA}
    pq.write_table(pa.table(columns), path)
    assert read_figures(tmp_path) == [] and "100,001 rows, more than any run's" in caplog.text
    path.write_bytes(b"PAR1" + bytes(LARGEST_FILE_BYTES))
    assert read_figures(tmp_path) == [] and caplog.text.count("are left out") == 4


def test_a_newer_evaluation_of_an_epoch_replaces_the_older_one():
    newer = replace(LOSS, value=2.9)
    assert merged_figures([FIGURE, LOSS, replace(LOSS, epoch=9)], [newer]) == [newer, replace(LOSS, epoch=9)]


def test_the_report_of_an_evaluation_becomes_figures_of_its_checkpoint():
    names = ("name", "value", "low", "high", "num_items", "items", "better")
    listed = [{name: getattr(LOSS, name) for name in names} | dict(meaning="of no use here")]
    report = dict(subject=dict(weights=DIGEST), settings=dict(num_records=40), figures=listed)
    facts = dict(epoch=6, commit=COMMIT, command=COMMAND, now=1.8e9, seconds=30.0)
    assert figures_of_report(json.loads(json.dumps(report)), **facts) == [LOSS]
    assert figures_of_report(report | dict(figures=[dict(listed[0], value="a lot")]), **facts) == []
    for damaged in ([], {}, report | dict(figures=3), report | dict(figures=["loss"]), report | dict(subject=None)):
        with pytest.raises(ValueError, match="report lacks something"):
            figures_of_report(damaged, **facts)


def test_every_figure_of_a_card_has_a_command_a_commit_and_an_interval():
    run = tiny_run()
    index = model_index("org/birds", run, [ROW], [replace(LOSS, epoch=3), LOSS, FIGURE], epoch=6)
    _, results = model_index_to_eval_results(index["model-index"])
    found = {result.metric_name: result for result in results}
    assert set(found) == {"held-out loss (nats)", "loss of epoch 6", "fid@clip of epoch 6"}
    fid, held_out = found["fid@clip of epoch 6"], found["held-out loss (nats)"]
    assert (fid.metric_value, fid.source_name) == (0.5, COMMAND)
    assert fid.source_url.endswith(f"/org/birds/tree/{COMMIT}")
    assert "127.0.0.1" not in fid.source_url + held_out.source_url, "nobody else has this machine's Hub"
    assert fid.metric_args["low"] == 0.4 and fid.metric_args["num_records"] == 40
    assert held_out.source_name == "dalle-collab evaluate org/birds --revision epoch-6 --records 40 --drawings 1"
    assert held_out.metric_args == dict(epoch=6, num_records=40, weights=DIGEST, low=2.5, high=3.5)
    unpublished = model_index("org/birds", run, [ROW], epoch=5)["model-index"][0]["results"][0]
    assert unpublished["source"]["name"] == "dalle-collab run assist org/birds", "nobody else has that state"
    assert model_index("org/birds", run, []) == {}


def test_the_hubs_own_parser_reads_the_evaluation_results():
    run = tiny_run()
    fid, loss = parse_eval_result_entries(yaml.safe_load(results_yaml("org/birds", run, [FIGURE, LOSS])))
    assert (fid.dataset_id, fid.dataset_revision, fid.task_id, fid.value) == ("made/up", "none", "fid_clip", 0.5)
    assert fid.date == "2027-01-15T08:00:00+00:00" and fid.source_name == COMMAND
    assert fid.notes == "epoch 6, 95 % interval 0.4 to 0.6, on 2 drawings of 40 records; lower is better"
    assert loss.notes == "epoch 6, 95 % interval 2.5 to 3.5, on 40 records; lower is better"
    assert results_yaml("org/birds", run, []) == ""


def test_a_section_about_the_newest_evaluation_names_interval_records_and_command():
    text = evaluation_section([replace(LOSS, epoch=3), LOSS, FIGURE])
    assert "| `fid@clip` | 0.5 | 0.4 to 0.6 | 2 drawings of 40 records | lower |" in text and COMMAND in text
    assert "too few to tell small differences" in text and "epoch 3" not in text
    assert evaluation_section([]) == ""
