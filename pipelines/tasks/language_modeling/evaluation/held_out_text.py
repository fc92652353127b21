"""How good a language model's checkpoint is: loss and perplexity on held-out text."""

import dataclasses
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from hub_tools.checks import check_loaded
from hub_tools.printing.stage_progress import OnProgress
from hub_tools.run_files import MODEL_FILES
from pipelines.core.run.task import Batch, TrainingTask, num_samples
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.evaluation.figures import LOWER
from pipelines.features.evaluation.measurement import Measurement
from pipelines.features.evaluation.opening import PRECISIONS, Subject, nothing_held_out
from pipelines.features.held_out_loss import sample_losses, weights_digest
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.features.publishing.metrics.evaluation.held_out_losses import perplexity
from pipelines.tasks.choice import open_task

MODELS = {"fill-mask": AutoModelForMaskedLM, "text-generation": AutoModelForCausalLM}


def open_language_model(subject: Subject, run: TrainingRun, device: str) -> PreTrainedModel:
    """Load a checkpoint of a language run, or other weights for the same task.

    Raises:
        ValueError: the weights are damaged, or of another kind of model.
        OSError: a file or the Hub cannot be read.
    """
    folder = fetch_model(subject.place, revision=subject.revision, patterns=MODEL_FILES)
    model, found = MODELS[run.task].from_pretrained(folder, trust_remote_code=False, output_loading_info=True)
    check_loaded(model, found, subject.place)
    return model.to(device, PRECISIONS[subject.precision]).eval()


def held_out_task(run: TrainingRun, place: str, num_records: int) -> TrainingTask:
    """Return the run's task, whose evaluation has up to `num_records` sequences."""
    return open_task(dataclasses.replace(run, num_evaluation_records=num_records), place)


def evaluate_language_model(
    task: TrainingTask, batches: Sequence[Batch], model: PreTrainedModel, on_progress: OnProgress
) -> Measurement:
    """Measure a model on the held-out batches of a run's task, sequence by sequence.

    Raises:
        ValueError: the run holds out nothing.
    """
    number = sum(map(num_samples, batches))
    if not number:
        raise nothing_held_out(task.run)
    totals, weights = [], []
    for total, weight in sample_losses(task, model, batches):
        totals.append(total)
        weights.append(weight)
        on_progress("reading", len(totals), number, "held-out sequences")
    result = Measurement(weights=weights_digest(model))
    # The mean of these is the loss over all tokens, and they can be drawn again and paired.
    losses = torch.tensor(totals, dtype=torch.float64) * number / sum(weights)
    result.add_items("loss", "sequences", LOWER, "Nats per predicted token of held-out text, as trained.", losses)
    loss = result.figures[-1]
    value, low, high = map(perplexity, (loss.value, loss.low, loss.high))
    meaning = "The exponential of the loss."
    result.figures.append(
        dataclasses.replace(loss, name="perplexity", meaning=meaning, value=value, low=low, high=high)
    )
    return result
