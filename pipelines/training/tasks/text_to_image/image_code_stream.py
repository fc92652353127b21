"""The streaming reader: image codes from the Dataset Hub, captions tokenised on the fly, span by span."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from huggingface_hub import HfFileSystem

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.image_codes.dataset_shards import dataset_on_hub
from pipelines.image_codes.image_code_record import ImageCodeLayout, captions_and_codes, layout_from_metadata
from pipelines.image_codes.shard_blocks import ShardBlocks
from pipelines.training.run.span_source import SpanSource
from pipelines.training.run.spans import Span, record_order
from pipelines.training.run.task import Batch, NamedBatch
from pipelines.training.tasks.streaming import check_pass, is_held_out, through_outages

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
    batch_size: int,
    seed: int,
    held_out_share: float = 0.0,
) -> Iterator[NamedBatch]:
    """Yield micro-batches of the spans' records, as long as there come spans; each batch names its records.

    `seed` is that of the run: the order of the records in a block follows from it. Some spans are read at the same
    time, so that neighbours in the dataset do not meet in a batch. Records held out for the evaluation are skipped, the
    same ones on every peer. While the Hub is down, the stream waits.

    Raises:
        ValueError: there are no records to train on, or they are not image codes.
    """
    opened: list[_OpenSpan] = []
    waiting: Span | None = None
    captions: list[str] = []
    codes: list[np.ndarray] = []
    used: list[Span] = []
    num_skipped = num_batches = 0
    while True:
        # Another one with each batch: the first batch does not wait for all.
        most_opened = min(NUM_OPEN_SPANS, num_batches + 1)
        while len(opened) < most_opened and (span := waiting or spans.next_span(is_needed=not opened)) is not None:
            waiting = None
            if opened and opened[0].span.pass_number != span.pass_number:  # a pass ends before another one begins
                waiting = span
                break
            table = through_outages(partial(blocks.read, span.shard, span.group))
            opened.append(_OpenSpan(span, table, num_codes, seed, held_out_share, blocks.shards[span.shard].name))
        if not opened:
            if not spans.wait():
                return
            continue
        share = -(-(batch_size - len(captions)) // len(opened))
        for reader in list(opened):
            found, their_codes = reader.next_records(min(share, batch_size - len(captions)))
            if not found:
                num_skipped += reader.span.num_records
                used += reader.take_used()
                opened.remove(reader)
                continue
            captions += found
            codes.append(their_codes)
            num_skipped = 0
            if len(captions) == batch_size:
                used += [span for reader in opened for span in reader.take_used()]
                input_ids = processor(text=captions)["input_ids"]
                yield NamedBatch(image_code_batch(input_ids, torch.from_numpy(np.concatenate(codes)).long()), used)
                captions, codes, used = [], [], []
                num_batches += 1
                break
        if num_skipped > MOST_SKIPPED:
            raise ValueError("None of so many records is one to train on: they are held out, or there are none.")


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
        held_out = held_out_mask(self._codes[self._rows], share) if share else np.zeros(len(self._rows), bool)
        self._left = np.flatnonzero(~held_out)
        self._place = self._taken = 0

    def next_records(self, most: int) -> tuple[list[str], np.ndarray]:
        """The next captions with their codes (num_records, num_codes) int16; none after the last one."""
        places, self._left = self._left[:most], self._left[most:]
        self._place = int(places[-1]) + 1 if len(places) else len(self._rows)
        rows = self._rows[places]
        return [self._captions[row] or "" for row in rows.tolist()], self._codes[rows]

    def take_used(self) -> list[Span]:
        """The records read since the last call, as one span; none, if there are none."""
        start, self._taken = self._taken, self._place
        first = self.span.start
        return [Span(*self.span.block, first + start, first + self._place)] if start < self._place else []


def held_out_mask(image_codes: np.ndarray, share: float) -> np.ndarray:
    """Tell which records are held out: (num_records,) bool, from the codes alone.

    image_codes: (num_records, num_codes) int16. The same picture is on the same side wherever it occurs, so that
    duplicates do not leak into the evaluation.
    """
    rows = np.ascontiguousarray(image_codes, "<i2")
    return np.array([is_held_out(row.tobytes(), share) for row in rows], bool)
