"""The loss on held-out records: a fixed subset, the same for every epoch and every auxiliary peer."""

from collections.abc import Callable, Iterator

import datasets
import numpy as np
import torch

from hub_tools.foreign.dataset_opening import opening_dataset
from hub_tools.foreign.downloads import listed_files
from modeling_dalle_collab import DalleCollabProcessor
from pipelines.core.run.task import Batch
from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.streaming import prepare_streaming
from pipelines.tasks.text_to_image.image_code_stream import evaluation_split, held_out_mask, image_code_batch
from pipelines.tasks.text_to_image.image_codes.image_code_record import captions_and_codes

EVALUATION_BATCH_SIZE = 8
RECORDS_PER_READ = 256


def held_out_batches(run: TrainingRun, processor: DalleCollabProcessor, num_codes: int) -> list[Batch]:
    """Read the evaluation's records as batches; see `held_out_records`."""
    captions, image_codes = held_out_records(run, num_codes, run.num_evaluation_records)
    if not captions:
        return []
    input_ids = torch.as_tensor(processor(text=captions)["input_ids"])
    pairs = zip(input_ids.split(EVALUATION_BATCH_SIZE), image_codes.split(EVALUATION_BATCH_SIZE), strict=True)
    return [image_code_batch(*pair) for pair in pairs]


def held_out_records(run: TrainingRun, num_codes: int, number: int) -> tuple[list[str], torch.Tensor]:
    """Read up to `number` records: those of the dataset's own split, else those held out of training.

    Returns their captions and their image codes, `(record, image)` int64. The order is the dataset's, so that the
    subset is the same whenever and wherever it is read. Empty if the dataset has no split of its own and the run holds
    out no records, or none of these.
    """
    repository, revision = run.dataset_repository, run.dataset_revision
    files = listed_files(repository, revision, "dataset")
    split = evaluation_split([file.path for file in files if file.path.endswith(".parquet")])
    if split is not None:
        return _first_records(run, split, num_codes, number, lambda codes: np.ones(len(codes), bool))
    if not run.held_out_share:
        return [], torch.empty(0, num_codes, dtype=torch.int64)
    return _first_records(run, "train", num_codes, number, lambda codes: held_out_mask(codes, run.held_out_share))


def training_records(run: TrainingRun, num_codes: int, number: int) -> tuple[list[str], torch.Tensor]:
    """Read up to `number` records that peers train on, in the dataset's order; see `held_out_records`."""
    return _first_records(run, "train", num_codes, number, lambda codes: ~held_out_mask(codes, run.held_out_share))


def _first_records(
    run: TrainingRun, split: str, num_codes: int, number: int, choose: Callable[[np.ndarray], np.ndarray]
) -> tuple[list[str], torch.Tensor]:
    captions: list[str] = []
    codes = [torch.empty(0, num_codes, dtype=torch.int64)]
    for some_captions, some_codes in _records(run, split, num_codes):
        mask = choose(some_codes)
        captions += [caption or "" for caption, is_chosen in zip(some_captions, mask, strict=True) if is_chosen]
        codes.append(torch.from_numpy(some_codes[mask]).long())
        if len(captions) >= number:
            break
    return captions[:number], torch.cat(codes)[:number]


def _records(run: TrainingRun, split: str, num_codes: int) -> Iterator[tuple[list[str | None], np.ndarray]]:
    prepare_streaming()
    repository, revision = run.dataset_repository, run.dataset_revision
    with opening_dataset(repository, revision):
        source = datasets.load_dataset(repository, revision=revision, split=split, streaming=True)
    for table in source.with_format("arrow").iter(RECORDS_PER_READ):
        yield captions_and_codes(table, num_codes=num_codes, shard_name=run.dataset_repository)
