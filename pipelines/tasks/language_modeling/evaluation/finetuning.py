"""A short fine-tuning of a language model as a classifier of tokens or of sentences: the same for the same seed."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from pipelines.tasks.language_modeling.evaluation.labelled_samples import LabelledSample
from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS
from pipelines.tasks.language_modeling.evaluation.labelled_text import FEWEST_EXAMPLES
from pipelines.tasks.language_modeling.samples import IGNORED, to_batch

CLASSIFIERS = {TOKENS: AutoModelForTokenClassification, SENTENCES: AutoModelForSequenceClassification}
BATCH_SIZE = 16
WARMUP_SHARE = 0.1
WEIGHT_DECAY = 0.01
POOLER = "pooler"
"""What a classifier of sentences may have that the language model has not, or the other way round."""


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions:
    """How classifiers are fine-tuned, all alike."""

    num_training: int = 1000
    """Most examples to train on."""

    num_validation: int = 250
    """Most examples to choose the learning rate with."""

    num_test: int = 1000
    """Most examples to measure with."""

    num_seeds: int = 3
    """How often it is repeated with another order, dropout and head."""

    seed: int = 0
    """The first of these seeds."""

    num_passes: int = 5
    """Passes over the training examples."""

    learning_rates: tuple[float, ...] = (3e-5, 2e-4, 1e-3)
    """Peak learning rates of AdamW, of which the one that is best on validation examples is used."""

    max_tokens: int = 128
    """Tokens of the longest sequence; what is longer is cut off."""

    @property
    def amounts(self) -> dict[str, int]:
        """Most examples by part."""
        return dict(train=self.num_training, validation=self.num_validation, test=self.num_test)

    def __post_init__(self) -> None:
        if min(self.num_training, self.num_validation, self.num_test) < FEWEST_EXAMPLES:
            raise ValueError(
                f"Expected {FEWEST_EXAMPLES} examples or more to train, to choose and to test; got {self}."
            )
        if min(self.num_seeds, self.num_passes, self.max_tokens) < 1:
            raise ValueError(f"Expected 1 seed, pass and token or more; got {self}.")
        if not self.learning_rates or not all(0 < rate < 1 for rate in self.learning_rates):
            raise ValueError(f"learning_rates are {self.learning_rates}; expected numbers between 0 and 1.")


def new_classifier(
    kind: str, num_classes: int, language_model: PreTrainedModel, pad_token_id: int, seed: int, *, is_pretrained: bool
) -> PreTrainedModel:
    """Return a classifier of a language model's architecture, float32.

    All parameters are random, by the seed; if `is_pretrained`, those that the language model has are then replaced by
    its own, so that the head is the same with and without pretraining.

    Raises:
        ValueError: transformers has no such classifier of this architecture, or it shares no parameters with it.
    """
    config = copy.deepcopy(language_model.config)
    config.num_labels, config.pad_token_id, config.use_cache = num_classes, pad_token_id, False
    config.problem_type = None  # one class of several: the loss of all others is another one
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            classifier = CLASSIFIERS[kind].from_config(config, dtype=torch.float32, trust_remote_code=False)
        except ValueError as error:
            raise ValueError(f"transformers has no model for {kind} of type {config.model_type}.") from error
    classifier.to(language_model.device)
    if is_pretrained:
        _take_over(classifier, language_model)
    return classifier


def _take_over(classifier: PreTrainedModel, language_model: PreTrainedModel) -> None:
    body = classifier.base_model
    if body is classifier or language_model.base_model is language_model:
        raise ValueError(f"The body of a model of type {classifier.config.model_type} cannot be told from its head.")
    missing, unexpected = body.load_state_dict(language_model.base_model.state_dict(), strict=False)
    if strange := [name for name in (*missing, *unexpected) if POOLER not in name]:
        raise ValueError(
            f"The language model and the classifier of type {classifier.config.model_type} do not share "
            f"{', '.join(strange[:3])}."
        )


class _StepReports(TrainerCallback):
    """Tells how many steps are done, but for the last one."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.on_step = on_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: object, **others: object) -> None:
        if state.global_step < state.max_steps:
            self.on_step(state.global_step)


def fine_tune(
    classifier: PreTrainedModel,
    samples: Sequence[LabelledSample],
    tokenizer: PreTrainedTokenizerBase,
    options: ClassifierOptions,
    *,
    learning_rate: float,
    seed: int,
    folder: Path,
    on_step: Callable[[int], None],
) -> Trainer:
    """Train a classifier in place with a short warm-up and a linear decay; return its trainer, for `predict`.

    folder: made if it is not there; nothing is left in it.
    """
    on_cpu = classifier.device.type == "cpu"
    batch_size = BATCH_SIZE // (1 if on_cpu else torch.cuda.device_count() or 1)
    with torch.random.fork_rng():
        arguments = TrainingArguments(
            str(folder), num_train_epochs=options.num_passes, learning_rate=learning_rate, seed=seed,
            per_device_train_batch_size=batch_size, per_device_eval_batch_size=batch_size, warmup_steps=WARMUP_SHARE,
            weight_decay=WEIGHT_DECAY, use_cpu=on_cpu, dataloader_pin_memory=not on_cpu, save_strategy="no",
            logging_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            classifier,
            arguments,
            lambda rows: to_batch([{name: torch.tensor(row[name]) for name in row} for row in rows], tokenizer),
            [sample.features for sample in samples],
            callbacks=[_StepReports(on_step)],
            preprocess_logits_for_metrics=lambda outputs, labels: _first(outputs).argmax(-1),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


def _first(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the logits: some models, or a checkpoint's settings, give hidden states after them."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def predict(trainer: Trainer, samples: Sequence[LabelledSample]) -> list[list[int]]:
    """Return the likeliest class for every label of every sample."""
    found = trainer.predict([sample.features for sample in samples])
    rows = (array.reshape(len(samples), -1) for array in (found.predictions, found.label_ids))
    return [classes[labels != IGNORED].tolist() for classes, labels in zip(*rows, strict=True)]
