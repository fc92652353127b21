"""The loss on held-out records: a fixed subset, the same for every epoch and every auxiliary peer."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
from huggingface_hub import HfFileSystem

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.image_codes.image_code_record import captions_and_codes
from pipelines.training.run.task import Batch
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.tasks.streaming import prepare_streaming
from pipelines.training.tasks.text_to_image.image_code_stream import held_out_mask, image_code_batch

EVALUATION_SPLITS = ("validation", "test")
EVALUATION_BATCH_SIZE = 8
RECORDS_PER_READ = 256


def evaluation_split(file_names: Sequence[str]) -> str | None:
    """Return a dataset's own evaluation split, by the names of its shards; None: it has none."""
    stems = [Path(name).name for name in file_names]
    return next((split for split in EVALUATION_SPLITS if any(stem.startswith(f"{split}-") for stem in stems)), None)


def held_out_batches(run: TrainingRun, processor: DalleCollabProcessor, num_codes: int) -> list[Batch]:
    """Read the evaluation's records: those of the dataset's own split, else those held out of training.

    The order is the dataset's, so that the subset is the same whenever and wherever it is read. Empty if the dataset
    has no split of its own and the run holds out no records, or none of these.
    """
    repository, revision = run.dataset_repository, run.dataset_revision
    split = evaluation_split(HfFileSystem().glob(f"datasets/{repository}@{revision}/**/*.parquet"))
    if split is None and run.held_out_share == 0:
        return []
    captions: list[str | None] = []
    codes: list[torch.Tensor] = []
    for some_captions, some_codes in _records(run, split or "train", num_codes):
        mask = [True] * len(some_captions) if split else held_out_mask(some_codes, run.held_out_share).tolist()
        captions += [caption for caption, is_held_out in zip(some_captions, mask, strict=True) if is_held_out]
        codes.append(torch.from_numpy(some_codes[mask]).long())
        if len(captions) >= run.num_evaluation_records:
            break
    if not captions:
        return []
    captions, image_codes = captions[: run.num_evaluation_records], torch.cat(codes)[: run.num_evaluation_records]
    input_ids = torch.as_tensor(processor(text=[caption or "" for caption in captions])["input_ids"])
    pairs = zip(input_ids.split(EVALUATION_BATCH_SIZE), image_codes.split(EVALUATION_BATCH_SIZE), strict=True)
    return [image_code_batch(*pair) for pair in pairs]


def _records(run: TrainingRun, split: str, num_codes: int) -> Iterator[tuple[list[str | None], np.ndarray]]:
    prepare_streaming()
    source = datasets.load_dataset(run.dataset_repository, revision=run.dataset_revision, split=split, streaming=True)
    for table in source.with_format("arrow").iter(RECORDS_PER_READ):
        yield captions_and_codes(table, num_codes=num_codes, shard_name=run.dataset_repository)
