"""Sequences of tokens with labels, for classifiers of tokens or of sentences, and what predictions of them are worth.

Axis names: `sequence` (tokens), `labelled` (tokens of a sequence, or the sentence, that have a label).
"""

import bisect
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from pipelines.evaluation.language.entity_f1 import OUTSIDE, entity_f1
from pipelines.evaluation.language.labelled_source import TOKENS
from pipelines.evaluation.language.labelled_text import Example, LabelledText
from pipelines.training.tasks.language_modeling.samples import FEATURES, IGNORED, Sample


@dataclass(frozen=True)
class LabelledSample:
    """An example as a classifier sees it."""

    example: Example
    tensors: Sample
    """`input_ids` and what else the tokenizer makes, `(sequence)` int64; `labels`, `(sequence)` or `(1)`, int64."""

    words: tuple[int, ...]
    """Which words the labels in `tensors` belong to, `(labelled)`."""


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
            features = {name: torch.tensor(found[name][number]) for name in FEATURES if name in found}
            labels = [places[label] for label in example.labels]
            if text.source.kind == TOKENS:
                at = labelled_tokens(example.words, found["offset_mapping"][number], at_first=sees_both_sides)
                target = torch.full_like(features["input_ids"], IGNORED)
                target[list(at.values())] = torch.tensor([labels[word] for word in at], dtype=torch.int64)
            else:
                at, target = {0: 0}, torch.tensor(labels)
            if at and len(features["input_ids"]):
                made[part].append(LabelledSample(example, features | dict(labels=target), tuple(at)))
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


def samples_digest(samples: Mapping[str, Sequence[LabelledSample]]) -> str:
    """Return a digest of all that a classifier sees, and of what is expected of it."""
    digest = hashlib.sha256()
    for part, items in sorted(samples.items()):
        for item in items:
            digest.update(f"{part} {item.example.labels} {item.words}".encode())
            for name, tensor in sorted(item.tensors.items()):
                digest.update(f"{name} {tensor.tolist()}".encode())
    return digest.hexdigest()


def score(
    kind: str, classes: Sequence[str], samples: Sequence[LabelledSample], predicted: Sequence[list[int]]
) -> float:
    """Return the F1 of entities, or the accuracy. `predicted` is a class for every label of every sample.

    A word without a label at any token, because it was cut off, counts as predicted to be outside of any entity.
    """
    guesses = []
    for sample, numbers in zip(samples, predicted, strict=True):
        guess = [OUTSIDE] * len(sample.example.labels)
        for word, number in zip(sample.words, numbers, strict=True):
            guess[word] = classes[number]
        guesses.append(guess)
    expected = [sample.example.labels for sample in samples]
    if kind == TOKENS:
        return entity_f1(expected, guesses)
    return sum(tags[0] == guess[0] for tags, guess in zip(expected, guesses, strict=True)) / len(expected)


def majority_accuracy(text: LabelledText) -> float:
    """Return the accuracy on `test` of always saying the commonest class of `train`."""
    counts = Counter(example.labels for example in text.parts["train"])
    (commonest, _), *_ = counts.most_common(1)
    return sum(example.labels == commonest for example in text.parts["test"]) / len(text.parts["test"])
