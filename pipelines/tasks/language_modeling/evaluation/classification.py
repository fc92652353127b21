"""What a checkpoint's pretraining is worth for classification: fine-tuned beside the same model from random weights."""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hub_tools.atomic_files import write_text_whole
from hub_tools.printing.stage_progress import OnProgress
from pipelines.features.evaluation.figures import HIGHER, NEITHER
from pipelines.features.evaluation.measurement import Measurement
from pipelines.features.held_out_loss import weights_digest
from pipelines.tasks.language_modeling.evaluation.finetuning import (
    BATCH_SIZE,
    ClassifierOptions,
    fine_tune,
    new_classifier,
    predict,
)
from pipelines.tasks.language_modeling.evaluation.labelled_samples import (
    LabelledSample,
    labelled_samples,
    majority_accuracy,
    score,
)
from pipelines.tasks.language_modeling.evaluation.labelled_source import SENTENCES, TOKENS
from pipelines.tasks.language_modeling.evaluation.labelled_text import LabelledText

METRICS = {TOKENS: "entity_f1", SENTENCES: "accuracy"}
MEANINGS = {TOKENS: "F1 of whole entities", SENTENCES: "Share of texts with the right class"}
RECIPE = 2
"""Number of the recipe by which classifiers are fine-tuned; what another one made is not used again."""


@dataclass(frozen=True, kw_only=True)
class LanguageContext:
    """A language model and what belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sees_both_sides: bool
    """Whether it fills masks; a causal model sees what is before a token only."""

    max_tokens: int
    """Tokens of the longest sequence that it was made for."""

    @property
    def pad_token_id(self) -> int:
        """What sequences are padded with, on the right: `to_batch` uses the same."""
        own = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if own is None else own


def measure_classification(
    result: Measurement,
    parts: LanguageContext,
    text: LabelledText,
    options: ClassifierOptions,
    folder: Path,
    on_progress: OnProgress,
) -> None:
    """Add the figures of a labelled dataset: of the checkpoint, of random weights, and what lies between them.

    What each seed came to is kept in `folder`, so that the same call goes on after an interruption.

    Raises:
        ValueError: transformers has no such classifier, or the tokenizer cannot be used for it.
    """
    samples = labelled_samples(
        text,
        parts.tokenizer,
        max_tokens=min(options.max_tokens, parts.max_tokens),
        sees_both_sides=parts.sees_both_sides,
    )
    trial = _Trial(parts, text, samples, options, folder, on_progress)
    pretrained, pretrained_words = trial.scores(is_pretrained=True)
    random, random_words = trial.scores(is_pretrained=False)
    metric, meaning, name = METRICS[text.source.kind], MEANINGS[text.source.kind], text.source.name
    gains = [after - before for after, before in zip(pretrained, random, strict=True)]
    for figure, better, sentence, values in (
        (metric, HIGHER, f"{meaning}, fine-tuned from the checkpoint ({pretrained_words}).", pretrained),
        (f"{metric}_random", NEITHER, f"The same from random weights ({random_words}).", random),
        (f"{metric}_gain", HIGHER, "What pretraining gave: the difference, seed by seed.", gains),
    ):
        result.add_drawings(f"{figure}@{name}", "seeds", better, sentence, values)
    if text.source.kind == SENTENCES:
        share, number, meaning = majority_accuracy(text), len(text.parts["test"]), "Always saying the commonest class."
        result.add_whole(f"majority_accuracy@{name}", "texts", NEITHER, meaning, share, number)


class _Trial:
    """The fine-tunings for one model and one dataset, with one progress bar."""

    def __init__(
        self,
        parts: LanguageContext,
        text: LabelledText,
        samples: Mapping[str, Sequence[LabelledSample]],
        options: ClassifierOptions,
        folder: Path,
        on_progress: OnProgress,
    ) -> None:
        self.parts, self.text, self.samples, self.options = parts, text, samples, options
        self.folder, self.on_progress = folder, on_progress
        self.digest, self.steps_done = hashlib.sha256(repr(samples).encode()).hexdigest(), 0
        self.steps_each = options.num_passes * -(-len(samples["train"]) // BATCH_SIZE)
        self.steps = 2 * (len(options.learning_rates) + options.num_seeds - 1) * self.steps_each

    def scores(self, *, is_pretrained: bool) -> tuple[list[float], str]:
        """Choose the learning rate on validation examples with the first seed; measure on test examples with all.

        Return what each seed came to, and the spread over seeds with the learning rate in words.
        """
        first, *others = range(self.options.seed, self.options.seed + self.options.num_seeds)
        tried = {rate: self._score(rate, first, is_pretrained) for rate in self.options.learning_rates}
        best = max(tried, key=lambda rate: tried[rate]["validation"])
        tests = [tried[best]["test"], *(self._score(best, seed, is_pretrained)["test"] for seed in others)]
        spread = f"std {statistics.stdev(tests):.3f}, " if others else ""
        return tests, f"{spread}learning rate {best:g}"

    def _score(self, learning_rate: float, seed: int, is_pretrained: bool) -> dict[str, float]:
        kind, num_classes = self.text.source.kind, len(self.text.classes)
        classifier = new_classifier(
            kind, num_classes, self.parts.model, self.parts.pad_token_id, seed, is_pretrained=is_pretrained
        )
        facts = dict(
            recipe=RECIPE, weights=weights_digest(classifier), config=_facts_of(classifier), samples=self.digest,
            num_passes=self.options.num_passes, learning_rate=learning_rate, seed=seed,
        )  # fmt: skip
        name = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.json"
        found = _read_scores(path)
        if found is None:
            start = "the checkpoint" if is_pretrained else "random weights"
            words = f"steps on {self.text.source.name}, from {start}, seed {seed}"
            trainer = fine_tune(
                classifier, self.samples["train"], self.parts.tokenizer, self.options,
                learning_rate=learning_rate, seed=seed, folder=self.folder,
                on_step=lambda step: self.on_progress("fine-tuning", self.steps_done + step, self.steps, words),
            )  # fmt: skip
            found = {
                part: score(kind, self.text.classes, self.samples[part], predict(trainer, self.samples[part]))
                for part in ("validation", "test")
            }
            write_text_whole(path, json.dumps(found) + "\n")
        self.steps_done += self.steps_each
        self.on_progress("fine-tuning", self.steps_done, self.steps, f"steps on {self.text.source.name}")
        return found


def _facts_of(classifier: PreTrainedModel) -> dict[str, object]:
    """Return what a model computes with besides its parameters, wherever it was loaded from."""
    return {name: value for name, value in classifier.config.to_diff_dict().items() if name != "_name_or_path"}


def _read_scores(path: Path) -> dict[str, float] | None:
    """Return what was kept, or None if there is nothing that can be used."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {part: float(found[part]) for part in ("validation", "test")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
