"""Examples of a labelled dataset of the Hub: a random sample of its first records, the same on every machine."""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets

from hub_tools.foreign.dataset_opening import opening_dataset
from hub_tools.waiting.outages import through_outages
from pipelines.core.run.training_run import stable_seed
from pipelines.tasks.language_modeling.evaluation.labelled_source import TOKENS, LabelledSource
from pipelines.tasks.streaming import is_held_out, prepare_streaming

MOST_RECORDS_READ = 20_000
"""Records of a split among which examples are chosen: datasets may be sorted by their labels."""

RECORDS_PER_READ = 256
MOST_CHARACTERS = 4096
"""Longest part of a text that is kept."""

MOST_CLASSES = 1000
FEWEST_EXAMPLES = 20
"""Fewest examples to train on, to choose the learning rate with, and to measure with."""

OUTSIDE, TAG = "O", re.compile("O|[BI]-.+")
"""A word outside of any entity; the tags of IOB2."""

PARTS = ("test", "validation", "train")
HELD_OUT_SHARE = 0.2
"""Share of the training split that each part takes which has no split of its own."""


@dataclass(frozen=True)
class Example:
    """A text with its labels."""

    text: str
    labels: tuple[str, ...]
    """A tag for each word, or one class."""

    words: tuple[tuple[int, int], ...] = ()
    """Where words with tags begin and end in the text."""


@dataclass(frozen=True, kw_only=True)
class LabelledText:
    """What a classifier is fine-tuned on and measured with."""

    source: LabelledSource
    classes: tuple[str, ...]
    parts: Mapping[str, tuple[Example, ...]]
    """Examples by `train`, `validation` and `test`."""

    @property
    def sizes(self) -> dict[str, int]:
        """Examples by part."""
        return {part: len(examples) for part, examples in self.parts.items()}


def read_labelled_text(source: LabelledSource, amounts: Mapping[str, int]) -> LabelledText:
    """Return up to so many examples for `train`, `validation` and `test`; a Hub that is away is tried again.

    Raises:
        ValueError: there is no such dataset, column or split, the labels are of no use, or too few examples.
        OSError, httpx2.HTTPError: the Hub stays away.
    """
    prepare_streaming()
    return through_outages(lambda: _read(source, amounts), for_ever=False)


def _read(source: LabelledSource, amounts: Mapping[str, int]) -> LabelledText:
    splits = _open(source)
    serves = source.splits(list(splits))
    found: dict[str, tuple[Example, ...]] = {}
    classes: tuple[str, ...] = ()
    for split in dict.fromkeys(serves.values()):
        named, examples = _examples(source, splits[split])
        classes = classes or named
        for part, among in _divided(examples, [part for part in PARTS if serves[part] == split]).items():
            chosen = random.Random(stable_seed(source.name, part)).sample(among, min(len(among), amounts[part]))
            found[part] = tuple(chosen)
    present = {label for examples in found.values() for example in examples for label in example.labels}
    text = LabelledText(source=source, classes=classes or tuple(sorted(present)), parts=found)
    _check(text, serves)
    return text


def _open(source: LabelledSource) -> Mapping[str, datasets.IterableDataset]:
    with opening_dataset(source.repository, source.revision, source.name):
        return datasets.load_dataset(
            source.repository, source.configuration or None, revision=source.revision, streaming=True
        )


def _divided(examples: Sequence[Example], parts: Sequence[str]) -> dict[str, list[Example]]:
    """Return the examples of each part by the digest of their text, so that copies are on one side; the last has the
    rest."""
    divided: dict[str, list[Example]] = {part: [] for part in parts}
    for example in examples:
        content = example.text.encode(errors="replace")
        place = next((n for n in range(1, len(parts)) if is_held_out(content, n * HELD_OUT_SHARE)), len(parts))
        divided[parts[place - 1]].append(example)
    return divided


def _examples(source: LabelledSource, split: datasets.IterableDataset) -> tuple[tuple[str, ...], list[Example]]:
    """Return the names of the classes, as far as the dataset has any, and the first examples."""
    features = split.features or {}
    text, label = source.columns(list(features))
    names = _class_names(features[label])
    records = split.select_columns([text, label]).with_format("arrow").iter(RECORDS_PER_READ)
    rows = (row for table in records for row in table.to_pylist())
    make = _tagged_words if source.kind == TOKENS else _classified_text
    made = (make(source, row[text], row[label], names) for row in itertools.islice(rows, MOST_RECORDS_READ))
    return names, [example for example in made if example is not None]


def _class_names(feature: object) -> tuple[str, ...]:
    inner = feature
    while isinstance(inner, (datasets.List, datasets.LargeList)):
        inner = inner.feature
    return tuple(inner.names) if isinstance(inner, datasets.ClassLabel) else ()


def _classified_text(source: LabelledSource, text: object, label: object, names: Sequence[str]) -> Example | None:
    if text is None or label is None:
        return None
    if not isinstance(text, str) or not isinstance(label, (str, int)):
        raise _wrong_columns(source, f"{type(text).__name__} and {type(label).__name__}", "a text and a class")
    name = _label(label, names)
    return Example(text[:MOST_CHARACTERS], (name,)) if name is not None and not text.isspace() and text else None


def _tagged_words(source: LabelledSource, words: Any, tags: Any, names: Sequence[str]) -> Example | None:
    if not words or not tags:
        return None
    if not all(isinstance(items, list) for items in (words, tags)) or not isinstance(words[0], str):
        raise _wrong_columns(source, f"{type(words).__name__} and {type(tags).__name__}", "lists of words and of tags")
    labels = [_label(tag, names) for tag in tags]
    if len(words) != len(labels) or None in labels or None in words:
        return None
    if wrong := next((label for label in labels if not TAG.fullmatch(str(label))), None):
        raise ValueError(
            f"The tags of {source.name} are not entities' tags: {wrong!r}. Expected O, B-TYPE and I-TYPE, as names of "
            "classes or as texts."
        )
    return joined(words, [str(label) for label in labels])


def joined(words: Sequence[str], labels: Sequence[str]) -> Example | None:
    """Return words joined by spaces, so that a tokenizer sees them as in running text, or None if nothing is left.

    Words of white space are left out, and so are those after `MOST_CHARACTERS`.
    """
    spans, kept, start = [], [], 0
    for word, label in zip(words, labels, strict=True):
        if word.strip() and start + len(word) <= MOST_CHARACTERS:
            spans.append((start, start + len(word)))
            kept.append((word, label))
            start += len(word) + 1
    return (
        Example(" ".join(word for word, _ in kept), tuple(label for _, label in kept), tuple(spans)) if kept else None
    )


def _label(value: Any, names: Sequence[str]) -> str | None:
    """Return a label's name; None for what says that there is none."""
    if not names or value is None:
        return None if value is None else str(value)
    return names[value] if 0 <= value < len(names) else None


def _wrong_columns(source: LabelledSource, seen: str, expected: str) -> ValueError:
    return ValueError(
        f"The columns of {source.name} hold {seen}; expected {expected}. Name the ones to use: "
        f"{source.repository},text=COLUMN,label=COLUMN"
    )


def _check(text: LabelledText, serves: Mapping[str, str]) -> None:
    name, parts = text.source.name, text.parts
    for part, examples in parts.items():
        if len(examples) < FEWEST_EXAMPLES:
            raise ValueError(
                f"{name} has {len(examples)} labelled examples for {part} in its split {serves[part]}; expected "
                f"{FEWEST_EXAMPLES} or more."
            )
        labels = {label for example in examples for label in example.labels}
        if text.source.kind == TOKENS and labels == {OUTSIDE}:
            raise ValueError(f"{name} has no entities among the {len(examples)} examples for {part}.")
        if text.source.kind != TOKENS and len(labels) < 2 and part != "validation":
            raise ValueError(f"All {len(examples)} examples of {name} for {part} have one class, {labels.pop()!r}.")
    if len(text.classes) > MOST_CLASSES:
        raise ValueError(f"{name} has {len(text.classes)} different labels; expected up to {MOST_CLASSES}.")
