"""The whole line with the shipped codec and CLIP, as `make demo` runs it, only shorter."""

import io
import json
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from PIL import Image
from rich.console import Console

from hub_tools.local_hub import LocalHub
from modeling_dalle_collab import DalleCollabForConditionalGeneration
from pipelines.tools.demo.demo_plan import DemoPlan
from pipelines.tools.demo.scenes.scene_captions import held_out_captions
from pipelines.tools.demo.scenes_demo import RUN_SETTINGS
from pipelines.tools.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC
from pipelines.tools.demo.stages import StageError, Stages, progress_in
from pipelines.tools.demo.summary import mean_picture_bytes, summarise_demo, write_summary
from pipelines.tools.demo.whole_line import run_whole_line

NUM_PICTURES = 240
NUM_CAPTIONS = 3
NUM_EPOCHS = 4
SMALLER = dict(
    hidden_size=64,
    num_hidden_layers=3,
    target_batch_size=256,
    local_steps=2,
    num_epochs=NUM_EPOCHS,
    num_warmup_epochs=2,
    checkpoint_interval_epochs=3,
    reel_prompts=held_out_captions(1),
    reel_interval_epochs=2,
)


def small_plan(folder, **changes):
    settings = dict(
        name="scenes",
        output=folder,
        codec_folder=PRETRAINED_CODEC,
        clip_folder=PRETRAINED_CLIP,
        run_settings=RUN_SETTINGS | SMALLER,
        shard_size=128,
        num_candidates=4,
        keep=2,
        num_captions_in_grid=2,
    )
    return DemoPlan(**(settings | changes))


def make_pictures(stages, folder):
    stages.run(
        "dalle-collab", "demo", "scenes", "--output", str(folder), "--num-pictures", str(NUM_PICTURES),
        log_name="pictures",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(900)
def test_pictures_become_a_model_that_two_peers_trained_and_that_draws(tmp_path):
    plan, console = small_plan(tmp_path / "demo-output"), Console(quiet=True)
    result = run_whole_line(plan, make_pictures, lambda: held_out_captions(NUM_CAPTIONS), console)
    check_figures(plan, result)
    check_pictures(plan, result)
    check_what_the_hub_keeps(plan, result, tmp_path / "cache")
    check_that_a_second_call_keeps_everything(plan, result)


def check_figures(plan, result):
    assert result.kept + sum(result.dropped.values()) == NUM_PICTURES
    assert result.kept > NUM_PICTURES / 2 and len(result.dropped) >= 3, "the dirt was dropped, by reason"
    assert result.num_samples >= NUM_EPOCHS * 512
    epochs = [point["epoch"] for point in result.history]
    assert epochs == sorted(epochs) and epochs[-1] == NUM_EPOCHS
    assert max(point["num_peers"] for point in result.history) == 2
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    summary = summarise_demo(result, picture_bytes=mean_picture_bytes((plan.work / "pictures").glob("*.tar")))
    assert summary.share_averaged == 1.0
    assert summary.evaluation is not None and summary.evaluation["loss"] > 0
    assert 0.5 < summary.bytes_per_parameter_per_round < 2.0
    assert 0 < summary.bytes_per_sample_on_the_wire < summary.bytes_per_sample_jpeg
    write_summary(plan.output, "A title", summary, result, grid_title="A grid")
    stored = json.loads((plan.output / "summary.json").read_text())
    assert {"scores", "stage_seconds", "share_averaged", "epochs", "parameters"} <= stored.keys()
    assert set(stored["stage_seconds"]) >= {"pictures", "preparation", "publishing", "training", "generation"}
    page = (plan.output / "summary.html").read_text()
    assert "A title" in page and "held-out loss" in page


def check_pictures(plan, result):
    assert len(result.best_pictures) == len(result.unranked_pictures) == NUM_CAPTIONS
    for files in (result.best_pictures, result.unranked_pictures):
        for file in files:
            with Image.open(file) as picture:
                assert picture.size == (128, 128)
    with Image.open(plan.output / "progress.png") as progress:
        assert progress.size[0] > progress.size[1], "a row of pictures"
    with Image.open(plan.output / "grid.png") as grid:
        assert grid.size[0] > 2 * 128 and grid.size[1] > 2 * 128


def check_what_the_hub_keeps(plan, result, cache):
    """`hub-tools serve` on the demo's folder shows what was made."""
    with LocalHub(plan.output / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=False)
        folder = api.snapshot_download(plan.repository(), cache_dir=cache)
        titles = [commit.title for commit in api.list_repo_commits(plan.repository())]
        assert len(api.list_repo_commits(plan.repository("-codes"), repo_type="dataset")) >= 1
    assert f"Checkpoint of epoch {NUM_EPOCHS}" in titles and "Create training run demo-scenes" in titles
    model = DalleCollabForConditionalGeneration.from_pretrained(folder)
    assert model.num_parameters() == result.num_parameters
    codes = model.generate_image_codes(torch.full((1, 16), 5), num_candidates=2)
    assert codes.shape == (1, 2, 64)


def check_that_a_second_call_keeps_everything(plan, result):
    Path(result.best_pictures[0]).write_bytes(b"damaged")
    told = io.StringIO()
    again = run_whole_line(plan, make_pictures, lambda: held_out_captions(NUM_CAPTIONS), Console(file=told, width=400))
    assert again.best_pictures == result.best_pictures and again.num_samples == result.num_samples
    lines = told.getvalue().splitlines()
    done = [line.partition(" (")[0] for line in lines if line.startswith("done ")]
    assert done == [f"done Drawing {NUM_CAPTIONS} captions, 4 candidates each"], "only what was damaged is made again"
    assert sum(line.startswith("kept ") for line in lines) == 8


def test_the_times_of_stages_inside_others_count_once(tmp_path):
    stages = Stages(tmp_path, {}, Console(quiet=True))
    started = time.monotonic()
    with stages.stage("outer", "outer"), stages.stage("inner", "inner"):
        began = time.monotonic()
        while time.monotonic() - began < 0.3:
            pass
    elapsed = time.monotonic() - started
    assert stages.seconds["inner"] >= 0.25 and stages.seconds["inner"] + stages.seconds["outer"] <= elapsed + 0.2


def test_a_folder_with_other_files_is_not_cleared(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(ValueError, match=r"has files that are not a demo's. Choose another folder: --output NAME"):
        run_whole_line(small_plan(tmp_path), make_pictures, lambda: held_out_captions(1), Console(quiet=True))
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


def test_work_that_is_finished_is_not_done_again_and_what_is_left_of_it_is_removed_before(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "left").touch()
    calls = []

    def draw():
        calls.append((tmp_path / "pictures").exists())
        (tmp_path / "pictures").mkdir(exist_ok=True)
        return ["a"]

    for _ in range(2):
        stages = Stages(tmp_path, {}, Console(quiet=True))
        assert stages.once("pictures", "Drawing", draw, outputs=[tmp_path / "pictures"]) == ["a"]
    assert calls == [False] and not (tmp_path / "pictures" / "left").exists()
    assert stages.once("pictures", "Drawing", draw, inputs="others") == ["a"] and len(calls) == 2
    assert stages.once("pictures", "Drawing", draw, inputs="others", is_there=lambda: False) == ["a"]
    assert len(calls) == 3


def test_work_that_goes_on_with_what_is_left_finds_it(tmp_path):
    (tmp_path / "dataset").mkdir()
    stages = Stages(tmp_path, {}, Console(quiet=True))
    assert stages.once(
        "preparation", "Encoding", (tmp_path / "dataset").exists, outputs=[tmp_path / "dataset"], continues=True
    )


def test_only_a_line_that_says_how_far_a_command_is_is_told():
    for line in ("sampling: 30 of 1,920 image codes", "drawing: 1,200 pictures", "ranking: 1 of 30 prompts"):
        assert progress_in(line) == line
    for line in ("warnings.warn(", "/lib/a.py:3: FutureWarning: 3 of them", "it printed nothing", ""):
        assert progress_in(line) == ""


def test_the_seconds_of_an_interrupted_stage_count(tmp_path):
    stages = Stages(tmp_path, {}, Console(quiet=True))
    with pytest.raises(KeyboardInterrupt), stages.stage("training", "Training"):
        started = time.monotonic()
        while time.monotonic() - started < 0.2:
            pass
        raise KeyboardInterrupt
    assert Stages(tmp_path, {}, Console(quiet=True)).seconds["training"] >= 0.2


@pytest.mark.slow
@pytest.mark.swarm
def test_a_stage_that_fails_names_its_command_its_reason_and_its_log(tmp_path):
    plan = small_plan(tmp_path / "demo-output", codec_folder=tmp_path / "absent")
    with pytest.raises(
        StageError, match=r"`hub-tools publish folder .*absent.*` ended with exit code 1: .*publish.log"
    ):
        run_whole_line(plan, lambda *_: None, lambda: held_out_captions(1), Console(quiet=True))
