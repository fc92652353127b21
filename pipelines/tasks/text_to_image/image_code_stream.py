"""The streaming reader: image codes from the Dataset Hub, captions tokenised on the fly, span by span."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from huggingface_hub import HfFileSystem

from hub_tools.waiting.outages import through_outages
from modeling_dalle_collab import DalleCollabProcessor
from pipelines.core.run.span_source import PassAfterPass, SpanSource
from pipelines.core.run.spans import Span, record_order
from pipelines.core.run.task import Batch, BatchSize, NamedBatch, size_of_next
from pipelines.tasks.streaming import check_pass, is_held_out
from pipelines.tasks.text_to_image.image_codes.dataset_shards import dataset_on_hub
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    captions_and_codes,
    layout_from_metadata,
)
from pipelines.tasks.text_to_image.image_codes.shard_blocks import ShardBlocks

EVALUATION_SPLITS = ("validation", "test")
NUM_OPEN_SPANS = 4
MOST_SKIPPED = 2**20
"""Records without one to train on among them, after which the stream gives up."""


def image_code_batch(input_ids: Sequence[Sequence[int]] | torch.Tensor, image_codes: torch.Tensor) -> Batch:
    """Return a micro-batch.

    input_ids: (batch, text_sequence) integers. image_codes: (batch, image_sequence) int64 in [0, codebook_size).
    """
    return {"input_ids": torch.as_tensor(input_ids), "image_codes": image_codes}


def dataset_layout(repository: str, revision: str) -> ImageCodeLayout:
    """Return which codec made the dataset's codes, from the footer of its first shard.

    Raises:
        ValueError: there is no such dataset, it has no shards, or they are not image codes of a known format.
    """
    dataset = dataset_on_hub(repository, revision)
    first = dataset.shards[0].name
    with HfFileSystem().open(f"datasets/{repository}@{dataset.revision}/{first}") as shard:
        try:
            metadata = pq.read_schema(shard).metadata
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"Shard {first.rsplit('/', 1)[-1]} of {repository} cannot be read ({error}). "
                f"Check it and publish it again: dalle-collab data verify FOLDER"
            ) from error
    return layout_from_metadata(metadata, first.rsplit("/", 1)[-1])


def training_blocks(repository: str, revision: str) -> ShardBlocks:
    """The blocks of a dataset's training shards. ValueError if there is no such dataset, or it has no shards."""
    dataset = dataset_on_hub(repository, revision)
    return ShardBlocks(dataset, [shard for shard in dataset.shards if evaluation_split([shard.name]) is None])


def check_size(blocks: ShardBlocks, repository: str, batch_size: int) -> None:
    """Raise ValueError if a dataset has fewer records than a micro-batch; reads footers until it has enough."""
    left = batch_size
    for shard in range(len(blocks.shards)):
        left -= sum(blocks.sizes(shard))
        if left <= 0:
            return
    check_pass(0, repository, batch_size)


def evaluation_split(file_names: Sequence[str]) -> str | None:
    """Return a dataset's own evaluation split, by the names of its shards; None: it has none."""
    stems = [name.rsplit("/", 1)[-1] for name in file_names]
    return next((split for split in EVALUATION_SPLITS if any(stem.startswith(f"{split}-") for stem in stems)), None)


def stream_batches(
    blocks: ShardBlocks,
    spans: SpanSource,
    processor: DalleCollabProcessor,
    *,
    num_codes: int,
    batch_size: BatchSize,
    seed: int,
    held_out_share: float = 0.0,
) -> Iterator[NamedBatch]:
    """Yield micro-batches of the spans' records, as long as there come spans; each batch names its records.

    `seed` is that of the run: the order of the records in a block follows from it. Some spans are read at the same
    time, so that neighbours in the dataset do not meet in a batch. Each batch begins with the first of them, so that
    batches which follow each other take equally many records of each. Records held out for the evaluation are skipped,
    the same ones on every peer. While the Hub is down, the stream waits.

    Raises:
        ValueError: there are no records to train on, or they are not image codes.
    """
    spans = PassAfterPass(spans)
    opened: list[_OpenSpan] = []
    ended: list[_OpenSpan] = []
    """Read to their end since the last batch."""

    num_skipped = num_batches = 0
    size = size_of_next(batch_size)
    while True:
        # Another one with each batch: the first batch does not wait for all.
        most_opened = min(NUM_OPEN_SPANS, num_batches + 1)
        while len(opened) < most_opened and (span := spans.next_span(is_needed=not opened)) is not None:
            opened.append(_opened(blocks, span, num_codes, seed, held_out_share))
        if not opened:
            if not spans.wait():
                return
            continue
        num_missing = size - sum(reader.num_read for reader in (*ended, *opened))
        share = -(-num_missing // len(opened))
        for reader in list(opened):
            found = reader.read(min(share, num_missing))
            num_missing -= found
            num_skipped = 0 if found else num_skipped + reader.span.num_records
            if not found:
                ended.append(reader)
                opened.remove(reader)
            if num_missing == 0:
                break
        if num_missing == 0:
            taken = [reader.take(to_the_end=True) for reader in ended] + [reader.take() for reader in opened]
            yield _named_batch(taken, processor)
            ended, num_batches, size = [], num_batches + 1, size_of_next(batch_size)
        if num_skipped > MOST_SKIPPED:
            raise ValueError("None of so many records is one to train on: they are held out, or there are none.")


def read_batches_again(
    blocks: ShardBlocks,
    spans: Sequence[Span],
    num_batches: int,
    processor: DalleCollabProcessor,
    *,
    num_codes: int,
    seed: int,
    held_out_share: float = 0.0,
) -> Iterator[NamedBatch]:
    """Yield the batches that `stream_batches` made of these spans, each of equally many records of each span.

    Raises:
        ValueError: it cannot have been so.
    """
    for span in spans:
        if span.shard >= len(blocks.shards) or span.group >= len(blocks.sizes(span.shard)):
            raise ValueError(f"The dataset has no block {span.group} of a shard {span.shard}.")
    readers = [_opened(blocks, span, num_codes, seed, held_out_share) for span in spans]
    sizes = [reader.num_left for reader in readers]
    if any(size % num_batches for size in sizes) or not any(sizes):
        raise ValueError(f"Spans of {', '.join(map(str, sizes))} records are not {num_batches} equal batches.")
    for number in range(1, num_batches + 1):
        for reader, size in zip(readers, sizes, strict=True):
            reader.read(size // num_batches)
        yield _named_batch([reader.take(to_the_end=number == num_batches) for reader in readers], processor)


class _Taken(NamedTuple):
    """Some records of a span."""

    span: Span
    captions: Sequence[str]
    codes: np.ndarray


def _named_batch(taken: Sequence[_Taken], processor: DalleCollabProcessor) -> NamedBatch:
    parts = [part for part in taken if part.span.num_records]
    input_ids = processor(text=[caption for part in parts for caption in part.captions])["input_ids"]
    image_codes = torch.from_numpy(np.concatenate([part.codes for part in parts])).long()
    counts = [len(part.captions) for part in parts]
    return NamedBatch(image_code_batch(input_ids, image_codes), [part.span for part in parts], counts)


def _opened(blocks: ShardBlocks, span: Span, num_codes: int, seed: int, held_out_share: float) -> "_OpenSpan":
    table = through_outages(partial(blocks.read, span.shard, span.group))
    return _OpenSpan(span, table, num_codes, seed, held_out_share, blocks.shards[span.shard].name)


class _OpenSpan:
    """Reads a span's records in the order of their block."""

    def __init__(
        self, span: Span, table: pa.Table, num_codes: int, seed: int, held_out_share: float, shard_name: str
    ) -> None:
        self.span = span
        if span.stop > len(table):
            raise ValueError(
                f"Block {span.group} of shard {shard_name} has {len(table)} records, expected {span.stop}. The "
                "dataset is another one than that of the run."
            )
        self._captions, self._codes = captions_and_codes(table, num_codes=num_codes, shard_name=shard_name)
        self._rows = record_order(span.block, len(table), seed)[span.start : span.stop]
        share = held_out_share
        is_held_out = held_out_mask(self._codes[self._rows], share) if share else np.zeros(len(self._rows), bool)
        self._left = np.flatnonzero(~is_held_out)
        """Places of the records to train on that no batch has yet."""

        self.num_read = 0
        """Of these, how many are read."""

        self._start = 0
        """Place of the first record that no batch has, also not as one that is held out."""

    @property
    def num_left(self) -> int:
        """Records to train on that no batch has yet."""
        return len(self._left)

    def read(self, most: int) -> int:
        """Read the next records; return how many there were."""
        found = min(most, len(self._left) - self.num_read)
        self.num_read += found
        return found

    def take(self, *, to_the_end: bool = False) -> _Taken:
        """Take what is read, and the held-out records before it; `to_the_end`: and those behind it."""
        places, self._left = self._left[: self.num_read], self._left[self.num_read :]
        start, stop = self._start, len(self._rows) if to_the_end else int(max(places, default=self._start - 1)) + 1
        self.num_read, self._start = 0, stop
        span = Span(*self.span.block, self.span.start + start, self.span.start + stop)
        rows = self._rows[places]
        return _Taken(span, [self._captions[row] or "" for row in rows.tolist()], self._codes[rows])


def held_out_mask(image_codes: np.ndarray, share: float) -> np.ndarray:
    """Tell which records are held out: (num_records,) bool, from the codes alone.

    image_codes: (num_records, num_codes) int16. The same picture is on the same side wherever it occurs, so that
    duplicates do not leak into the evaluation.
    """
    rows = np.ascontiguousarray(image_codes, "<i2")
    return np.array([is_held_out(row.tobytes(), share) for row in rows], bool)
