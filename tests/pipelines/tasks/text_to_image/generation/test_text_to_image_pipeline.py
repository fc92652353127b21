"""`transformers.pipeline("text-to-image")` draws with what lies on the Hub alone, in a fresh interpreter too."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars
from isolation import PROJECT, environment_without, packages_beside
from transformers import AutoModel, AutoProcessor, pipeline

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from modeling_dalle_collab.pipeline_dalle_collab import TextToImagePipeline
from pipelines.tasks.text_to_image.generation.installed_pipeline import InstalledTextToImagePipeline
from pipelines.tasks.text_to_image.image_codes.codec_code import CODEC_CODE_FILES, copy_codec_code
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

PROMPTS = ["a red star", "a green circle on the left"]
REPOSITORY, CODEC_REPOSITORY = "org/pipeline-birds", "org/pipeline-codec"

ENOUGH = ("torch", "transformers", "pillow")
"""What a reader is told to install to draw with a published model."""

ELSEWHERE = """
import json, sys

import torch
from transformers import AutoModel, AutoProcessor, pipeline

torch.set_num_threads(1)
model, init_options, call_options = *sys.argv[1:3], json.loads(sys.argv[3])
try:
    draw = pipeline("text-to-image", model=model, trust_remote_code=True, device="cpu", **json.loads(init_options))
    drawn = draw(**call_options)
except (ValueError, ImportError) as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
else:
    assert type(draw).__module__.startswith("transformers_modules."), type(draw)
    codes = draw(**call_options | {"output_type": "codes"})
    pixels = drawn.tolist() if hasattr(drawn, "tolist") else [
        [list(picture.convert("RGB").tobytes()) for picture in row] for row in drawn
    ]
    apart, processor = (part.from_pretrained(model, trust_remote_code=True) for part in (AutoModel, AutoProcessor))
    options = {name: value for name, value in call_options.items() if name not in ("prompts", "output_type")}
    options["num_candidates"] = options.pop("num_images_per_prompt")
    assert torch.equal(apart.generate_image_codes(**processor(text=call_options["prompts"]), **options), codes)
    decoded = draw.codec.decode(codes.flatten(0, 1)).mul(255).round().to(torch.uint8)
    print(json.dumps({"pixels": pixels, "codes": codes.tolist(), "decoded": decoded.tolist()}))
"""


@pytest.fixture(scope="module")
def published(hub, tiny_run, tiny_codec, tmp_path_factory):
    """Publish the tiny run as a checkpoint is published, and its codec, to the embedded Hub."""
    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    folder = tmp_path_factory.mktemp("published")
    api.create_repo(CODEC_REPOSITORY)
    revision = api.upload_folder(repo_id=CODEC_REPOSITORY, folder_path=str(tiny_codec)).oid
    DalleCollabForConditionalGeneration.from_pretrained(tiny_run).save_pretrained(folder)
    processor = DalleCollabProcessor.from_pretrained(tiny_run)
    processor.image_codec_repository, processor.image_codec_revision = CODEC_REPOSITORY, revision
    processor.save_pretrained(folder)
    copy_codec_code(folder)
    api.create_repo(REPOSITORY)
    api.upload_folder(repo_id=REPOSITORY, folder_path=str(folder))
    return folder


@pytest.fixture(scope="module")
def draw_elsewhere(hub, published, tmp_path_factory):
    """Return a function that runs the pipeline in an interpreter that cannot import the project."""
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "elsewhere.py").write_text(ELSEWHERE)
    environment = {**os.environ, **hub.environment()}
    environment |= {"HF_MODULES_CACHE": str(place / "modules"), "OMP_NUM_THREADS": "1"}

    def draw(model=REPOSITORY, *, missing=(), init=None, **call):
        options = [json.dumps(init or {}), json.dumps({"prompts": PROMPTS, "seed": 5, **call})]
        done = subprocess.run(
            [sys.executable, place / "elsewhere.py", str(model), *options],
            cwd=place,
            env=environment_without([*PROJECT, *missing], environment),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    return draw


@pytest.fixture(scope="module")
def installed(published, tiny_codec):
    return pipeline(
        "text-to-image",
        model=str(published),
        pipeline_class=InstalledTextToImagePipeline,
        codec=tiny_codec,
        device="cpu",
    )


@pytest.fixture(scope="module")
def expected_codes(published):
    model, processor = (loader.from_pretrained(published) for loader in (AutoModel, AutoProcessor))
    return model.generate_image_codes(
        **processor(text=PROMPTS), num_candidates=3, top_k=6, top_p=0.9, temperature=0.8, seed=5
    )


FEW = dict(num_images_per_prompt=3, top_k=6, top_p=0.9, temperature=0.8)


def expected_pixels(codec, codes):
    return (codec.decode(codes) * 255).round().to(torch.uint8)


@pytest.mark.slow
def test_where_only_torch_transformers_and_pillow_are_installed_pictures_are_the_decoded_codes(
    draw_elsewhere, expected_codes, tiny_codec
):
    hidden = packages_beside(ENOUGH)
    assert {"taming", "torchvision", "pytorch_lightning", "einops", "hivemind", "datasets", "gradio"} <= hidden
    drawn = draw_elsewhere(missing=hidden, **FEW)
    assert drawn["codes"] == expected_codes.tolist()
    expected = expected_pixels(VQGANCodec.from_pretrained(tiny_codec), expected_codes.flatten(0, 1))
    pixels = torch.tensor(drawn["pixels"]).view(6, 16, 16, 3).permute(0, 3, 1, 2)
    # The other process adds in another order, so that what lies between two shades may become either.
    for seen in (pixels, torch.tensor(drawn["decoded"])):
        differences = (seen - expected.long()).abs()
        assert differences.max() <= 1 and (differences > 0).float().mean() < 0.01


@pytest.mark.long
@pytest.mark.slow
def test_without_pillow_there_are_tensors_and_pictures_say_what_to_install(draw_elsewhere, expected_codes):
    hidden = packages_beside(["torch", "transformers"])
    assert "PIL" in hidden
    drawn = draw_elsewhere(missing=hidden, output_type="pt", **FEW)
    assert drawn["codes"] == expected_codes.tolist()
    assert torch.equal(torch.tensor(drawn["pixels"]).flatten(0, 1), torch.tensor(drawn["decoded"]))
    error = draw_elsewhere(missing=hidden, **FEW)["error"]
    assert error.startswith("ImportError: Pillow is not installed: pip install pillow.") and 'output_type="pt"' in error


@pytest.mark.long
@pytest.mark.slow
def test_a_codec_of_another_fingerprint_is_refused_where_only_transformers_is_installed(draw_elsewhere, other_codec):
    error = draw_elsewhere(init={"codec": str(other_codec)})["error"]
    fingerprint = VQGANCodec.from_pretrained(other_codec).fingerprint
    assert f"ValueError: Codec {other_codec} has fingerprint {fingerprint}, but {REPOSITORY} was trained on" in error
    assert f"Use the codec of {CODEC_REPOSITORY}." in error


@pytest.mark.long
@pytest.mark.slow
def test_a_saved_pipeline_is_whole_and_a_repository_without_the_codecs_code_is_explained(
    hub, draw_elsewhere, installed, tiny_codec, tmp_path, expected_codes
):
    assert installed(PROMPTS[0])
    installed.save_pretrained(tmp_path / "saved")
    drawn = draw_elsewhere(tmp_path / "saved", init={"codec": str(tiny_codec)}, **FEW)
    assert drawn["codes"] == expected_codes.tolist()
    for name in CODEC_CODE_FILES:
        (tmp_path / "saved" / name).unlink()
    error = draw_elsewhere(tmp_path / "saved")["error"]
    assert f"{tmp_path / 'saved'} has no vqgan_codec.py (" in error
    assert "expected the codec's code next to the model's" in error and 'output_type="codes"' in error


@pytest.fixture(scope="module")
def other_codec(tiny_codec, tmp_path_factory):
    codec = VQGANCodec.from_pretrained(tiny_codec)
    with torch.no_grad():
        codec.codebook[0, 0] += 1
    return codec.save_pretrained(tmp_path_factory.mktemp("parts") / "other")


def test_one_caption_gives_its_pictures_and_a_list_gives_a_list_of_them(installed, expected_codes):
    rows = installed(PROMPTS, seed=5, **FEW)
    expected = expected_pixels(installed.codec, expected_codes.flatten(0, 1))
    assert [len(row) for row in rows] == [3, 3]
    for picture, pixels in zip([*rows[0], *rows[1]], expected, strict=True):
        assert picture.mode == "RGB" and picture.size == (16, 16)
        assert np.array_equal(np.asarray(picture), pixels.permute(1, 2, 0).numpy())
    alone = installed(PROMPTS[0], seed=5, **FEW)
    assert [picture.tobytes() for picture in alone] == [picture.tobytes() for picture in rows[0]]
    assert len(installed(PROMPTS[0])) == 1


def test_options_of_the_pipeline_hold_for_its_calls_and_a_call_overrides_them(published, expected_codes):
    draw = pipeline(
        "text-to-image", model=str(published), pipeline_class=TextToImagePipeline, output_type="codes", seed=5, **FEW
    )
    assert torch.equal(draw(PROMPTS), expected_codes)
    assert torch.equal(draw(tuple(PROMPTS)), expected_codes)
    assert torch.equal(draw(PROMPTS[0], num_images_per_prompt=2), expected_codes[0, :2])
    assert not torch.equal(draw(PROMPTS, seed=6), expected_codes)


def test_tensors_are_the_pixels_of_the_pictures(installed):
    pixels = installed(PROMPTS, seed=5, output_type="pt", **FEW)
    assert pixels.shape == (2, 3, 3, 16, 16) and pixels.dtype == torch.uint8
    pictures = installed(PROMPTS[0], seed=5, **FEW)
    assert all(np.array_equal(np.asarray(a), b.permute(1, 2, 0)) for a, b in zip(pictures, pixels[0], strict=True))
    assert torch.equal(installed(PROMPTS[0], seed=5, output_type="pt", **FEW), pixels[0])


def test_many_pictures_are_decoded_in_parts(installed):
    codes = installed(PROMPTS, num_images_per_prompt=20, output_type="codes")
    pictures = installed(PROMPTS, num_images_per_prompt=20)
    expected = expected_pixels(installed.codec, codes[1])
    assert all(np.array_equal(np.asarray(a), b.permute(1, 2, 0)) for a, b in zip(pictures[1], expected, strict=True))


def test_transformers_asks_for_trust_before_it_runs_the_repositorys_pipeline(published):
    with pytest.raises(ValueError, match=r"trust_remote_code=True"):
        pipeline("text-to-image", model=str(published), device="cpu")


def test_the_installed_class_never_runs_the_repositorys_code(published):
    draw = pipeline("text-to-image", model=str(published), pipeline_class=TextToImagePipeline, device="cpu")
    with pytest.raises(ValueError, match=r"is installed code and runs none of .*InstalledTextToImagePipeline"):
        draw(PROMPTS)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "There is no prompt: expected a caption or a list of captions"),
        ([None], {}, r"Caption 0 is None \(NoneType\), expected a string"),
        ("a", {"output_type": "jpeg"}, "output_type is 'jpeg', expected one of pil, pt, codes"),
        ("a", {"num_images_per_prompt": 0}, "num_candidates is 0, expected at least 1"),
        ("a", {"top_p": 2}, "top_p is 2, expected a probability"),
    ],
)
def test_mistakes_are_explained(installed, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        installed(prompts, **options)


def test_a_codec_that_does_not_fit_is_refused(published, installed, other_codec, tiny_codec):
    parts = dict(model=installed.model, device="cpu")
    processor = DalleCollabProcessor.from_pretrained(published)
    with pytest.raises(ValueError, match=rf"Codec {other_codec} has fingerprint .*was trained on codes of"):
        InstalledTextToImagePipeline(**parts, processor=processor, codec=other_codec)(PROMPTS)
    processor.image_codec_repository = processor.image_codec_fingerprint = None
    with pytest.raises(ValueError, match=r"names no codec, .*codec=FOLDER_OR_REPOSITORY"):
        InstalledTextToImagePipeline(**parts, processor=processor)(PROMPTS)
    wide = VQGANCodec(dataclasses.replace(VQGANCodec.from_pretrained(tiny_codec).config, codebook_size=9))
    folder = wide.save_pretrained(other_codec.parent / "wide")
    with pytest.raises(ValueError, match=r"makes pictures of 16 codes out of 9, but .* draws 16 out of 12"):
        InstalledTextToImagePipeline(**parts, processor=processor, codec=folder)(PROMPTS)
