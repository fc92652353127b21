"""The run's history: appended to quickly, written in small pieces, read back as it was, summed up for a page."""

import json
import math
import time

import pyarrow.parquet as pq
import pytest

from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import read_evaluations, write_evaluations
from pipelines.features.publishing.metrics.history import (
    append_point,
    merge_histories,
    read_history_files,
    summarise_history,
    summary_json,
    write_history,
)


def summary(epoch, **changes):
    values = dict(
        epoch=epoch, loss=5.0 / epoch, num_peers=epoch % 7, samples_per_second=9.5, share_averaged=1.0,
        bytes_sent=10 * epoch, num_rounds=epoch, round_seconds=0.25, time=60.0 * epoch, num_refused_gradients=0,
        suspects={"Qm1": 2},
    )  # fmt: skip
    return EpochSummary(**(values | changes))


def history_of(num_epochs):
    history = []
    for epoch in range(1, num_epochs + 1):
        append_point(history, summary(epoch))
    return history


def test_history_keeps_one_point_per_epoch_and_forgets_what_a_fall_back_lost():
    history = []
    for epoch, loss in [(1, 9.0), (2, 8.0), (2, 7.5), (3, 7.0), (2, 7.8)]:
        append_point(history, summary(epoch, loss=loss))
    append_point(history, None)
    assert [(point["epoch"], point["loss"]) for point in history] == [(1, 9.0), (2, 7.8)]


def test_a_point_knows_the_seconds_per_epoch_since_the_one_before():
    history = []
    for epoch, seconds in [(1, 100.0), (2, 160.0), (5, 400.0), (5, 430.0)]:
        append_point(history, summary(epoch, time=seconds))
    assert [point["epoch_seconds"] for point in history] == [0.0, 60.0, 90.0]


def test_a_history_comes_back_from_its_shards_as_it_was(tmp_path):
    history = history_of(2500)
    files = write_history(history, tmp_path)
    assert [path.name for path in files] == [f"epochs-0000{number}.parquet" for number in range(3)]
    assert read_history_files(tmp_path) == history
    assert pq.read_metadata(files[0]).num_rows == 1000


def test_only_the_newest_shard_is_written_again_and_30_000_epochs_are_appended_in_a_moment(tmp_path):
    started = time.process_time()
    history = history_of(30_000)
    assert len(write_history(history, tmp_path)) == 30
    append_point(history, summary(30_001))
    again = time.process_time()
    files = write_history(history, tmp_path, from_epoch=29_995)
    ended = time.process_time()
    assert [path.name for path in files] == ["epochs-00029.parquet", "epochs-00030.parquet"]
    assert ended - started < 10 and ended - again < 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3_000_000
    assert [path.name for path in write_history(history, tmp_path, from_epoch=30_001)] == ["epochs-00030.parquet"]
    assert len(read_history_files(tmp_path)) == 30_001


def test_of_two_histories_the_newer_view_of_an_epoch_counts():
    older = [dict(epoch=epoch, loss=1.0) for epoch in (1, 2, 3)]
    newer = [dict(epoch=epoch, loss=2.0) for epoch in (3, 4)]
    merged = merge_histories(older, newer)
    assert [(point["epoch"], point["loss"]) for point in merged] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_impossible_points_of_a_file_are_left_out_and_a_damaged_file_is_named(tmp_path):
    history = [*history_of(2), dict(history_of(3)[2], loss=math.nan), dict(history_of(4)[3], epoch=-4)]
    history.append(dict(history_of(5)[4], epoch_seconds=1e308))
    write_history(history, tmp_path)
    assert [point["epoch"] for point in read_history_files(tmp_path)] == [1, 2]
    (tmp_path / "epochs-00007.parquet").write_bytes(b"PAR1 this is none")
    with pytest.raises(ValueError, match=r"epochs-00007.parquet is not a metrics file"):
        read_history_files(tmp_path)


@pytest.mark.parametrize("num_epochs", [0, 1, 299, 300, 301, 30_000])
def test_a_summary_has_few_points_that_cover_all_epochs_and_end_with_the_newest(num_epochs):
    columns = summarise_history(history_of(num_epochs))
    assert len(columns["epoch"]) <= 300 and {len(column) for column in columns.values()} == {len(columns["epoch"])}
    assert columns["epoch"] == sorted(set(columns["epoch"]))
    if num_epochs:
        assert columns["epoch"][-1] == num_epochs
        size = math.ceil(num_epochs / 300)
        last = [5.0 / epoch for epoch in range(num_epochs - size + 1, num_epochs + 1)]
        assert columns["loss"][-1] == pytest.approx(sum(last) / size, rel=1e-5)
        assert len(columns["epoch"]) >= 150 or num_epochs < 300


def test_the_summary_of_a_long_run_is_a_small_json_file_that_any_page_can_read(tmp_path):
    spread = dict(low=0.001, high=5.0, weights="0a" * 32)
    evaluations = [
        dict(epoch=100 * n, loss=4.0 / n, num_records=256, time=1.0 * n, seconds=2.0, **spread) for n in range(1, 402)
    ]
    write_evaluations(evaluations, tmp_path)
    assert read_evaluations(tmp_path) == evaluations and read_evaluations(tmp_path / "none") == []
    board = [dict(username=f"user-{n}", samples_all=n, hours_all=1.5) for n in range(200)]
    text = summary_json(
        facts=dict(run_id="birds"), history=history_of(30_000), evaluations=evaluations, leaderboard=board,
        num_contributors=500, now=5.0,
    )  # fmt: skip
    values = json.loads(text)
    assert len(text) < 100_000 and values["run_id"] == "birds" and values["newest"]["epoch"] == 30_000
    assert len(values["evaluations"]["epoch"]) == 201 and values["num_contributors"] == 500
    assert (values["evaluations"]["epoch"][-1], values["evaluations"]["high"][-1]) == (40_100, 5.0), "the newest"
    assert values["newest"]["suspects"] == {"Qm1": 2}
