"""What metadata say about a picture: unsafe or not, similarity, size; in any spelling, believed if plausible."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub_tools.foreign.json_texts import collection_paused

LARGEST_METADATA_BYTES = 4 * 2**20
LARGEST_SIDE = 100_000
"""Pixels beyond which a stated size is not believed."""

SAFE, UNSURE, UNSAFE = "UNLIKELY", "UNSURE", "NSFW"
"""LAION's labels."""

LABEL_FIELDS = ("nsfw", "is_nsfw", "nsfw_label", "nsfw_prediction")
SCORE_FIELDS = ("punsafe", "p_unsafe", "unsafe", "is_unsafe", "unsafe_score", "nsfw_score", "nsfw_prob", "prob_nsfw")
SIMILARITY_FIELDS = ("similarity", "clip_similarity", "clip_score", "clip_similarity_vitb32", "clip_similarity_vitl14")
SIZE_FIELDS = ("original_width", "original_height")
ALL_FIELDS = frozenset((*LABEL_FIELDS, *SCORE_FIELDS, *SIMILARITY_FIELDS, *SIZE_FIELDS))
"""All that labels are read from."""
MEANINGS = {
    **dict.fromkeys(("unlikely", "safe", "sfw", "no", "false", "neutral", "very_unlikely", "very unlikely"), SAFE),
    **dict.fromkeys(("unsure", "possible", "maybe"), UNSURE),
    **dict.fromkeys(("nsfw", "unsafe", "yes", "true", "porn", "likely", "very_likely", "very likely"), UNSAFE),
}
NO_LABEL = frozenset(("", "none", "null", "nan", "n/a", "na", "unknown", "unlabelled", "unlabeled"))

Fields = Sequence[tuple[str, object]]
"""Names in lower case with their values; a name may occur twice, once in each spelling or file."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What is known of a sample besides its caption and picture."""

    nsfw: str | None = None
    """UNLIKELY, UNSURE, NSFW, or another label in capitals; the worst if there are several. None: no label."""
    unsafe_score: float | None = None
    """Probability of an unsafe picture; the highest if there are several."""
    similarity: float | None = None
    """Cosine of caption and picture."""
    original_width: int | None = None
    """Pixels before any resizing."""
    original_height: int | None = None
    """Pixels before any resizing."""


def parse_metadata(content: bytes | str) -> dict[str, object] | None:
    """The JSON object in UTF-8, UTF-16 or UTF-32; None if it is damaged, too large, ambiguous, or no object."""
    parsed = parse_json(content) if len(content) <= LARGEST_METADATA_BYTES else None
    return parsed if isinstance(parsed, dict) else None


def parse_json(content: bytes | str) -> Any:
    """The JSON value in UTF-8, UTF-16 or UTF-32; None if it is damaged or ambiguous."""
    try:
        mark = content.startswith(b"\xef\xbb\xbf") if isinstance(content, bytes) else content.startswith("\ufeff")
        text = content[3 if isinstance(content, bytes) else 1 :] if mark else content
        with collection_paused():
            return json.loads(text, object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):  # numbers of more than 4,300 digits are a ValueError too
        return None


def _unambiguous(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The pairs as an object; ValueError if a name comes twice: the label that counts may be the one that is lost."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name comes twice")
    return values


def fields_of(*mappings: Mapping[str, object]) -> Fields:
    """The fields of all mappings under names that do not depend on case, blanks and hyphens."""
    return [(fold_name(name), value) for mapping in mappings for name, value in mapping.items()]


def fold_name(name: object) -> str:
    """A field's name as it is looked up."""
    return str(name).strip("\ufeff \t\r\n\"'").casefold().replace(" ", "_").replace("-", "_")


def first_value(fields: Fields, names: Iterable[str]) -> object:
    """The first value that is not None, by the order of the names."""
    return next((value for name in names for known, value in fields if known == name and value is not None), None)


def read_labels(fields: Fields) -> Labels:
    """All labels; what cannot be believed is unknown, except that an unsafe label never gets lost."""
    meant = [_label(value) for name, value in fields if name in LABEL_FIELDS]
    meant += [_label(value) for name, value in fields if name in SCORE_FIELDS and not _is_number(value)]
    words = sorted({label for label in meant if isinstance(label, str)}, key=_safety)
    scores = [label for label in meant if isinstance(label, float)]
    scores += [score for name, value in fields if name in SCORE_FIELDS and (score := _score(value)) is not None]
    width, height = (_side(first_value(fields, (name,))) for name in SIZE_FIELDS)
    similarity = _finite(first_value(fields, SIMILARITY_FIELDS))
    return Labels(
        nsfw=words[0] if words else None,
        unsafe_score=max(scores, default=None),
        similarity=similarity if similarity is not None and -1 <= similarity <= 1 else None,
        original_width=width if height else None,
        original_height=height if width else None,
    )


def _label(value: object) -> str | float | None:
    """A word, a score, or nothing."""
    if isinstance(value, bool):
        return UNSAFE if value else SAFE
    if _is_number(value):
        return _score(value)
    word = " ".join(str(value)[:40].split()).casefold() if value is not None else ""
    return None if word in NO_LABEL else MEANINGS.get(word, word.upper())


def _safety(label: str) -> tuple[int, str]:
    order = (UNSAFE, UNSURE)
    return (order.index(label), label) if label in order else (3 if label == SAFE else 2, label)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and (isinstance(value, int | float) or _finite(value) is not None)


def _score(value: object) -> float | None:
    """A probability; above 1 it is one in per cent or a count, unsafe all the same; below 0 it means "unknown"."""
    if isinstance(value, int) and value > 1:
        return 1.0  # however large: no float holds 10**400
    number = _finite(value)
    return None if number is None or number < 0 else min(number, 1.0)


def _side(value: object) -> int | None:
    number = _finite(value)
    return int(number) if number is not None and 1 <= number <= LARGEST_SIDE else None


def _finite(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
