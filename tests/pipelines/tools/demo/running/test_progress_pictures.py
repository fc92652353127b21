"""What the demo shows of the auxiliary peer's pictures while it trains."""

import numpy as np
from PIL import Image

from hub_tools.run_files import REEL_FOLDER
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.sample_gallery import SampleGallery
from pipelines.tools.demo.running.progress_pictures import ProgressPictures

CAPTION = "a small red star on the left of a blue background"


def drawn_reel(folder):
    """A reel whose picture is as red as its epoch."""
    run = TrainingRun(
        run_id="run", model_config={}, dataset_repository="org/codes", dataset_revision="main", reel_prompts=[CAPTION]
    )
    return SampleGallery(run, folder, lambda red, prompts: Image.new("RGB", (96, 96), (red, 0, 0)))


def test_each_picture_of_the_gallery_is_shown_once_and_named(tmp_path):
    gallery = drawn_reel(tmp_path / "auxiliary" / "generation-0" / REEL_FOLDER)
    pictures, file = ProgressPictures(tmp_path / "auxiliary", tmp_path), tmp_path / "progress.png"
    assert pictures.news(80) == "" and not file.exists()
    gallery.add(16, 100, now=0.0)
    assert pictures.news(80) == f"The first pictures, after 16 of 80 epochs: {file} ({CAPTION})"
    assert pictures.news(80) == ""
    gallery.add(32, 200, now=1.0)
    assert pictures.news(80) == f"Pictures, after 32 of 80 epochs: {file}"
    assert abs(int(np.asarray(Image.open(file))[48, 48, 0]) - 200) < 10


def test_a_run_that_goes_on_in_another_folder_shows_what_is_newer(tmp_path):
    drawn_reel(tmp_path / "auxiliary" / "generation-0" / REEL_FOLDER).add(32, 100, now=0.0)
    pictures = ProgressPictures(tmp_path / "auxiliary", tmp_path)
    assert "after 32 of 80" in pictures.news(80)
    drawn_reel(tmp_path / "auxiliary" / "generation-1" / REEL_FOLDER).add(48, 200, now=1.0)
    assert "after 48 of 80" in pictures.news(80) and pictures.news(80) == ""


def test_a_picture_that_another_auxiliary_peer_has_drawn_is_no_news(tmp_path):
    folder = tmp_path / "auxiliary" / "generation-0" / REEL_FOLDER
    drawn_reel(folder).add(16, 100, now=0.0).unlink()
    assert ProgressPictures(tmp_path / "auxiliary", tmp_path).news(80) == ""
