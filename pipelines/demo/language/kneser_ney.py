"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1998, section 3) over rows of token ids.

A row is a context and the token to predict: `(order)` ids, the farthest first, the token last. For an n-gram model the
context is to the left. Any other order of neighbours works as well (Bilmes and Kirchhoff, 2003): what is backed off
from first comes first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CODE_LIMIT = 2**63
"""Rows are told apart by one int64 each: the vocabulary's size to the power of the order has to be less."""

USUAL_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts for counts of 1, 2 and more if a text is too small to estimate them."""


@dataclass(frozen=True)
class _Level:
    """The counted rows of one length, by code, and the totals of their contexts."""

    codes: np.ndarray
    discounted: np.ndarray
    """Count minus discount."""

    contexts: np.ndarray
    totals: np.ndarray
    left_over: np.ndarray
    """Probability mass that the discounts leave to the shorter context."""


class KneserNey:
    """Probabilities of tokens after contexts of up to `order - 1` tokens.

    Raises:
        ValueError: there are no rows to count, or the vocabulary is too large for the order.
    """

    def __init__(self, rows: np.ndarray, vocab_size: int) -> None:
        """rows: (num_rows, order) integers in [0, vocab_size), the token to predict last."""
        if not len(rows):
            raise ValueError("There are no n-grams to count: every text is shorter than the model's order.")
        self.order, self.vocab_size = rows.shape[1], vocab_size
        if vocab_size**self.order >= CODE_LIMIT:
            raise ValueError(f"{vocab_size} tokens are too many for order {self.order}; choose a lower order.")
        codes, counts = np.unique(_encode(rows, vocab_size), return_counts=True)
        levels = [_level(codes, counts, vocab_size)]
        for length in range(self.order - 1, 0, -1):
            # A shorter row counts the distinct tokens before it, not how often it occurs.
            codes, counts = np.unique(codes % vocab_size**length, return_counts=True)
            levels.append(_level(codes, counts, vocab_size))
        self._levels = levels[::-1]

    def probabilities(self, rows: np.ndarray, num_known: np.ndarray | int | None = None) -> np.ndarray:
        """Return the probability of each row's last token: (num_rows,) float64.

        rows: (num_rows, order). num_known: how many of the nearest context tokens of each row may be used; None: all.
        """
        known = np.full(len(rows), self.order - 1) if num_known is None else np.broadcast_to(num_known, len(rows))
        probability = np.full(len(rows), 1 / self.vocab_size)
        for length, level in enumerate(self._levels, start=1):
            found = np.flatnonzero(known >= length - 1)
            codes = _encode(rows[found, self.order - length :], self.vocab_size)
            probability[found] = _interpolated(level, codes, codes // self.vocab_size, probability[found])
        return probability


def left_rows(sequences: Iterable[Sequence[int]], order: int) -> np.ndarray:
    """Return every `order` neighbouring tokens of each sequence: (num_rows, order) int64."""
    windows = [
        np.lib.stride_tricks.sliding_window_view(np.asarray(sequence, np.int64), order)
        for sequence in sequences
        if len(sequence) >= order
    ]
    return np.concatenate(windows) if windows else np.zeros((0, order), np.int64)


def _encode(rows: np.ndarray, vocab_size: int) -> np.ndarray:
    powers = vocab_size ** np.arange(rows.shape[1] - 1, -1, -1, dtype=np.int64)
    return rows.astype(np.int64) @ powers


def _level(codes: np.ndarray, counts: np.ndarray, vocab_size: int) -> _Level:
    discounts = np.array([0.0, *_discounts(counts)])[np.minimum(counts, 3)]
    contexts, place = np.unique(codes // vocab_size, return_inverse=True)
    return _Level(
        codes=codes,
        discounted=counts - discounts,
        contexts=contexts,
        totals=np.bincount(place, counts),
        left_over=np.bincount(place, discounts),
    )


def _discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """Return the discounts for counts of 1, of 2 and of more: Chen and Goodman's equation 26."""
    one, two, three, four = (int((counts == number).sum()) for number in (1, 2, 3, 4))
    if not (one and two and three and four):
        return USUAL_DISCOUNTS
    share = one / (one + 2 * two)
    found = (1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three)
    return found if all(0 < value <= limit for value, limit in zip(found, (1, 2, 3), strict=True)) else USUAL_DISCOUNTS


def _interpolated(level: _Level, codes: np.ndarray, contexts: np.ndarray, shorter: np.ndarray) -> np.ndarray:
    """Return the probabilities of codes, given those after the context without its farthest token."""
    row, has_row = _find(level.codes, codes)
    context, has_context = _find(level.contexts, contexts)
    seen = np.where(has_row, level.discounted[row], 0.0)
    mixed = (seen + level.left_over[context] * shorter) / level.totals[context]
    return np.where(has_context, mixed, shorter)


def _find(table: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each value's index in a sorted table, and whether the value is in it."""
    place = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return place, table[place] == values
