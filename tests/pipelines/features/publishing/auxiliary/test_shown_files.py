"""What a commit shows of a run beside the weights: files that fit each other, whatever is drawn meanwhile."""

import json
from types import SimpleNamespace

from PIL import Image
from swarm_of_processes import tiny_run

from pipelines.features.publishing.auxiliary.publishing.shown_files import ShownFiles
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.metrics.sample_gallery import SampleGallery


def test_an_index_names_no_picture_that_its_commit_lacks(tmp_path):
    run, reel = tiny_run(reel_prompts=("a cat",)), tmp_path / "reel"
    gallery = SampleGallery(run, reel, lambda model, prompts: Image.new("RGB", (8, 8)))
    shown = ShownFiles(
        repository="org/run", task=SimpleNamespace(run=run), metrics=RunMetrics(run, tmp_path / "metrics"),
        reel_folder=reel,
    )  # fmt: skip
    gallery.add(4, None, 1.0)
    with shown.written(None, with_card=False) as additions:
        gallery.add(8, None, 2.0)
        named = [one["file"] for one in json.loads(additions["progress_reel/index.json"])["pictures"]]
    assert named == ["epoch-00000004.webp"] and f"progress_reel/{named[0]}" in additions
