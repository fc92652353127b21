"""Reads what an evaluation needs: the checkpoint, held-out and training records, the CLIP, feature extractors."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import httpx2
import torch

from hub_tools.foreign.json_texts import read_json
from hub_tools.printing.stage_progress import OnProgress
from hub_tools.run_files import TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.evaluation.attributes import Judge
from pipelines.features.evaluation.checkpoint_evaluation import EvaluationReferences, Records, evaluate_checkpoint
from pipelines.features.evaluation.features import check_specification, open_features
from pipelines.features.evaluation.perceptual import Lpips
from pipelines.features.evaluation.report import EvaluationReport, report_of
from pipelines.features.publishing.metrics.evaluation.held_out_losses import FEWEST_RECORDS
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext, load_drawing_parts, load_reranker
from pipelines.tasks.text_to_image.held_out_evaluation import held_out_records, training_records

logger = logging.getLogger(__name__)

CANNOT_BE_READ = (OSError, ValueError, httpx2.HTTPError)

TEXT_TO_IMAGE = "text-to-image"
Part = TypeVar("Part")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"
"""Weights in 8 bits, the rest in float32."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which checkpoint is evaluated, and how it computes."""

    place: str
    """Model Hub repository of a run, or a folder."""

    revision: str | None = None
    codec: str | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in (*PRECISIONS, INT8):
            raise ValueError(f"There is no precision {self.precision!r}. Expected {', '.join((*PRECISIONS, INT8))}.")

    def load(self, device: str) -> DrawingContext:
        """Load it; the errors are those of `load_drawing_parts`."""
        kind = "int8" if self.precision == INT8 else "published"
        parts = load_drawing_parts(self.place, revision=self.revision, codec=self.codec, device=device, weights=kind)
        if self.precision != INT8:
            parts.model.to(PRECISIONS[self.precision])
        return parts


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How much is read; ValueError for features that nobody extracts."""

    num_records: int
    num_training_records: int
    features: Sequence[str]
    clip: str | None = None
    judge: Judge | None = None

    def __post_init__(self) -> None:
        for text in self.features:
            check_specification(text)


def settings_of(place: str, revision: str | None = None) -> TrainingRun:
    """Return the settings of a run, from its repository or a folder with a checkpoint of it.

    Raises:
        ValueError: there is no such run.
        OSError, httpx2.HTTPError: a file or the Hub cannot be read.
    """
    if Path(place).is_dir():
        path = Path(place) / TRAINING_RUN_FILE
        if not path.is_file():
            raise ValueError(
                f"{place} has no {TRAINING_RUN_FILE}, which says what its dataset is. Expected a run's repository, or "
                "a folder with all files of it. Other weights can be compared: "
                "dalle-collab evaluate ORG/RUN --compare FOLDER"
            )
        return TrainingRun.from_mapping(read_json(path))
    return RunSnapshot.read(place, revision).run


def nothing_held_out(run: TrainingRun) -> ValueError:
    """Return the error that a run holds out nothing."""
    return ValueError(
        f"The run holds out nothing of {run.dataset_repository}, so there is nothing to measure with. Give the dataset "
        "a split named validation, or create the run with: run create --set held_out_share=0.01"
    )


def open_references(
    run: TrainingRun, parts: DrawingContext, reading: Reading, originals: torch.Tensor | None, device: str
) -> tuple[EvaluationReferences, dict[str, str]]:
    """Read what a run's checkpoints are measured with, and return why something is missing, by its name.

    Raises:
        ValueError: the run holds out no records.
        OSError, httpx2.HTTPError: the dataset cannot be read.
    """
    num_codes, left_out = parts.codec.config.num_codes, {}
    held_out = Records(*held_out_records(run, num_codes, reading.num_records))
    if not any(caption.strip() for caption in held_out.captions):
        raise nothing_held_out(run)
    if len(held_out) < FEWEST_RECORDS:
        logger.warning(
            "Only %d held-out records were found; with fewer than %d the intervals are wide, and FID says little.",
            len(held_out),
            FEWEST_RECORDS,
        )
    cure = " Name one that can be read: --clip"
    clip = _or_reason(
        lambda: load_reranker(parts.processor, reading.clip, device), "everything by CLIP", left_out, cure
    )
    where = torch.device(device)
    features = [
        _or_reason(
            lambda text=text: open_features(text, clip, where),
            f"fid@{text}, kid@{text}",
            left_out,
            errors=(*CANNOT_BE_READ, RuntimeError),
        )
        for text in reading.features
    ]
    training = None
    if clip is not None and reading.num_training_records > 0:
        training = Records(*training_records(run, num_codes, reading.num_training_records))
    lpips = None
    if originals is None:
        left_out["psnr, lpips, rfid, fid_originals"] = "no originals are given: --originals PICTURES"
    else:
        lpips = _or_reason(lambda: Lpips(parts.codec.config.image_size, where), "lpips", left_out)
    references = EvaluationReferences(
        held_out=held_out,
        training=training,
        originals=originals,
        lpips=lpips,
        judge=reading.judge,
        clip=clip,
        extractors=tuple(extractor for extractor in features if extractor is not None),
    )
    return references, left_out


def evaluate_pictures(
    run: TrainingRun,
    asked: Sequence[tuple[Subject, GenerationOptions]],
    reading: Reading,
    read_originals: Callable[[int], torch.Tensor | None],
    device: str,
    output: Path,
    on_progress: OnProgress,
) -> tuple[list[EvaluationReport], list[str]]:
    """Measure one checkpoint or several alike; return their reports, and the prompts that were drawn.

    `read_originals` gets the side of the codec's pictures, and returns `(picture, 3, side, side)` uint8 or None. What
    is drawn is kept in `output`. The errors are those of `Subject.load` and `open_references`.
    """
    loaded = [subject.load(device) for subject, _ in asked]
    originals = read_originals(loaded[0].codec.config.image_size)
    references, left_out = open_references(run, loaded[0], reading, originals, device)
    reports = []
    for (subject, options), parts in zip(asked, loaded, strict=True):
        started = time.monotonic()
        measurement = evaluate_checkpoint(parts, references, options, output / "drawn", on_progress)
        facts = dict(asdict(subject), name=parts.name, epoch=parts.epoch, weights=measurement.weights)
        settings = dict(
            options.facts(),
            num_records=len(references.held_out),
            device=str(parts.model.device),
            features=[extractor.name for extractor in references.extractors],
        )
        reports.append(report_of(facts, settings, measurement, left_out, started))
    return reports, [caption for caption in references.held_out.captions if caption.strip()]


def _or_reason(
    opened: Callable[[], Part], names: str, left_out: dict[str, str], cure: str = "", errors: tuple = CANNOT_BE_READ
) -> Part | None:
    """Return what was opened; None if it cannot be, and why goes beside the names of the figures that are missing."""
    try:
        return opened()
    except errors as error:
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        left_out[names] = f"{first_line}{cure}"
        return None
