"""A two-sided n-gram model: masked tokens from their neighbours on both sides.

Four Kneser-Ney models look to the left, to the right, and to both sides with one or the other neighbour as the nearest.
They are mixed with weights found by expectation maximisation on text that none of them has counted: one set for each
of the four cases of whether the two nearest neighbours are visible.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.demo.language.kneser_ney import KneserNey, left_rows
from pipelines.training.run.task import Batch
from pipelines.training.tasks.language_modeling.samples import IGNORED

WIDTH = 3
"""Neighbours on either side that a model may use."""

VIEWS = ((-3, -2, -1), (3, 2, 1), (2, -2, 1, -1), (-2, 2, -1, 1))
"""Offsets of each model's context; the neighbour to back off from first comes first."""

NUM_ROUNDS = 30
"""Iterations of expectation maximisation; it has converged by then."""


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens to predict, with their neighbours."""

    windows: np.ndarray
    """(num_tokens, 2 * WIDTH + 1) ids; in the middle the token itself."""

    is_seen: np.ndarray
    """The same shape, bool: which of them a model may use. False for masks, special tokens and padding."""

    shown: np.ndarray
    """(num_tokens,) ids: what stands in the token's place: usually the mask, else the token or another one."""


def masked_tokens(batches: Iterable[Batch], hidden: Sequence[int]) -> MaskedTokens:
    """Return all tokens to predict in the batches; `hidden` are uninformative ids, including the mask's."""
    parts = []
    for batch in batches:
        ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        is_seen = (batch["attention_mask"].numpy() == 1) & ~np.isin(ids, hidden)
        row, place = np.nonzero(labels != IGNORED)
        columns = place[:, None] + np.arange(2 * WIDTH + 1)  # (num_tokens, window) in padded rows
        margin = ((0, 0), (WIDTH, WIDTH))
        windows = np.pad(ids, margin)[row[:, None], columns]
        seen = np.pad(is_seen, margin)[row[:, None], columns]
        windows[:, WIDTH] = labels[row, place]
        parts.append((windows, seen, ids[row, place]))
    return MaskedTokens(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class TwoSidedNgrams:
    """Counts `sequences` of ids and finds its mixture on `tuning`, masked tokens of text that is not among them."""

    def __init__(self, sequences: Iterable[Sequence[int]], tuning: MaskedTokens, vocab_size: int, mask: int) -> None:
        windows = left_rows(sequences, 2 * WIDTH + 1)
        self._mask, self._vocab_size = mask, vocab_size
        self._models = [KneserNey(_rows(windows, view), vocab_size) for view in VIEWS]
        self._weights = np.full((4, len(VIEWS)), 1 / len(VIEWS))
        each, cases = self._of_each_model(tuning), _cases(tuning)
        for _ in range(NUM_ROUNDS):
            shares = each * self._weights[cases]
            shares /= shares.sum(1, keepdims=True)
            sums = np.stack([shares[cases == case].sum(0) for case in range(4)])
            self._weights = (sums + 1) / (sums + 1).sum(1, keepdims=True)

    def probabilities(self, tokens: MaskedTokens) -> np.ndarray:
        """Return the probability of each masked token: (num_tokens,) float64.

        An unmasked token in its place is the right one as often as a random one (Devlin et al., 2019), which
        is accounted for by Bayes' rule.
        """
        right = self._from_neighbours(tokens)
        shown = MaskedTokens(tokens.windows.copy(), tokens.is_seen, tokens.shown)
        shown.windows[:, WIDTH] = tokens.shown
        guess = self._from_neighbours(shown)
        is_right = tokens.shown == tokens.windows[:, WIDTH]
        revealed = right * (is_right + 1 / self._vocab_size) / (guess + 1 / self._vocab_size)
        return np.where(tokens.shown == self._mask, right, revealed)

    def _from_neighbours(self, tokens: MaskedTokens) -> np.ndarray:
        return (self._of_each_model(tokens) * self._weights[_cases(tokens)]).sum(1)

    def _of_each_model(self, tokens: MaskedTokens) -> np.ndarray:
        found = []
        for model, view in zip(self._models, VIEWS, strict=True):
            # Counted from the nearest neighbour, up to the first hidden one.
            seen = tokens.is_seen[:, [WIDTH + offset for offset in reversed(view)]]
            found.append(model.probabilities(_rows(tokens.windows, view), np.cumprod(seen, axis=1).sum(1)))
        return np.stack(found, axis=1)


def _rows(windows: np.ndarray, view: Sequence[int]) -> np.ndarray:
    return windows[:, [*(WIDTH + offset for offset in view), WIDTH]]


def _cases(tokens: MaskedTokens) -> np.ndarray:
    return tokens.is_seen[:, WIDTH - 1] * 2 + tokens.is_seen[:, WIDTH + 1]
