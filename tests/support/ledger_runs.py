"""Runs whose ledger is looked at: a dataset of many blocks, trainers that come and go, what was published."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from published_runs import LOOPBACK, TrainingMaterial

from hub_tools.processes.event_files import read_events
from pipelines.tasks.text_to_image.image_codes.image_code_record import image_code_table
from pipelines.tools.chaos.tiny_run import numbered_records

RECORDS_PER_SHARD, RECORDS_PER_BLOCK = 1024, 128


def create_ledger_run(
    material: TrainingMaterial, folder: Path, name: str, num_records: int, **settings: object
) -> tuple[TrainingMaterial, str]:
    """Publish a dataset of so many records and a run that trains on it."""
    (dataset := folder / "dataset").mkdir()
    for number in range(num_records // RECORDS_PER_SHARD):
        numbers = range(number * RECORDS_PER_SHARD, (number + 1) * RECORDS_PER_SHARD)
        table = image_code_table(*numbered_records(numbers, material.layout), material.layout)
        pq.write_table(table, dataset / f"train-{number:05d}.parquet", row_group_size=RECORDS_PER_BLOCK)
    material = dataclasses.replace(material, dataset=f"org/{name}-dataset")
    material.api.create_repo(material.dataset, repo_type="dataset")
    material.api.upload_folder(repo_id=material.dataset, repo_type="dataset", folder_path=str(dataset))
    return material, material.create_run(f"org/{name}-run", run_id=name, **settings)


class Trainer:
    """A `join` command and its events."""

    def __init__(self, process, events):
        self.process, self._events = process, events

    @classmethod
    @contextlib.contextmanager
    def joining(cls, material: TrainingMaterial, repository: str, folder: Path, name: str, *options: str) -> Iterator:
        """Start one; end it with the block."""
        events, log = folder / f"{name}.jsonl", folder / f"{name}.log"
        arguments = ["join", repository, "--host", LOOPBACK, "--micro-batch-size", "8", "--events", str(events)]
        with material.commands.started_worker(log, *arguments, *options) as process:
            yield cls(process, events)

    def epochs(self) -> list[int]:
        """The epochs that it has reported so far."""
        return [event["epoch"] for event in read_events(self._events) if "epoch" in event]

    @property
    def num_samples(self) -> int:
        """What it has contributed."""
        return max(event.get("num_samples", 0) for event in read_events(self._events))
