"""The drawing Space starts from its bundle in a fresh interpreter; people and programs get pictures or a message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from browsing import SIZES, needs_browser, serious_findings, take_picture, watched_page
from PIL import Image

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.generation.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.generation.clip_reranking import new_clip
from pipelines.generation.clip_training import PREPROCESS, ClipTrainingConfig
from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.image_codes.vqgan_config import VQGANConfig

SPACE = Path(__file__).parents[2] / "spaces" / "text_to_image_demo"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A whole run in folders, tiny and untrained."""
    folder = tmp_path_factory.mktemp("parts")
    torch.manual_seed(0)
    tokenizer = train_clip_tokenizer(["a small red star", "a large green circle"], 300)
    sizes = ClipTrainingConfig(image_size=32, vision_width=8, text_width=32, text_layers=1, embed_dim=16)
    clip_config = sizes.model_config(len(tokenizer))
    clip = new_clip(clip_config, PREPROCESS)
    save_clip_folder(folder / "clip", clip, tokenizer, model_config=clip_config, preprocess=PREPROCESS)
    codec_config = VQGANConfig(
        image_size=16,
        codebook_size=12,
        embedding_dim=4,
        z_channels=4,
        channels=32,
        channel_multipliers=(1, 1, 1),
        num_residual_blocks=1,
        attention_resolutions=(),
        quantizer="nearest",
    )
    VQGANCodec(codec_config).save_pretrained(folder / "codec")
    processor = DalleCollabProcessor(
        tokenizer,
        image_codec_repository=str(folder / "codec"),
        clip_repository=str(folder / "clip"),
        text_sequence_length=8,
    )
    processor.save_pretrained(folder / "run")
    config = DalleCollabConfig(
        text_vocab_size=len(tokenizer),
        codebook_size=12,
        text_sequence_length=8,
        image_grid_size=4,
        hidden_size=32,
        num_hidden_layers=3,
        attention_pattern=("row", "column"),
        num_attention_heads=2,
        head_dim=16,
        conv_kernel_size=3,
    )
    DalleCollabForConditionalGeneration(config).save_pretrained(folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def environment(run_folder):
    return {
        **os.environ,
        "MODEL_REPOSITORY": str(run_folder),
        "MAX_CANDIDATES": "8",
        "OMP_NUM_THREADS": "1",
    }


def draw(client, prompt="a red star", candidates=4, keep=2, seed=0):
    return client.predict(prompt, candidates, keep, 8, 1.0, 1.0, seed, api_name="/draw")


def pixels(pictures):
    return [Image.open(picture["image"]).tobytes() for picture in pictures]


def test_the_bundle_holds_all_it_needs_and_nothing_of_other_stages(bundle):
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*.py")}
    assert {"app.py", "pipelines/generation/text_to_image.py", "pipelines/image_codes/vqgan_codec.py"} <= files
    assert not [file for file in files if file.startswith(("pipelines/training", "pipelines/data_preparation"))]


def test_a_program_gets_ranked_pictures_and_the_same_ones_for_the_same_seed(client):
    pictures, message = draw(client)
    assert message == "The best 2 of 4 candidates, best first."
    scores = [float(picture["caption"].removeprefix("CLIP ")) for picture in pictures]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    with Image.open(pictures[0]["image"]) as picture:
        assert picture.size == (192, 192)
    again, other = draw(client)[0], draw(client, seed=1)[0]
    assert pixels(again) == pixels(pictures) != pixels(other)


def test_bad_input_is_a_message_and_the_space_goes_on(client):
    assert draw(client, prompt=" ") == ([], "Prompt 1 of 1 is empty: say what the pictures should show.")
    pictures, message = draw(client, candidates=2, keep=3)
    assert pictures == [] and message.startswith("Cannot keep 3 of 2 candidates")
    assert len(draw(client)[0]) == 2


def test_a_space_without_a_run_says_which_setting_is_missing(bundle):
    environment = {name: value for name, value in os.environ.items() if name != "MODEL_REPOSITORY"}
    result = subprocess.run([sys.executable, "app.py"], cwd=bundle, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "MODEL_REPOSITORY is not set. Name the run: MODEL_REPOSITORY=ORG/RUN"
    assert "Traceback" not in result.stderr


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_a_person_sees_pictures_with_scores_in_a_browser(address, size, tmp_path):
    with watched_page(address, size) as page:
        page.get_by_label("Prompt").fill("a red star")
        page.get_by_role("button", name="Draw").click()
        page.get_by_text("candidates, best first.").wait_for(timeout=120_000)
        page.get_by_text("CLIP ").first.wait_for()
        assert page.locator("img").count() >= 4
        take_picture(page, "text_to_image_demo", tmp_path)
        page.get_by_label("Prompt").fill("  ")
        page.get_by_role("button", name="Draw").click()
        page.get_by_text("is empty: say what the pictures should show").wait_for(timeout=60_000)
        assert serious_findings(page, ignored=("aria-prohibited-attr",)) == []  # of Gradio's gallery
