"""What the demo's language models must beat: the perplexity of n-grams on the same tokens."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from pipelines.demo.language.kneser_ney import KneserNey, left_rows
from pipelines.demo.language.masked_ngrams import TwoSidedNgrams, masked_tokens
from pipelines.training.run.task import Batch
from pipelines.training.tasks.language_modeling.samples import IGNORED, masked_samples, to_batches
from pipelines.training.tasks.language_modeling.settings import LanguageSettings

ORDER = 5
TUNING_SHARE = 20
"""One document in this many tunes the mixture of the two-sided model instead of being counted."""


def causal_perplexity(
    documents: Iterable[str], batches: Sequence[Batch], tokenizer: PreTrainedTokenizerBase, order: int = ORDER
) -> float:
    """Return the perplexity of an n-gram model of the documents on the tokens to predict in the batches.

    Each token is predicted from those before it in its sequence, as in the language model.
    """
    eos, size = tokenizer.eos_token_id, len(tokenizer)
    # The first token of a document follows the end of another one, in training as in the batches.
    model = KneserNey(left_rows(([eos, *ids, eos] for ids in _ids(documents, tokenizer)), order), size)
    rows, known = [], []
    for batch in batches:
        row, place = np.nonzero(batch["labels"].numpy() != IGNORED)
        padded = np.pad(batch["input_ids"].numpy(), ((0, 0), (order - 1, 0)))
        rows.append(padded[row[:, None], place[:, None] + np.arange(order)])
        known.append(np.minimum(place, order - 1))
    return _perplexity(model.probabilities(np.concatenate(rows), np.concatenate(known)))


def masked_perplexity(
    documents: Sequence[str],
    batches: Sequence[Batch],
    tokenizer: PreTrainedTokenizerBase,
    settings: LanguageSettings,
) -> float:
    """Return the perplexity of a two-sided n-gram model of the documents on the batches' masks."""
    tuning = to_batches(masked_samples(documents[::TUNING_SHARE], tokenizer, settings, "tuning"), tokenizer, 8)
    counted = [text for place, text in enumerate(documents) if place % TUNING_SHARE]
    hidden = tokenizer.all_special_ids
    model = TwoSidedNgrams(
        _ids(counted, tokenizer), masked_tokens(tuning, hidden), len(tokenizer), tokenizer.mask_token_id
    )
    return _perplexity(model.probabilities(masked_tokens(batches, hidden)))


def _ids(documents: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterable[list[int]]:
    return (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in documents)


def _perplexity(probabilities: np.ndarray) -> float:
    return math.exp(-np.log(probabilities).mean())
