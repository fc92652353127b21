"""The streaming reader: image codes from the Dataset Hub, captions tokenised on the fly, each peer in its own order."""

from collections.abc import Iterable, Iterator, Sequence

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from huggingface_hub import HfFileSystem

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.image_codes.dataset_shards import dataset_on_hub
from pipelines.image_codes.image_code_record import ImageCodeLayout, captions_and_codes, layout_from_metadata
from pipelines.training.run.task import Batch
from pipelines.training.run.training_run import stable_seed
from pipelines.training.tasks.streaming import (
    NUM_OPEN_SHARDS,
    check_pass,
    is_held_out,
    passes_through_outages,
    prepare_streaming,
)


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


def stream_batches(
    repository: str,
    revision: str,
    processor: DalleCollabProcessor,
    *,
    num_codes: int,
    batch_size: int,
    seed: int,
    shuffle_buffer_size: int,
    held_out_share: float = 0.0,
) -> Iterator[Batch]:
    """Yield micro-batches endlessly, pass after pass, each pass in a different order that depends only on the seed.

    Records held out for the evaluation are skipped, the same ones on every peer. If the Hub is down for longer than the
    client retries, the next pass starts as soon as it is back.

    Raises:
        ValueError: the dataset has fewer records than one batch, or records that are not image codes.
    """
    prepare_streaming()
    source = datasets.load_dataset(repository, revision=revision, split="train", streaming=True)

    def one_pass(number: int) -> Iterator[Batch]:
        order = source.shuffle(
            seed=stable_seed(seed, number) % 2**32,
            buffer_size=shuffle_buffer_size,
            max_buffer_input_shards=NUM_OPEN_SHARDS,
        )
        num_batches = 0
        tables = order.with_format("arrow").iter(batch_size)
        records = (captions_and_codes(table, num_codes=num_codes, shard_name=repository) for table in tables)
        for captions, codes in whole_batches(records, batch_size, held_out_share):
            input_ids = processor(text=[caption or "" for caption in captions])["input_ids"]
            yield image_code_batch(input_ids, torch.from_numpy(codes).long())
            num_batches += 1
        check_pass(num_batches, repository, batch_size)

    yield from passes_through_outages(one_pass)


def held_out_mask(image_codes: np.ndarray, share: float) -> np.ndarray:
    """Tell which records are held out: (num_records,) bool, from the codes alone.

    image_codes: (num_records, num_codes) int16. The same picture is on the same side wherever it occurs, so that
    duplicates do not leak into the evaluation.
    """
    rows = np.ascontiguousarray(image_codes, "<i2")
    return np.array([is_held_out(row.tobytes(), share) for row in rows], bool)


def whole_batches(
    records: Iterable[tuple[list[str | None], np.ndarray]], batch_size: int, held_out_share: float
) -> Iterator[tuple[list[str | None], np.ndarray]]:
    """Skip held-out records and put the others, in order, into batches of exactly `batch_size`."""
    captions: list[str | None] = []
    codes: list[np.ndarray] = []
    for some_captions, some_codes in records:
        mask = held_out_mask(some_codes, held_out_share) if held_out_share else np.zeros(len(some_codes), bool)
        captions += [caption for caption, is_held_out in zip(some_captions, mask, strict=True) if not is_held_out]
        codes += list(some_codes[~mask])
        while len(captions) >= batch_size:
            yield captions[:batch_size], np.stack(codes[:batch_size])
            captions, codes = captions[batch_size:], codes[batch_size:]
