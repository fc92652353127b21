"""How good a text-to-image checkpoint is: loss, pictures against held-out ones, fit to the prompt, variety, copying."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hub_tools.printing.stage_progress import OnProgress
from pipelines.features.evaluation.attributes import Judge, measure_attributes
from pipelines.features.evaluation.codec_evaluation import measure_codec
from pipelines.features.evaluation.drawn_pictures import draw
from pipelines.features.evaluation.features import CLIP, FeatureExtractor
from pipelines.features.evaluation.figures import HIGHER, LOWER, NEITHER, in_chunks
from pipelines.features.evaluation.measurement import PICTURES_AT_ONCE, Measurement
from pipelines.features.evaluation.perceptual import Lpips
from pipelines.features.evaluation.set_distances import cmmd, frechet_distance, kernel_distance
from pipelines.features.held_out_loss import weights_digest
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext

CLIP_SCORE_SCALE = 100.0


@dataclass(frozen=True)
class Records:
    """Captions and image codes of a dataset."""

    captions: Sequence[str]
    image_codes: torch.Tensor
    """`(record, image)` int64."""

    def __len__(self) -> int:
        return len(self.captions)


@dataclass(frozen=True, kw_only=True)
class EvaluationReferences:
    """What a checkpoint is measured with."""

    held_out: Records
    training: Records | None
    """Records that were trained on; None: copying is not looked for."""

    originals: torch.Tensor | None
    """Pictures that no codec has changed, `(picture, 3, side, side)` uint8; None: there are none."""

    lpips: Lpips | None
    """None: originals are not compared by it."""

    judge: Judge | None
    """Tells which attributes of a caption a picture shows; None: there is no judge."""

    clip: ClipReranker | None
    extractors: Sequence[FeatureExtractor]


def evaluate_checkpoint(
    parts: DrawingContext,
    references: EvaluationReferences,
    options: GenerationOptions,
    folder: Path,
    on_progress: OnProgress,
) -> Measurement:
    """Measure a checkpoint with `num_candidates` pictures of each prompt.

    What is drawn is kept in `folder`, so that the same call goes on after an interruption.
    """
    result, held_out = Measurement(weights=weights_digest(parts.model)), references.held_out
    _measure_losses(result, parts, held_out, on_progress)
    prompts = [caption for caption in held_out.captions if caption.strip()]
    codes = draw(
        parts,
        result.weights,
        prompts,
        options=options,
        folder=folder,
        on_progress=on_progress,
    )
    decode = _decoder(parts)
    result.pictures = in_chunks(decode, codes[:, 0], PICTURES_AT_ONCE)
    reference = in_chunks(decode, held_out.image_codes, PICTURES_AT_ONCE)
    if references.judge is not None:
        is_prompt = torch.tensor([bool(caption.strip()) for caption in held_out.captions])
        on_progress("judging", 0, None, "attributes")
        drawings = (in_chunks(decode, drawing, PICTURES_AT_ONCE) for drawing in codes.unbind(1))
        measure_attributes(result, references.judge, prompts, drawings, reference[is_prompt])
    originals = {}
    if references.originals is not None:
        originals = measure_codec(result, parts.codec, references.originals, references.extractors, references.lpips)
    for extractor in references.extractors:
        on_progress("comparing", 0, None, f"pictures by {extractor.name}")
        drawn = torch.stack(
            [_features(extractor, decode, codes[:, index]) for index in range(options.num_candidates)], dim=1
        )  # (prompt, drawing, feature)
        expected = in_chunks(lambda images, look=extractor: look(images.float()), reference, PICTURES_AT_ONCE)
        _measure_distances(result, extractor.name, drawn, expected)
        if extractor.name in originals:
            result.add_drawings(
                f"fid_originals@{extractor.name}", "drawings", LOWER,
                "Fréchet distance to originals that no codec has changed; `rfid` is the codec's share.",
                [frechet_distance(each, originals[extractor.name]) for each in drawn.unbind(1)],
            )  # fmt: skip
        if extractor.name == CLIP and references.clip is not None:
            _measure_with_clip(result, references, prompts, drawn, expected, decode)
    return result


@torch.inference_mode()
def _measure_losses(result: Measurement, parts: DrawingContext, records: Records, on_progress: OnProgress) -> None:
    """Compute the losses record by record: the model returns means over a batch."""
    input_ids = torch.as_tensor(parts.processor(text=list(records.captions))["input_ids"])
    losses = []
    for index in range(len(records)):
        place = slice(index, index + 1)
        output = parts.model(
            input_ids=input_ids[place].to(parts.model.device),
            image_codes=records.image_codes[place].to(parts.model.device),
            return_logits=False,
        )
        losses.append([output.loss.item(), output.text_loss.item(), output.image_loss.item()])
        on_progress("reading", index + 1, len(records), "held-out records")
    total, caption, picture = torch.tensor(losses, dtype=torch.float64).T
    result.add_items("loss", "records", LOWER, "Loss on held-out records, in nats, as trained.", total)
    result.add_items("caption_loss", "records", LOWER, "Nats per caption token of held-out records.", caption)
    result.add_items("picture_loss", "records", LOWER, "Nats per picture code of held-out records.", picture)


def _measure_distances(result: Measurement, name: str, drawn: torch.Tensor, expected: torch.Tensor) -> None:
    for kind, distance, what, method in (
        ("fid", frechet_distance, "Fréchet", "FID, 2017"),
        ("kid", kernel_distance, "Kernel", "KID, 2018"),
    ):
        meaning = f"{what} distance to held-out pictures, through the codec ({method})."
        values = [distance(each, expected) for each in drawn.unbind(1)]
        result.add_drawings(f"{kind}@{name}", "drawings", LOWER, meaning, values)


def _measure_with_clip(
    result: Measurement,
    references: EvaluationReferences,
    prompts: Sequence[str],
    drawn: torch.Tensor,
    expected: torch.Tensor,
    decode: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    clip, held_out, num_drawings = references.clip, references.held_out, drawn.shape[1]
    assert clip is not None, "the caller has checked it"
    distances = [cmmd(each, expected) for each in drawn.unbind(1)]
    result.add_drawings("cmmd", "drawings", LOWER, "Distance to held-out pictures by CLIP (CMMD, 2024).", distances)
    texts = clip.text_embeddings(prompts).float().cpu()  # (prompt, embedding)
    meaning = "100 times the cosine of picture and prompt by CLIP, not below 0 (CLIPScore, Hessel et al. 2021)."
    result.add_items("clip_score", "prompts", HIGHER, meaning, _clip_scores(drawn, texts[:, None]).mean(1))
    is_prompt = torch.tensor([bool(caption.strip()) for caption in held_out.captions])
    scores, the_same = _clip_scores(expected[is_prompt], texts), "The same of held-out pictures, for comparison."
    result.add_items("clip_score_held_out", "records", NEITHER, the_same, scores)
    if num_drawings > 1:
        sums = drawn.sum(1)  # the mean cosine of all pairs follows from the length of the sum of unit vectors
        pairs = (sums.square().sum(-1) - num_drawings) / (num_drawings * (num_drawings - 1))
        meaning = "1 minus the mean cosine, by CLIP, of pictures drawn for one prompt."
        result.add_items("diversity", "prompts", NEITHER, meaning, 1 - pairs)
    if references.training is not None and len(references.training):
        seen = _features(lambda images: clip.image_embeddings(images).float(), decode, references.training.image_codes)
        name = "nearest_training_picture"
        meaning = "Cosine, by CLIP, of a drawn picture and the most similar training picture: 1 is a copy."
        result.add_items(name, "prompts", NEITHER, meaning, (drawn @ seen.T).amax(-1).mean(1))
        result.add_items(f"{name}_held_out", "records", NEITHER, the_same, (expected @ seen.T).amax(-1))


def _clip_scores(pictures: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
    return CLIP_SCORE_SCALE * (pictures * texts).sum(-1).clamp(min=0)


def _decoder(parts: DrawingContext) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that decodes codes; half precision is enough for pictures of 8 bits, and half the memory."""
    return lambda codes: parts.codec.decode(codes.to(parts.model.device)).clamp(0, 1).half()


def _features(
    extractor: Callable[[torch.Tensor], torch.Tensor],
    decode: Callable[[torch.Tensor], torch.Tensor],
    codes: torch.Tensor,
) -> torch.Tensor:
    return in_chunks(lambda chunk: extractor(decode(chunk).float()), codes, PICTURES_AT_ONCE)
