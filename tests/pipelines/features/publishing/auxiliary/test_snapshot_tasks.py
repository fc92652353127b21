"""What is done with copies of the model beside the run: evaluation, the progress reel, trackers."""

import json
import threading

import numpy as np
import pytest
import torch
from made_up_tasks import made_up_batch, made_up_task
from PIL import Image
from swarm_of_processes import tiny_run

from pipelines.core.run.task import mean_loss, num_samples
from pipelines.features.publishing.auxiliary.snapshot_tasks import SnapshotTask, SnapshotWorker, is_due
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure
from pipelines.features.publishing.metrics.sample_gallery import (
    SampleGallery,
    read_index,
    take_over_gallery,
    write_index,
)
from pipelines.features.publishing.metrics.stalls import StallNews
from pipelines.features.publishing.metrics.trackers import Trackers, check_trackers
from pipelines.tasks.text_to_image.image_code_stream import evaluation_split, held_out_mask


@pytest.fixture
def codes():
    return np.random.default_rng(1).integers(0, 8192, (5000, 16), np.int16)


def test_about_the_given_share_is_held_out_and_a_picture_is_on_one_side_wherever_it_turns_up(codes):
    mask = held_out_mask(codes, 0.1)
    assert 400 < mask.sum() < 600
    order = np.random.default_rng(2).permutation(len(codes))
    assert (held_out_mask(codes[order], 0.1) == mask[order]).all()
    assert (held_out_mask(codes.astype(np.int64), 0.1) == mask).all()
    assert not held_out_mask(codes, 0.0).any()
    assert (held_out_mask(codes, 0.2) >= mask).all(), "a larger share holds out more, not others"


def test_a_datasets_own_split_is_used_for_the_evaluation():
    assert evaluation_split(["org/data/train-00000.parquet"]) is None
    assert evaluation_split(["data/train-00000.parquet", "data/test-00000.parquet"]) == "test"
    assert evaluation_split(["data/test-00000.parquet", "data/validation-00000.parquet"]) == "validation"


def test_the_evaluation_is_the_mean_over_records_and_can_be_stopped():
    run = tiny_run()
    task = made_up_task(run)
    model = task.new_model().eval()
    batches = [made_up_batch(run, seed, size) for seed, size in ((1, 4), (2, 2))]
    with torch.no_grad():
        losses = [
            model(input_ids=batch["input_ids"][i : i + 1], image_codes=batch["image_codes"][i : i + 1]).loss.item()
            for batch in batches
            for i in range(num_samples(batch))
        ]
    assert mean_loss(task, model, batches) == pytest.approx(sum(losses) / 6, abs=1e-5)
    assert mean_loss(task, model, batches, should_stop=lambda: True) is None and mean_loss(task, model, []) is None


@pytest.mark.parametrize(
    ("epoch", "done", "due"),
    [(0, 0, False), (9, 0, False), (10, 0, True), (25, 10, True), (19, 10, False), (99, 95, False), (100, 95, True),
     (100, 100, False), (31, 29, True)],
)  # fmt: skip
def test_a_task_is_due_once_in_every_interval_and_at_the_runs_end(epoch, done, due):
    assert is_due(epoch, done, 10, last_epoch=100) is due


def test_while_a_task_runs_nothing_new_is_taken_and_it_works_on_a_copy():
    release, seen = threading.Event(), []

    def work(epoch, model):
        release.wait(30)
        seen.append((epoch, model.weight.item()))

    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
    with SnapshotWorker({SnapshotTask(name="Looking", interval=10, work=work): 0}) as worker:
        tasks = worker.due(10, 100)
        worker.start(tasks, 10, model)
        assert worker.is_busy() and worker.due(20, 100) == []
        with torch.no_grad():
            model.weight.fill_(2.0)
        release.set()
    assert seen == [(10, 1.0)]
    assert worker.due(10, 100) == [] and len(worker.due(20, 100)) == 1


def test_a_task_rests_in_proportion_to_what_it_took_but_not_at_the_runs_end():
    def slowly(epoch, model):
        threading.Event().wait(0.05)

    eager, resting = (SnapshotTask(name="Drawing", interval=1, work=slowly, rest=rest) for rest in (0.0, 1e6))
    with SnapshotWorker({eager: 0, resting: 0}) as worker:
        worker.start(worker.due(1, 10), 1, torch.nn.Linear(1, 1))
    assert worker.due(2, 10) == [eager] and worker.due(10, 10) == [eager, resting]


def test_a_task_that_fails_is_reported_and_ends_nothing(caplog):
    def work(epoch, model):
        raise RuntimeError("no picture today")

    with SnapshotWorker({SnapshotTask(name="Drawing", interval=1, work=work): 0}) as worker:
        worker.start(worker.due(1, 10), 1, torch.nn.Linear(1, 1))
    assert "Drawing of epoch 1 failed (1 of 10)" in caplog.text and "no picture today" in caplog.text


def test_the_gallery_has_a_small_picture_for_each_epoch_and_an_index(tmp_path):
    run = tiny_run(reel_prompts=("a robin", "eine Möwe"))
    drawn = []

    def draw(model, prompts):
        drawn.append(prompts)
        return Image.new("RGB", (40, 20), "red")

    gallery = SampleGallery(run, tmp_path / "reel", draw)
    assert gallery.newest_epoch() == 0
    for epoch in (10, 20, 20):
        path = gallery.add(epoch, torch.nn.Linear(1, 1), now=5.0)
    with Image.open(path) as picture:
        assert picture.format == "WEBP" and picture.size == (40, 20)
    index = json.loads((tmp_path / "reel" / "index.json").read_text(encoding="utf-8"))
    assert index["prompts"] == ["a robin", "eine Möwe"] and drawn == [run.reel_prompts] * 3
    assert [entry["file"] for entry in index["pictures"]] == ["epoch-00000010.webp", "epoch-00000020.webp"]
    assert gallery.newest_epoch() == 20


def test_who_takes_over_the_gallery_goes_on_with_its_index(tmp_path):
    published, own = tmp_path / "published", tmp_path / "own"
    published.mkdir()
    take_over_gallery(own, published, ["a robin"])
    assert not own.exists(), "there was nothing to take over"
    write_index(
        published,
        ["a robin"],
        [dict(epoch=10, file="epoch-00000010.webp"), dict(epoch=20, file="epoch-00000020.webp", time=1.0)],
    )
    own.mkdir()
    write_index(
        own, ["a robin"], [dict(epoch=20, file="epoch-00000020.webp", time=2.0), dict(epoch=30, file="../x.webp")]
    )
    take_over_gallery(own, published, ["a robin"])
    assert [(entry["file"], entry.get("time")) for entry in read_index(own)] == [
        ("epoch-00000010.webp", None),
        ("epoch-00000020.webp", 2.0),
    ], "a file of another name is none of a reel"
    (own / "index.json").write_text("damaged")
    assert read_index(own) == []


def test_a_tracker_that_is_unknown_or_not_installed_is_refused_with_the_command():
    import importlib.util

    check_trackers([])
    with pytest.raises(ValueError, match="--tracker is 'notepad'; expected one of wandb, trackio, tensorboard"):
        check_trackers(["notepad"])
    missing = [name for name in ("wandb", "trackio", "tensorboard") if importlib.util.find_spec(name) is None]
    for name in missing:
        with pytest.raises(ValueError, match=f"--tracker {name} needs a package .*: pip install {name}"):
            check_trackers([name])


def test_a_tracker_gets_the_settings_every_epoch_once_and_the_evaluations(tmp_path):
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, register_tracker_class

    logged, alerts = [], []

    class Page(list):
        def alert(self, title, text):
            alerts.append((title, text))

    page = Page()

    class Notebook(GeneralTracker):
        name = "notebook"
        requires_logging_directory = False

        def __init__(self, run_name):
            super().__init__()
            self.run_name = run_name

        @property
        def tracker(self):
            return page

        def store_init_configuration(self, values):
            logged.append((self.run_name, values["target_batch_size"]))

        def log(self, values, step=None, **_):
            logged.append((step, values))

        def finish(self):
            logged.append("finished")

    register_tracker_class(Notebook)
    figure = CheckpointFigure(
        epoch=2, name="cmmd", value=0.5, low=0.4, high=0.6, num_items=2, items="drawings", better="lower",
        num_records=40, commit="c" * 40, weights="d" * 64, command="dalle-collab evaluate org/run", time=1.0,
        seconds=1.0,
    )  # fmt: skip
    run = tiny_run(run_id="birds")
    figures = dict.fromkeys(
        ("num_peers", "samples_per_second", "share_averaged", "epoch_seconds", "round_seconds", "bytes_sent",
         "num_refused_gradients"), 1
    )  # fmt: skip
    summary = EpochSummary(**figures, epoch=1, loss=5.0, num_rounds=1, time=1.0)
    try:
        with Trackers(["notebook"], run, tmp_path) as trackers:
            for epoch in (1, 1, 2):
                trackers.log_epoch(summary | dict(epoch=epoch, loss=5.0 / epoch))
            trackers.log_evaluation(1, 6.0)
            trackers.log_figures([figure])
            for has_ended in (False, True):
                trackers.log_stall(
                    StallNews(epoch=2, has_ended=has_ended, seconds=300, usual_seconds=9, num_trainers=0)
                )
    finally:
        LOGGER_TYPE_TO_CLASS.pop("notebook")
    assert logged == [
        ("birds", 32), (1, dict(figures, loss=5.0)), (2, dict(figures, loss=2.5)),
        (2, dict(held_out_loss=6.0, evaluated_epoch=1)), (2, {"checkpoint/cmmd": 0.5, "evaluated_epoch": 2}),
        (2, {"stalled": 1}), (2, {"stalled": 0}), "finished",
    ]  # fmt: skip
    assert [title for title, _ in alerts] == ["birds has stalled", "birds goes on"]
    assert "no epoch has ended for 300 s" in alerts[0][1]
