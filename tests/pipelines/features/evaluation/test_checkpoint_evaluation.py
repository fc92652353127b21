"""Equal checkpoints have equal figures, worse ones have worse, and an interrupted evaluation goes on."""

import copy
import dataclasses
import io
import json
import math

import pytest
import torch
from rich.console import Console

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.evaluation.checkpoint_evaluation import evaluate_checkpoint
from pipelines.features.evaluation.comparison import compare
from pipelines.features.evaluation.drawn_pictures import PROMPTS_PER_CHUNK
from pipelines.features.evaluation.features import check_specification, open_features
from pipelines.features.evaluation.report import (
    EvaluationReport,
    comparison_page,
    describe,
    figures_notes,
    figures_table,
    write_report,
)
from pipelines.features.held_out_loss import weights_digest
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions

pytestmark = pytest.mark.slow
OPTIONS = GenerationOptions(num_candidates=3, keep=1, batch_size=32, sampling=SamplingOptions(top_k=None))


def silent(*_):
    pass


@pytest.fixture(scope="module")
def measured(parts, references, tmp_path_factory):
    return evaluate_checkpoint(parts, references, OPTIONS, tmp_path_factory.mktemp("drawn"), silent)


def values(measurement):
    return {figure.name: figure.value for figure in measurement.figures}


def test_all_figures_are_there_with_their_intervals(measured):
    assert {figure.name: figure.items for figure in measured.figures} == {
        "loss": "records", "caption_loss": "records", "picture_loss": "records", "psnr": "originals",
        "rfid@clip": "originals", "fid@clip": "drawings", "kid@clip": "drawings", "fid_originals@clip": "drawings",
        "cmmd": "drawings", "clip_score": "prompts", "clip_score_held_out": "records", "diversity": "prompts",
        "nearest_training_picture": "prompts", "nearest_training_picture_held_out": "records",
    }  # fmt: skip
    assert all(math.isfinite(figure.value) and figure.low <= figure.value <= figure.high for figure in measured.figures)
    found = values(measured)
    assert 0 <= found["diversity"] <= 2 and 0.9 <= found["nearest_training_picture"] <= 1 + 1e-6
    assert found["clip_score"] == pytest.approx(found["clip_score_held_out"], rel=0.2)
    assert measured.pictures.shape == (48, 3, 128, 128)


def test_losses_are_those_of_the_whole_batch(parts, references, measured):
    held_out = references.held_out
    ids = torch.as_tensor(parts.processor(text=list(held_out.captions))["input_ids"])
    with torch.no_grad():
        whole = parts.model(input_ids=ids, image_codes=held_out.image_codes, return_logits=False)
    found = values(measured)
    assert found["loss"] == pytest.approx(whole.loss.item(), rel=1e-5)
    assert found["caption_loss"] == pytest.approx(whole.text_loss.item(), rel=1e-5)
    assert found["picture_loss"] == pytest.approx(whole.image_loss.item(), rel=1e-5)


@pytest.mark.long
def test_identical_checkpoints_have_identical_figures_but_for_rounding_in_other_batches(
    parts, references, measured, tmp_path
):
    again = evaluate_checkpoint(parts, references, dataclasses.replace(OPTIONS, batch_size=5), tmp_path, silent)
    are_equal = [torch.equal(one, other) for one, other in zip(measured.pictures, again.pictures, strict=True)]
    assert sum(are_equal) >= len(are_equal) - 2, "of 9,000 codes hardly one lies within rounding of another choice"
    undrawn = ("loss", "caption_loss", "picture_loss", "psnr", "rfid@clip")
    assert [values(again)[name] for name in undrawn] == pytest.approx(
        [values(measured)[name] for name in undrawn], rel=1e-6
    )
    assert all(item.verdict == "same" for item in compare(measured, again))


def test_identical_checkpoints_have_identical_figures(parts, references, measured, tmp_path):
    again = evaluate_checkpoint(parts, references, OPTIONS, tmp_path, silent)
    assert values(again) == pytest.approx(values(measured), rel=1e-6)


def test_what_has_been_drawn_is_not_drawn_again_and_damage_is(parts, references, measured, tmp_path):
    evaluate_checkpoint(parts, references, OPTIONS, tmp_path, silent)
    first, *others = sorted(tmp_path.glob("*.safetensors"))
    assert 1 + len(others) == math.ceil(48 / PROMPTS_PER_CHUNK)
    written = {path: path.stat().st_mtime_ns for path in others}
    first.write_bytes(first.read_bytes()[:-5])
    again = evaluate_checkpoint(parts, references, OPTIONS, tmp_path, silent)
    assert {path: path.stat().st_mtime_ns for path in others} == written
    assert values(again) == pytest.approx(values(measured), rel=1e-6)


@pytest.mark.long
def test_another_sampler_or_model_does_not_take_what_others_have_drawn(parts, references, with_noise, tmp_path):
    evaluate_checkpoint(parts, references, OPTIONS, tmp_path, silent)
    number = len(list(tmp_path.iterdir()))
    evaluate_checkpoint(with_noise(0.01), references, OPTIONS, tmp_path, silent)
    colder = dataclasses.replace(OPTIONS, sampling=dataclasses.replace(OPTIONS.sampling, temperature=0.5))
    evaluate_checkpoint(parts, references, colder, tmp_path, silent)
    assert len(list(tmp_path.iterdir())) == 3 * number


@pytest.mark.long
def test_the_more_noise_is_in_the_weights_the_worse_the_figures_are(parts, references, measured, with_noise, tmp_path):
    found = [values(measured)]
    for share in (0.3, 0.5, 0.7):
        noisy = evaluate_checkpoint(with_noise(share), references, OPTIONS, tmp_path, silent)
        found.append(values(noisy))
        verdicts = {item.name: item.verdict for item in compare(measured, noisy)}
        assert verdicts["fid@clip"] == "first" and verdicts["clip_score"] in ("first", "same")
        # Drawings show a little noise before the loss does.
        assert share < 0.5 or verdicts["picture_loss"] == verdicts["loss"] == "first"
    for name in ("loss", "picture_loss", "fid@clip", "kid@clip", "cmmd"):
        assert [item[name] for item in found] == sorted(item[name] for item in found), name
    assert found[-1]["clip_score"] < found[0]["clip_score"]


def test_half_precision_is_another_model(parts):
    digest = weights_digest(parts.model)
    assert weights_digest(parts.model) == digest
    assert weights_digest(copy.deepcopy(parts.model).to(torch.bfloat16)) != digest


def test_weights_of_8_bits_are_told_apart(parts):
    def in_8_bits(factor):
        model = copy.deepcopy(parts.model)
        with torch.no_grad():
            model.model.stack.groups[0].attention.qkv.weight.mul_(factor)
        model.use_int8_weights()
        return weights_digest(model)

    assert in_8_bits(1) == in_8_bits(1) and len({weights_digest(parts.model), in_8_bits(1), in_8_bits(2)}) == 3


def test_a_report_can_be_read_and_a_page_needs_no_other_file(parts, measured, references, tmp_path):
    subject = dict(name="org/trained", revision=None, epoch=3, codec=None, precision="float32")
    report = EvaluationReport(
        subject=subject, settings=dict(top_k=None, temperature=1.0), command="dalle-collab evaluate x",
        measurement=measured, left_out={"fid@inception": "no network"}, seconds=1.0, peak_memory_bytes=10,
    )  # fmt: skip
    facts = json.loads(write_report(report, tmp_path).read_text())
    assert {figure["name"] for figure in facts["figures"]} == set(values(measured))
    assert facts["left_out"] and facts["made_with"]["torch-fidelity"] and facts["command"].startswith("dalle-collab")
    assert figures_table(report).row_count == len(figures_notes(report)) == len(measured.figures) + 1
    (console := Console(width=80, file=io.StringIO())).print(figures_table(report))
    shown = console.file.getvalue()
    assert all(item.interval in shown and item.basis in shown for item in measured.figures)
    prompts = ["<script>alert(1)</script>", *references.held_out.captions[1:]]
    page = comparison_page((describe(report), "b"), prompts, (measured, measured), compare(measured, measured))
    assert "<script>" not in page and "&lt;script&gt;" in page and "http" not in page.replace("<!doctype", "")
    assert page.count("data:image/png;base64,") == 2 * 48 and "org/trained, epoch 3, float32, temperature 1.0" in page


def test_without_clip_or_originals_the_rest_is_computed(parts, references, tmp_path):
    bare = dataclasses.replace(references, clip=None, extractors=(), originals=None, training=None)
    found = evaluate_checkpoint(parts, bare, dataclasses.replace(OPTIONS, num_candidates=1), tmp_path, silent)
    assert set(values(found)) == {"loss", "caption_loss", "picture_loss"}


@pytest.mark.parametrize("text", ["", "clip:x", "transformers", "fid", "transformers:"])
def test_an_unknown_feature_extractor_is_named_with_those_that_are_known(text):
    with pytest.raises(ValueError, match=r"is no feature extractor\. Expected clip, inception"):
        check_specification(text)


def test_inception_takes_weights_from_a_file_and_says_if_they_are_none(tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    with pytest.raises(Exception, match=r"weights|pickle|Weights|load|PytorchStreamReader|Unpickl"):
        open_features(f"inception:{tmp_path / 'weights.pth'}", None, torch.device("cpu"))
    with pytest.raises(ValueError, match="CLIP could not be loaded"):
        open_features("clip", None, torch.device("cpu"))
