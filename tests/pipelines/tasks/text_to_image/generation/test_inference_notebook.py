"""The inference notebook draws with what lies on the Hub alone, and lets CLIP choose."""

import os
import re

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from notebooks import executed, outputs_of
from published_runs import command_environment
from support_files import ROOT

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.tasks.text_to_image.image_codes.codec_code import copy_codec_code

NOTEBOOK = ROOT / "spaces" / "text_to_image_demo" / "inference.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def published(hub, tiny_run, tiny_codec, tiny_clip, tmp_path_factory):
    """Publish the tiny run with its codec and CLIP to the embedded Hub; return its name."""
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    run = tmp_path_factory.mktemp("notebook-run")
    processor = DalleCollabProcessor.from_pretrained(tiny_run)
    processor.image_codec_repository, processor.clip_repository = "org/notebook-codec", "org/notebook-clip"
    processor.save_pretrained(run)
    DalleCollabForConditionalGeneration.from_pretrained(tiny_run).save_pretrained(run)
    copy_codec_code(run)
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    for part, folder in dict(codec=tiny_codec, clip=tiny_clip, run=run).items():
        api.create_repo(f"org/notebook-{part}")
        api.upload_folder(repo_id=f"org/notebook-{part}", folder_path=str(folder))
    return "org/notebook-run"


def test_the_inference_notebook_draws_and_ranks(hub, published, tmp_path):
    settings = dict(MODEL_REPOSITORY=published, NUM_CANDIDATES="5", KEEP="3", TOP_K="6", PROMPT="a red star")
    environment = {**os.environ, **command_environment(hub, ""), **settings, "HF_HOME": str(tmp_path / "hub")}
    notebook = executed(NOTEBOOK, environment, tmp_path)
    *_, drawn, _, shown = outputs_of(notebook)
    assert re.search(r"5 candidates of 16 x 16 pixels on \w+: \d+\.\d\d s for each", drawn)
    scores = [float(score) for score in re.search(r"CLIP's scores: (.+)", shown)[1].split(", ")]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    pictures = [output for output in notebook.cells[-1].outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
