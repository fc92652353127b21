"""Sequences of tokens from documents: masked, or packed one after another.

A sample is a mapping of names to 1-D int64 tensors of equal length: `input_ids`, `attention_mask`, `labels`, and
`token_type_ids` where the tokenizer makes them. `labels` is -100 where nothing is predicted; some token always is.
"""

import hashlib
import itertools
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from pipelines.core.run.task import Batch
from pipelines.core.run.training_run import stable_seed
from pipelines.tasks.language_modeling.documents import pieces
from pipelines.tasks.language_modeling.settings import LanguageSettings

IGNORED = -100
"""Label of tokens that are not predicted: the one that transformers and torch ignore."""

FEATURES = ("input_ids", "attention_mask", "token_type_ids")

Sample = Mapping[str, torch.Tensor]
Name = TypeVar("Name")


def masked_samples(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, settings: LanguageSettings, seed: object
) -> Iterator[Sample]:
    """Yield each document in sequences of at most `sequence_length` tokens, some of which are masked.

    The masks depend only on the sequence's own tokens and the seed, wherever it occurs: `seed` contains the run's seed
    and the pass. Sequences in which nothing can be masked are skipped.
    """
    collator = _collator(tokenizer, settings)
    for document in documents:
        for piece in pieces(document):
            found = tokenizer(
                piece,
                truncation=True,
                max_length=settings.sequence_length,
                return_overflowing_tokens=True,
                return_offsets_mapping=settings.whole_word_masks,
                verbose=False,
            )
            for place in range(len(found["input_ids"])):
                features = {
                    name: values[place] for name, values in found.items() if name in (*FEATURES, "offset_mapping")
                }
                if (sample := _masked(features, tokenizer, collator, seed)) is not None:
                    yield sample


def _collator(tokenizer: PreTrainedTokenizerBase, settings: LanguageSettings) -> DataCollatorForLanguageModeling:
    with warnings.catch_warnings():
        # Whole words are masked and never replaced by others, as documented in `LanguageSettings`.
        warnings.filterwarnings("ignore", message="Random token replacement is not supported with whole word masking")
        return DataCollatorForLanguageModeling(
            tokenizer, whole_word_mask=settings.whole_word_masks, mlm_probability=settings.mask_probability
        )


def _masked(
    features: Mapping[str, Sequence],
    tokenizer: PreTrainedTokenizerBase,
    collator: DataCollatorForLanguageModeling,
    seed: object,
) -> Sample | None:
    """Return a sequence with masks, drawn again until there is one; None if all of its tokens are special."""
    input_ids = features["input_ids"]
    special = tokenizer.get_special_tokens_mask(input_ids, already_has_special_tokens=True)
    if all(special):
        return None
    digest = hashlib.blake2b(torch.tensor(input_ids).numpy().astype("<i8").tobytes(), digest_size=16).hexdigest()
    for attempt in itertools.count():
        # The collator's own `seed` works in a main process or a DataLoader only; peers are neither.
        collator.generator = torch.Generator().manual_seed(stable_seed(seed, digest, attempt))
        batch = collator([{**features, "special_tokens_mask": special}])
        if (batch["labels"] != IGNORED).any():
            return {name: tensor[0] for name, tensor in batch.items()}


def packed_samples(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, settings: LanguageSettings
) -> Iterator[Sample]:
    """Yield sequences of exactly `sequence_length` tokens: documents one after another, each ended by EOS.

    The last one, which is shorter, is yielded too if it has anything to predict. A sequence's first token has
    no context and is not predicted. Attention crosses document boundaries, as in GPT-2's training.
    """
    named = ((document, None) for document in documents)
    return (sample for sample, _ in packed_with_names(named, tokenizer, settings))


def packed_with_names(
    documents: Iterable[tuple[str, Name]], tokenizer: PreTrainedTokenizerBase, settings: LanguageSettings
) -> Iterator[tuple[Sample, list[Name]]]:
    """Yield the sequences of `packed_samples`, each with the names of the documents that end in it."""
    waiting: list[int] = []
    ends: list[tuple[int, Name]] = []
    """The tokens that wait up to the end of a document, and its name."""

    def take() -> tuple[Sample, list[Name]]:
        nonlocal ends
        taken = waiting[: settings.sequence_length]
        del waiting[: settings.sequence_length]
        names = [name for end, name in ends if end <= len(taken)]
        ends = [(end - len(taken), name) for end, name in ends if end > len(taken)]
        return _packed(taken), names

    for document, name in documents:
        for piece in pieces(document):
            waiting += tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            while len(waiting) > settings.sequence_length:
                yield take()
        waiting.append(tokenizer.eos_token_id)
        ends.append((len(waiting), name))
    while len(waiting) > 1:
        yield take()


def _packed(tokens: Sequence[int]) -> Sample:
    input_ids = torch.tensor(tokens)
    labels = input_ids.clone()
    labels[0] = IGNORED
    return dict(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), labels=labels)


def shuffled(samples: Iterable[Sample], seed: int, buffer_size: int) -> Iterator[Sample]:
    """Yield samples shuffled by the seed: each a random one of the next `buffer_size`."""
    draw, waiting = random.Random(seed), []
    for sample in samples:
        if len(waiting) < buffer_size:
            waiting.append(sample)
            continue
        place = draw.randrange(buffer_size)
        yield waiting[place]
        waiting[place] = sample
    draw.shuffle(waiting)
    yield from waiting


def to_batch(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Stack samples, right-padded to the longest: (batch, sequence) int64 each."""
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    fill = dict(input_ids=pad, attention_mask=0, token_type_ids=0, labels=IGNORED)
    pad_sequence = torch.nn.utils.rnn.pad_sequence
    return {
        name: pad_sequence([sample[name] for sample in samples], batch_first=True, padding_value=fill[name])
        for name in samples[0]
    }


def to_batches(samples: Iterable[Sample], tokenizer: PreTrainedTokenizerBase, batch_size: int) -> Iterator[Batch]:
    """Yield batches of `batch_size` samples; the last one may be smaller."""
    remaining = iter(samples)
    while some := list(itertools.islice(remaining, batch_size)):
        yield to_batch(some, tokenizer)
