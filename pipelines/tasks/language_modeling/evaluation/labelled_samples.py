"""Sequences of tokens with labels, for classifiers of tokens or of sentences, and what predictions of them are worth.

Axis names: `sequence` (tokens), `labelled` (tokens of a sequence, or the sentence, that have a label).
"""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seqeval.metrics import accuracy_score, f1_score
from transformers import PreTrainedTokenizerBase

from pipelines.tasks.language_modeling.evaluation.labelled_source import TOKENS
from pipelines.tasks.language_modeling.evaluation.labelled_text import OUTSIDE, LabelledText
from pipelines.tasks.language_modeling.samples import FEATURES, IGNORED


@dataclass(frozen=True)
class LabelledSample:
    """An example as a classifier sees it."""

    expected: tuple[str, ...]
    """A tag for each word, or one class."""

    features: dict[str, list[int]]
    """`input_ids` and what else the tokenizer makes, `(sequence)`; `labels`, `(sequence)` or `(1)`."""

    words: tuple[int, ...]
    """Which words the labels in `features` belong to, `(labelled)`."""


def labelled_samples(
    text: LabelledText, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, sees_both_sides: bool
) -> dict[str, list[LabelledSample]]:
    """Return the samples of each part of a dataset.

    A word's label is at its first token, as usual, if the model sees both sides of a token. A causal model has seen the
    whole word at its last one only. All other tokens are ignored, and so are words after `max_tokens`. Texts of which
    the tokenizer leaves nothing are left out.

    Raises:
        ValueError: nothing is left of a part.
    """
    places = {name: place for place, name in enumerate(text.classes)}
    made: dict[str, list[LabelledSample]] = {}
    for part, examples in text.parts.items():
        # Causal models were trained without the tokens that frame a sequence.
        found = tokenizer(
            [example.text for example in examples],
            add_special_tokens=sees_both_sides,
            truncation=True,
            max_length=max_tokens,
            return_offsets_mapping=True,
            verbose=False,
        )
        made[part] = []
        for number, example in enumerate(examples):
            features = {name: found[name][number] for name in FEATURES if name in found}
            if text.source.kind == TOKENS:
                at = labelled_tokens(example.words, found["offset_mapping"][number], at_first=sees_both_sides)
                features["labels"] = [IGNORED] * len(features["input_ids"])
            else:
                at, features["labels"] = {0: 0}, [IGNORED]
            for word, place in at.items():
                features["labels"][place] = places[example.labels[word]]
            if at and features["input_ids"]:
                made[part].append(LabelledSample(example.labels, features, tuple(at)))
        if not made[part]:
            raise ValueError(f"The tokenizer makes nothing of the examples of {text.source.name} for {part}.")
    return made


def labelled_tokens(
    words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]], *, at_first: bool
) -> dict[int, int]:
    """Return at which token the label of a word is, in the order of words; those that were cut off have none.

    `words` and `offsets` say where words and tokens begin and end in the text. A token belongs to the word of its last
    character: with byte-level tokenizers the space before a word is a part of its first token.
    """
    starts, places = [start for start, _ in words], {}
    for place, (begin, end) in enumerate(offsets):
        word = bisect.bisect_right(starts, end - 1) - 1
        if begin < end and word >= 0 and end <= words[word][1] and not (at_first and word in places):
            places[word] = place
    return places


def score(
    kind: str, classes: Sequence[str], samples: Sequence[LabelledSample], predicted: Sequence[list[int]]
) -> float:
    """Return seqeval's F1 of entities, or the accuracy. `predicted` is a class for every label of every sample.

    A word without a label at any token, because it was cut off, counts as predicted to be outside of any entity.
    """
    expected = [list(sample.expected) for sample in samples]
    guesses = [[OUTSIDE] * len(tags) for tags in expected]
    for guess, sample, numbers in zip(guesses, samples, predicted, strict=True):
        for word, number in zip(sample.words, numbers, strict=True):
            guess[word] = classes[number]
    return float(f1_score(expected, guesses, zero_division=0) if kind == TOKENS else accuracy_score(expected, guesses))


def majority_accuracy(text: LabelledText) -> float:
    """Return the accuracy on `test` of always saying the commonest class of `train`."""
    counts = Counter(example.labels for example in text.parts["train"])
    (commonest, _), *_ = counts.most_common(1)
    return sum(example.labels == commonest for example in text.parts["test"]) / len(text.parts["test"])
