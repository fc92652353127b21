"""What a new run's settings mean for its dataset: passes, hours, and what the length of its texts costs."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import HfFileSystem

from modeling_dalle_collab import DalleCollabConfig
from pipelines.command_line.explaining.slow_links import SECONDS_OF_A_BATCH, round_seconds
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops
from pipelines.tasks.text_to_image.model import checked_configuration
from pipelines.tools.doctor.hub_checks import USER_ERRORS
from pipelines.tools.doctor.organiser_checks import check_rate, passes_over
from pipelines.tools.doctor.run_examination import count_records, dataset_files

RATES = {"samples": (10, 100, 1000), "tokens": (10_000, 100_000, 1_000_000)}
"""Per second, of all peers together."""

USUAL_MUON_RATE = 1e-3
"""Of large batches."""

LINKS = (15, 100)
"""Mbit/s of a slow and of a usual link."""

MOST_SHARDS, MOST_CAPTIONS, MOST_CHARACTERS = 4, 512, 10_000
"""What is read of a dataset for the lengths of its captions: of so many shards so many captions each."""

UNREADABLE = (*USER_ERRORS, KeyError, pa.ArrowException)
HELD_SHARE = 0.99
LENGTH_STEP = 8
WORTH_SAYING = 0.05


def schedule_sentences(run: TrainingRun, num_records: int) -> list[str]:
    """Return how many samples the schedule takes, how often it passes over the records, and how long that takes."""
    total = run.num_epochs * run.samples_per_epoch
    said = f"{run.num_epochs:,} epochs of {run.samples_per_epoch:,} {run.unit} are {total:,} {run.unit}"
    if run.unit == "samples" and num_records:
        said += f": {passes_over(run, num_records):,.1f} passes over {num_records:,} records"
    hours = ", ".join(f"{total / rate / 3600:,.1f} h at {rate:,}" for rate in RATES[run.unit])
    return [f"{said}.", f"At so many {run.unit} a second of all peers together, that takes {hours}."]


def step_sentences(run: TrainingRun, num_parameters: int) -> list[str]:
    """Return how long a round takes on slow links, what the outer steps are, and whether the rate is another's."""
    said, rate = [], check_rate(run)
    seconds = {mbit: round_seconds(num_parameters, mbit) for mbit in LINKS}
    if run.synchronisation == "dense" and seconds[LINKS[0]] > SECONDS_OF_A_BATCH:
        links = ", ".join(f"{number:,.0f} s at {mbit} Mbit/s" for mbit, number in seconds.items())
        cure = "" if run.local_steps > 1 else f" For slow links: --links {LINKS[0]}"
        said.append(f"A round of many peers takes up to {links}.{cure}")
    if run.local_steps > 1:
        said.append(
            f"After {run.local_steps} local steps with {run.inner_optimizer}, outer steps have rate "
            f"{run.outer_learning_rate:g} and momentum {run.outer_momentum:g}."
        )
    if run.local_steps == 1 and run.optimizer == "lamb":
        said.append(
            "In small runs muon ended at a loss of 0.88 (texts) and 0.97 (pictures) times lamb's: --set optimizer=muon "
            f"--set peak_learning_rate={USUAL_MUON_RATE:g}"
        )
    if rate.status == "warn" and run.stepping_optimizer != "lamb":  # whose rate is the default
        said.append(f"peak_learning_rate is {rate.seen}; expected {rate.expected}.")
    return said


def text_sentences(lengths: Sequence[int], config: DalleCollabConfig) -> list[str]:
    """Return how long the captions are, in tokens, and what another `text_sequence_length` would cost or save."""
    if not lengths:
        return []
    ordered, places = sorted(lengths), config.text_sequence_length
    held = _held(ordered)
    fitting = fitting_length(lengths)
    cut = sum(length > places for length in ordered) / len(ordered)
    said = [
        f"Captions: half have at most {ordered[(len(ordered) - 1) // 2]} tokens, {HELD_SHARE:.0%} at most {held}, the "
        f"longest of {len(ordered):,} has {ordered[-1]}. The model reads {places} text tokens beside "
        f"{config.num_image_codes} image codes."
    ]
    changed = _work(config, fitting) / _work(config, places) - 1
    if fitting < places and -changed >= WORTH_SAYING:
        longer = sum(length > fitting for length in ordered) / len(ordered)
        said.append(
            f"With --set text_sequence_length={fitting} a step is {-changed:.0%} less work, and {longer:.1%} of the "
            "captions lose their end."
        )
    elif fitting > places:
        said.append(
            f"{cut:.1%} of the captions lose their end: --set text_sequence_length={fitting} would keep "
            f"{HELD_SHARE:.0%} whole, for {changed:.0%} more work in a step."
        )
    return said


def fitting_length(lengths: Sequence[int]) -> int:
    """Return a `text_sequence_length` that keeps nearly all captions of these lengths, in tokens, whole."""
    return max(LENGTH_STEP, LENGTH_STEP * math.ceil(_held(sorted(lengths)) / LENGTH_STEP)) if lengths else LENGTH_STEP


@dataclass(frozen=True, kw_only=True)
class DatasetSample:
    """What is known of a run's dataset without reading it all."""

    num_records: int
    """0: it is of texts, which are counted in tokens."""

    caption_lengths: Sequence[int]
    """In tokens of the run's tokenizer, of captions spread over the dataset."""

    @classmethod
    def read(cls, run: TrainingRun, processor: Any) -> "DatasetSample":
        """Read it of a run's dataset. Raises one of `UNREADABLE`."""
        files = dataset_files(run) if run.unit == "samples" else []
        captions = list(read_captions(files, HfFileSystem().open)) if run.task == "text-to-image" else []
        pieces = processor.tokenizer(captions, add_special_tokens=False, verbose=False)["input_ids"] if captions else []
        return cls(num_records=count_records(files) if files else 0, caption_lengths=[len(ids) for ids in pieces])


def explain_run(
    run: TrainingRun, processor: object, num_parameters: int, dataset: DatasetSample | None = None
) -> list[str]:
    """Return sentences about a run that is being created, from samples of its dataset, which are read if not given.

    What cannot be read is said instead: it does not stop a run from being created.
    """
    try:
        dataset = dataset or DatasetSample.read(run, processor)
        said = [*step_sentences(run, num_parameters), *schedule_sentences(run, dataset.num_records)]
        if run.task == "text-to-image":
            said += text_sentences(dataset.caption_lengths, checked_configuration(run.model_config))
    except UNREADABLE as error:
        return [f"What the settings mean for {run.dataset_repository} cannot be said: {error}"]
    return said


def read_captions(files: Sequence[str], open_file: Callable[[str], IO[bytes]]) -> Iterator[str]:
    """Yield captions from the beginnings of some shards, spread over the dataset; very long ones are cut."""
    for file in files[:: max(1, math.ceil(len(files) / MOST_SHARDS))][:MOST_SHARDS]:
        with open_file(file) as opened:
            batches = pq.ParquetFile(opened).iter_batches(MOST_CAPTIONS, columns=["caption"])
            for batch in itertools.islice(batches, 1):
                for caption in batch.column("caption").to_pylist():
                    if isinstance(caption, str):
                        yield caption[:MOST_CHARACTERS]


def _held(ordered: Sequence[int]) -> int:
    return ordered[math.ceil(HELD_SHARE * len(ordered)) - 1]


def _work(config: DalleCollabConfig, text_sequence_length: int) -> float:
    values = config.to_dict() | {"text_sequence_length": text_sequence_length}
    return training_flops(DalleCollabConfig(**values), config.recompute)
