"""What a language run's checkpoints are measured with, and all figures of one of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from datasets.exceptions import DatasetsError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hub_tools.one_line_errors import explain_error
from hub_tools.printing.stage_progress import OnProgress
from pipelines.core.run.task import Batch, TrainingTask, num_samples
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.evaluation.measurement import Measurement
from pipelines.features.evaluation.opening import Subject
from pipelines.features.held_out_loss import weights_digest
from pipelines.tasks.language_modeling.evaluation.classification import METRICS, LanguageContext, measure_classification
from pipelines.tasks.language_modeling.evaluation.finetuning import ClassifierOptions
from pipelines.tasks.language_modeling.evaluation.held_out_text import (
    evaluate_language_model,
    held_out_task,
    open_language_model,
)
from pipelines.tasks.language_modeling.evaluation.labelled_source import LabelledSource
from pipelines.tasks.language_modeling.evaluation.labelled_text import LabelledText, read_labelled_text
from pipelines.tasks.language_modeling.model import num_positions
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings
from pipelines.tasks.language_modeling.tokenizer import read_tokenizer

CANNOT = (OSError, ValueError, httpx2.HTTPError, DatasetsError)
"""Errors in reading for which a part of an evaluation is left out, and the rest computed."""


@dataclass(frozen=True, kw_only=True)
class LanguageReferences:
    """What a language run's checkpoints are measured with, all read."""

    task: TrainingTask
    batches: Sequence[Batch]
    """Held-out text of the run."""

    labelled: Sequence[LabelledText]
    options: ClassifierOptions
    left_out: dict[str, str]
    """Labelled datasets that cannot be used, and why."""

    @property
    def max_tokens(self) -> int:
        """Tokens of the run's longest sequence."""
        return LanguageSettings.from_mapping(self.task.run.task_settings).sequence_length

    def facts(self) -> dict[str, object]:
        """Return how much was read, and how classifiers are fine-tuned, as JSON values."""
        facts: dict[str, object] = dict(num_records=sum(map(num_samples, self.batches)))
        if self.labelled:
            facts["finetuning"] = dataclasses.asdict(self.options)
            facts["datasets"] = [
                dict(dataclasses.asdict(text.source), classes=len(text.classes), **text.sizes) for text in self.labelled
            ]
        return facts


@dataclass(frozen=True, kw_only=True)
class LanguageCheckpoint:
    """A language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    why_none: str = ""
    """Why there is no tokenizer that can be used: no classifier can be fine-tuned then."""


def open_language_checkpoint(subject: Subject, run: TrainingRun, place: str, device: str) -> LanguageCheckpoint:
    """Load a checkpoint with its own tokenizer, or that of the run at `place` for a folder that has none.

    Raises:
        ValueError: the weights are damaged, or of another kind of model.
        OSError: a file or the Hub cannot be read.
    """
    model = open_language_model(subject, run, device)
    folder = Path(subject.place)
    is_bare = folder.is_dir() and not any(folder.glob("tokenizer*"))
    try:
        tokenizer = read_tokenizer(place) if is_bare else read_tokenizer(subject.place, subject.revision)
    except CANNOT as error:
        return LanguageCheckpoint(model=model, tokenizer=None, why_none=explain_error(error))
    if len(tokenizer) > model.config.vocab_size:
        why = f"The tokenizer of {subject.place} has {len(tokenizer)} tokens, the model {model.config.vocab_size}."
        return LanguageCheckpoint(model=model, tokenizer=None, why_none=why)
    return LanguageCheckpoint(model=model, tokenizer=tokenizer)


def open_language_references(
    run: TrainingRun,
    place: str,
    num_records: int,
    sources: Sequence[LabelledSource],
    options: ClassifierOptions,
    on_progress: OnProgress,
) -> LanguageReferences:
    """Read held-out and labelled text; datasets that cannot be used are left out."""
    labelled, left_out = [], {}
    for number, source in enumerate(sources):
        on_progress("fetching", number, len(sources), f"labelled datasets, now {source.name}")
        try:
            labelled.append(read_labelled_text(source, options.amounts))
        except CANNOT as error:
            left_out[_figure_of(source)] = explain_error(error)
        on_progress("fetching", number + 1, len(sources), "labelled datasets")
    task = held_out_task(run, place, num_records)
    return LanguageReferences(
        task=task, batches=task.held_out_batches(), labelled=labelled, options=options, left_out=left_out
    )


def evaluate_language(
    references: LanguageReferences, checkpoint: LanguageCheckpoint, folder: Path, on_progress: OnProgress
) -> tuple[Measurement, dict[str, str]]:
    """Return the figures of a checkpoint, and what is left out and why. The Hub is not needed.

    Raises:
        ValueError: the run holds out nothing, and no labelled dataset was asked for.
    """
    model, left_out = checkpoint.model, dict(references.left_out)
    try:
        result = evaluate_language_model(references.task, references.batches, model, on_progress)
    except ValueError as error:
        if not references.labelled and not left_out:
            raise
        result = Measurement(weights=weights_digest(model))
        left_out["loss, perplexity"] = explain_error(error)
    for text in references.labelled:
        try:
            parts = _parts(references, checkpoint)
            measure_classification(result, parts, text, references.options, folder, on_progress)
        except ValueError as error:
            left_out[_figure_of(text.source)] = explain_error(error)
    return result, left_out


def _figure_of(source: LabelledSource) -> str:
    return f"{METRICS[source.kind]}@{source.name}"


def _parts(references: LanguageReferences, checkpoint: LanguageCheckpoint) -> LanguageContext:
    if checkpoint.tokenizer is None:
        raise ValueError(checkpoint.why_none)
    longest = references.max_tokens
    return LanguageContext(
        model=checkpoint.model,
        tokenizer=checkpoint.tokenizer,
        sees_both_sides=references.task.run.task == FILL_MASK,
        max_tokens=min(longest, num_positions(checkpoint.model.config) or longest),
    )
