"""Prompts become the pictures that the plain steps make, the same for the same seed, and bad runs are explained."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import NoCheckpointError, load_text_to_image
from pipelines.tasks.text_to_image.generation.text_to_image import generate_images_for_prompts
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

FEW = GenerationOptions(num_candidates=6, keep=3, seed=5, sampling=SamplingOptions(top_k=8))
PROMPTS = ["a red star", "a green circle on the left", "a red star"]


@pytest.fixture(scope="module")
def bundle(tiny_run):
    return load_text_to_image(tiny_run)


@pytest.fixture(scope="module")
def drawn(bundle):
    return generate_images_for_prompts(bundle, PROMPTS, FEW)


def test_pictures_are_the_decoded_codes_that_the_clip_ranks_first(bundle, drawn):
    ids = bundle.processor(text=PROMPTS)["input_ids"]
    codes = bundle.model.generate_image_codes(ids, num_candidates=6, top_k=8, seed=5)
    for prompt, candidates, ranked in zip(PROMPTS, codes, drawn, strict=True):
        pictures = bundle.codec.decode(candidates)
        scores = bundle.reranker.scores(prompt, pictures).numpy()
        expected = np.argsort(-scores, kind="stable")[:3].tolist()
        assert [image.candidate_index for image in ranked] == expected
        for image, index in zip(ranked, expected, strict=True):
            assert image.score == pytest.approx(scores[index], abs=1e-4)
            assert torch.equal(image.image_codes, candidates[index])
            pixels = np.asarray(image.image, dtype=np.float32).transpose(2, 0, 1) / 255
            np.testing.assert_allclose(pixels, pictures[index].numpy(), atol=0.5 / 255 + 1e-4)


def test_the_same_seed_draws_the_same_pictures_whatever_the_batches(bundle, drawn):
    for batch_size in (1, 4):
        again = generate_images_for_prompts(bundle, PROMPTS, dataclasses.replace(FEW, batch_size=batch_size))
        for ranked, expected in zip(again, drawn, strict=True):
            assert [image.candidate_index for image in ranked] == [image.candidate_index for image in expected]
            assert all(torch.equal(a.image_codes, b.image_codes) for a, b in zip(ranked, expected, strict=True))


def test_another_seed_and_another_place_in_the_list_draw_other_pictures(bundle, drawn):
    other = generate_images_for_prompts(bundle, PROMPTS, dataclasses.replace(FEW, seed=6))
    assert not torch.equal(other[0][0].image_codes, drawn[0][0].image_codes)
    assert not torch.equal(drawn[2][0].image_codes, drawn[0][0].image_codes)


def test_one_prompt_is_the_first_of_many(bundle, drawn):
    alone = generate_images_for_prompts(bundle, PROMPTS[:1], FEW)[0]
    assert [image.image_codes.tolist() for image in alone] == [image.image_codes.tolist() for image in drawn[0]]
    assert alone[0].image.size == (16, 16) and alone[0].image.mode == "RGB"
    assert [image.score for image in alone] == sorted((image.score for image in alone), reverse=True)


def test_progress_goes_through_sampling_decoding_and_ranking(bundle):
    seen = []
    options = dataclasses.replace(FEW, batch_size=4)
    generate_images_for_prompts(bundle, PROMPTS[:2], options, on_progress=lambda *report: seen.append(report))
    stages = {stage: [(done, total) for name, done, total, _ in seen if name == stage] for stage, *_ in seen}
    assert list(stages) == ["sampling", "decoding", "ranking"]
    assert stages["sampling"][-1] == (2 * 6 * 16, 2 * 6 * 16)
    assert stages["decoding"] == [(4, 12), (6, 12), (10, 12), (12, 12)]
    assert stages["ranking"] == [(1, 2), (2, 2)]


def test_another_clip_takes_the_place_of_the_runs(tiny_run, tiny_clip, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder ./nobody. Expected a CLIP's folder"):
        load_text_to_image(tiny_run, clip="./nobody")
    assert isinstance(load_text_to_image(tiny_run, clip=tiny_clip).reranker, ClipReranker)


@pytest.mark.parametrize("prompts", [["a star", "  "], [""]])
def test_an_empty_prompt_is_refused(bundle, prompts):
    with pytest.raises(ValueError, match=rf"Prompt {len(prompts)} of {len(prompts)} is empty: say what"):
        generate_images_for_prompts(bundle, prompts, FEW)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_candidates": 0}, "0 candidates were requested: expected at least 1"),
        (
            {"num_candidates": 2, "keep": 4},
            "Cannot keep 4 of 2 candidates: keep 1 to 2, or draw",
        ),
        ({"keep": 0}, "Cannot keep 0 of 128 candidates"),
        ({"batch_size": 0}, "batch_size is 0: expected at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GenerationOptions(**settings)


def copy_of(folder, target, *, without=()):
    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*without))


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_without_weights_says_who_publishes_them(tiny_run, tmp_path):
    folder = copy_of(tiny_run, tmp_path / "young", without=("*.safetensors", "config.json"))
    (folder / "training_run.json").write_text("{}")
    with pytest.raises(NoCheckpointError, match=r"no checkpoint yet: wait for the auxiliary.*dalle-collab run assist"):
        load_text_to_image(folder)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no text-to-image model: expected config.json and model.safetensors"):
        load_text_to_image(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"There is no folder ./nowhere"):
        load_text_to_image("./nowhere")
    with pytest.raises(ValueError, match=r"is a folder and has no revision 'v1'. Leave out --revision"):
        load_text_to_image(tmp_path, revision="v1")


@pytest.mark.parametrize(("changed", "seen"), [("lacks", "lack output_bias"), ("has", "have the unknown an_adapter")])
def test_weights_that_lack_parameters_or_have_others_are_refused(tiny_run, tmp_path, changed, seen):
    folder = copy_of(tiny_run, tmp_path / "changed")
    tensors = load_file(folder / "model.safetensors")
    if changed == "lacks":
        del tensors["output_bias"]
    else:
        tensors["an_adapter"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"The weights of .*changed {seen}"):
        load_text_to_image(folder)


def test_damaged_weights_are_named_with_the_cure(tiny_run, tmp_path):
    folder = copy_of(tiny_run, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"weights of .*damaged do not fit its config.json or are damaged.*--revision"):
        load_text_to_image(folder)


def test_a_codec_with_another_fingerprint_is_refused(tiny_run, tiny_codec, tmp_path):
    codec = VQGANCodec.from_pretrained(tiny_codec)
    codec.post_quant_conv.bias.add_(1.0)
    codec.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=rf"other has fingerprint {codec.fingerprint}, but .* would be noise. Use the"):
        load_text_to_image(tiny_run, codec=tmp_path / "other")


def test_a_codec_of_other_sizes_is_refused_even_where_no_fingerprint_is_known(tiny_run, tiny_codec, tmp_path):
    folder = copy_of(tiny_run, tmp_path / "run")
    edit_json(folder / "processor_config.json", image_codec_fingerprint=None)
    config = dataclasses.replace(VQGANCodec.from_pretrained(tiny_codec).config, image_size=32)
    VQGANCodec(config).save_pretrained(tmp_path / "large")
    with pytest.raises(ValueError, match=r"makes pictures of 64 codes out of 12, but .* 16 codes out of 12"):
        load_text_to_image(folder, codec=tmp_path / "large")


def test_a_missing_codec_is_named(tiny_run, tmp_path):
    folder = copy_of(tiny_run, tmp_path / "run")
    edit_json(folder / "processor_config.json", image_codec_repository=None)
    with pytest.raises(ValueError, match=r"does not say which codec made its image codes. Name it: --codec"):
        load_text_to_image(folder)
    with pytest.raises(ValueError, match=r"no codec folder .*gone"):
        load_text_to_image(tiny_run, codec=tmp_path / "gone")
