"""A short fine-tuning of a language model as a classifier of tokens or of sentences: the same for the same seed."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from pipelines.evaluation.language.labelled_samples import LabelledSample
from pipelines.evaluation.language.labelled_source import SENTENCES, TOKENS
from pipelines.evaluation.language.labelled_text import FEWEST_EXAMPLES
from pipelines.training.tasks.language_modeling.samples import IGNORED, to_batch

CLASSIFIERS = {TOKENS: AutoModelForTokenClassification, SENTENCES: AutoModelForSequenceClassification}
BATCH_SIZE = 16
WARMUP_SHARE = 0.1
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
POOLER = "pooler"
"""What a classifier of sentences may have that the language model has not, or the other way round."""


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions:
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


def num_steps(num_samples: int, options: FinetuningOptions) -> int:
    """Return how many steps a fine-tuning takes."""
    return options.num_passes * -(-num_samples // BATCH_SIZE)


def fine_tune(
    classifier: PreTrainedModel,
    samples: Sequence[LabelledSample],
    tokenizer: PreTrainedTokenizerBase,
    options: FinetuningOptions,
    *,
    learning_rate: float,
    seed: int,
    on_step: Callable[[], None],
) -> None:
    """Train a classifier in place, with AdamW, a short warm-up and a linear decay to 0."""
    total = num_steps(len(samples), options)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP_SHARE * total), total)
    order = torch.Generator().manual_seed(seed)
    classifier.train()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(options.num_passes):
            for places in torch.randperm(len(samples), generator=order).split(BATCH_SIZE):
                logits, labels = _logits(classifier, [samples[place] for place in places.tolist()], tokenizer)
                loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(classifier.parameters(), MAX_GRADIENT_NORM)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                on_step()
    classifier.eval()


@torch.inference_mode()
def predict(
    classifier: PreTrainedModel, samples: Sequence[LabelledSample], tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """Return the likeliest class for every label of every sample."""
    predicted = []
    for start in range(0, len(samples), BATCH_SIZE):
        some = samples[start : start + BATCH_SIZE]
        logits, labels = _logits(classifier, some, tokenizer)
        likeliest = logits.argmax(-1)[labels != IGNORED].split([len(sample.words) for sample in some])
        predicted += [numbers.tolist() for numbers in likeliest]
    return predicted


def _logits(
    classifier: PreTrainedModel, samples: Sequence[LabelledSample], tokenizer: PreTrainedTokenizerBase
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits `(item, class)` and classes `(item)` of tokens, or of sentences."""
    padded = to_batch([sample.tensors for sample in samples], tokenizer)
    batch = {name: tensor.to(classifier.device) for name, tensor in padded.items()}
    labels = batch.pop("labels").flatten()
    return classifier(**batch).logits.float().reshape(len(labels), -1), labels
