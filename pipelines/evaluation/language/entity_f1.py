"""Entities of a sentence from its tags, and how many of them a model finds. Pure.

Tags are `O`, `B-TYPE` for the first word of an entity and `I-TYPE` for further ones (IOB2). As the programs of CoNLL
have it, an `I-TYPE` that follows no entity of its type begins one.
"""

from collections.abc import Iterable, Sequence

OUTSIDE, BEGIN, INSIDE = "O", "B", "I"

Entity = tuple[str, int, int]
"""Type, first word, and the word after the last."""


def is_tag(text: str) -> bool:
    """Tell whether a text is a tag."""
    prefix, hyphen, kind = text.partition("-")
    return text == OUTSIDE or (prefix in (BEGIN, INSIDE) and bool(hyphen and kind))


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence."""
    found, start = set(), 0
    kinds = ["", *(tag.partition("-")[2] for tag in tags), ""]
    for place in range(len(tags) + 1):
        before, kind = kinds[place], kinds[place + 1]
        if before != kind or (kind and tags[place].startswith(f"{BEGIN}-")):
            if before:
                found.add((before, start, place))
            start = place
    return found


def entity_f1(expected: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Return the F1 of whole entities over all sentences: right are those of the same type and the same words.

    It is twice the number of right ones by the number of expected and predicted ones; 0 if there are none.
    """
    num_right = num_all = 0
    for tags, guesses in zip(expected, predicted, strict=True):
        there, said = entities(tags), entities(guesses)
        num_right += len(there & said)
        num_all += len(there) + len(said)
    return 2 * num_right / num_all if num_all else 0.0
