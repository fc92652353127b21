"""The n-gram models that the demo's language models have to beat, against the plain formulas."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from language_material import DOCUMENTS, tiny_tokenizer

from pipelines.demo.language.baselines import causal_perplexity, masked_perplexity
from pipelines.demo.language.kneser_ney import KneserNey, left_rows
from pipelines.demo.language.masked_ngrams import WIDTH, MaskedTokens, TwoSidedNgrams, masked_tokens
from pipelines.training.tasks.language_modeling.samples import IGNORED, masked_samples, packed_samples, to_batches
from pipelines.training.tasks.language_modeling.settings import LanguageSettings

VOCAB_SIZE = 12


@pytest.fixture(scope="module")
def sequences():
    """Sequences in which what follows depends on what came before."""
    draw = np.random.default_rng(0)
    found = []
    for length in draw.integers(20, 60, 40):
        tokens = [int(draw.integers(VOCAB_SIZE))]
        while len(tokens) < length:
            tokens.append(int((2 * tokens[-1] + draw.geometric(0.4)) % VOCAB_SIZE))
        found.append(tokens)
    return found


def chen_and_goodman(sequences, row):
    """Return the probability of the last token of a row after the others, by the formulas of 1998, token by token."""

    def counts(length, order):
        if length == order:
            return Counter(tuple(s[i : i + order]) for s in sequences for i in range(len(s) - order + 1))
        return Counter(gram[1:] for gram in counts(length + 1, order))

    def probability(row, order):
        if not row:
            return 1 / VOCAB_SIZE
        table = counts(len(row), order)
        number = {n: sum(count == n for count in table.values()) for n in (1, 2, 3, 4)}
        if all(number.values()):
            y = number[1] / (number[1] + 2 * number[2])
            discount = {n: n - (n + 1) * y * number[n + 1] / number[n] for n in (1, 2, 3)}
        if not all(number.values()) or not all(0 < discount[n] <= n for n in discount):
            discount = {1: 0.5, 2: 1.0, 3: 1.5}
        after = {gram: count for gram, count in table.items() if gram[:-1] == row[:-1]}
        shorter = probability(row[1:], order)
        if not after:
            return shorter
        left_over = sum(discount[min(count, 3)] for count in after.values())
        own = after.get(row, 0) - (discount[min(after[row], 3)] if row in after else 0)
        return (own + left_over * shorter) / sum(after.values())

    return probability(tuple(row), len(row))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_are_those_of_the_plain_formula(sequences, order):
    model = KneserNey(left_rows(sequences, order), VOCAB_SIZE)
    draw = np.random.default_rng(1)
    rows = np.concatenate([left_rows(sequences[:1], order)[:8], draw.integers(0, VOCAB_SIZE, (8, order))])
    expected = [chen_and_goodman(sequences, row.tolist()) for row in rows]
    np.testing.assert_allclose(model.probabilities(rows), expected, rtol=1e-12)


def test_probabilities_after_any_context_add_up_to_one(sequences):
    model = KneserNey(left_rows(sequences, 3), VOCAB_SIZE)
    for context in ((0, 0), (1, 5), tuple(sequences[0][:2])):
        rows = np.array([(*context, token) for token in range(VOCAB_SIZE)])
        for num_known in (0, 1, 2):
            assert model.probabilities(rows, num_known).sum() == pytest.approx(1)


def test_longer_contexts_predict_a_text_better(sequences):
    rows = left_rows(sequences[30:], 3)
    model = KneserNey(left_rows(sequences[:30], 3), VOCAB_SIZE)
    losses = [-np.log(model.probabilities(rows, known)).mean() for known in (0, 1)]
    assert losses[1] < losses[0] - 0.4


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="shorter than the model's order"):
        KneserNey(left_rows([[1, 2]], 3), VOCAB_SIZE)
    with pytest.raises(ValueError, match="50000 tokens are too many for order 5"):
        KneserNey(np.zeros((1, 5), np.int64), 50_000)


def gaps(sequences, mask):
    """Return every third token of sequences as masked tokens, through batches as training sees them."""
    batches = []
    for tokens in sequences:
        ids = torch.tensor([tokens])
        labels = torch.full_like(ids, IGNORED)
        labels[0, 1::3] = ids[0, 1::3]
        ids = torch.where(labels == IGNORED, ids, mask)
        batches.append(dict(input_ids=ids, labels=labels, attention_mask=torch.ones_like(ids)))
    return masked_tokens(batches, [mask])


def test_masked_tokens_come_with_their_neighbours():
    tokens = gaps([[1, 2, 3, 4, 5]], mask=11)
    assert tokens.windows[:, WIDTH].tolist() == [2, 5] and tokens.shown.tolist() == [11, 11]
    assert tokens.windows[0, WIDTH + 1 :].tolist() == [3, 4, 11]
    assert tokens.is_seen.tolist() == [
        [False, False, True, False, True, True, False],
        [False, True, True, False, False, False, False],
    ]


def test_both_sides_predict_a_token_better_than_one_and_add_up_to_one(sequences):
    mask = VOCAB_SIZE
    model = TwoSidedNgrams(sequences[:25], gaps(sequences[25:30], mask), VOCAB_SIZE + 1, mask)
    tokens = gaps(sequences[30:], mask)
    both = -np.log(model.probabilities(tokens)).mean()
    left = KneserNey(left_rows(sequences[:25], 2), VOCAB_SIZE + 1)
    assert both < -np.log(left.probabilities(tokens.windows[:, WIDTH - 1 : WIDTH + 1])).mean() - 0.1
    total = 0
    for token in range(VOCAB_SIZE + 1):
        windows = tokens.windows.copy()
        windows[:, WIDTH] = token
        total += model.probabilities(MaskedTokens(windows, tokens.is_seen, tokens.shown))
    np.testing.assert_allclose(total, 1)


def test_a_token_that_stands_in_its_own_place_is_believed_as_bayes_has_it(sequences):
    mask = VOCAB_SIZE
    model = TwoSidedNgrams(sequences[:25], gaps(sequences[25:30], mask), VOCAB_SIZE + 1, mask)
    tokens = gaps(sequences[30:31], mask)
    first = MaskedTokens(tokens.windows[:1], tokens.is_seen[:1], tokens.shown[:1])
    prior = []
    for token in range(VOCAB_SIZE + 1):
        windows = first.windows.copy()
        windows[:, WIDTH] = token
        prior.append(model.probabilities(MaskedTokens(windows, first.is_seen, first.shown))[0])
    right, size = int(first.windows[0, WIDTH]), VOCAB_SIZE + 1
    shown = MaskedTokens(first.windows, first.is_seen, np.array([right]))
    joint = [prior[token] * ((token == right) + 1 / size) for token in range(size)]
    assert model.probabilities(shown)[0] == pytest.approx(joint[right] / sum(joint))


def test_baselines_are_asked_for_the_tokens_of_the_batches():
    settings = LanguageSettings(sequence_length=32)
    for task, samples, baseline in (
        ("text-generation", packed_samples, causal_perplexity),
        ("fill-mask", lambda *values: masked_samples(*values, 1), masked_perplexity),
    ):
        tokenizer = tiny_tokenizer(task)
        batches = list(to_batches(samples(DOCUMENTS[40:], tokenizer, settings), tokenizer, 4))
        extra = (settings,) if task == "fill-mask" else ()
        perplexity = baseline(DOCUMENTS[:40], batches, tokenizer, *extra)
        assert 1 < perplexity < 30 and math.isfinite(perplexity)
