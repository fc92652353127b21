"""Putting an auxiliary peer together from its parts: keys, spool, publisher, metrics, evaluation, reel, trackers."""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
    from pipelines.training.auxiliary_options import AuxiliaryOptions
    from pipelines.training.auxiliary_peer import AuxiliaryPeer
    from pipelines.training.run_metrics import RunMetrics
    from pipelines.training.snapshot_work import SnapshotTask
    from pipelines.training.trackers import Trackers
    from pipelines.training.training_run import TrainingRun

logger = logging.getLogger(__name__)

PICTURES_PER_PROMPT = 4
PICTURE_SIDE = 96


def default_folder(repository: str) -> Path:
    """Return where an auxiliary peer of a run keeps its files: beside the Hub client's own, by Hub and repository."""
    from huggingface_hub import constants

    names = [re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") for text in (constants.ENDPOINT, repository)]
    return Path(constants.HF_HOME) / "dalle-collab" / "auxiliary" / "--".join(names)


@contextlib.contextmanager
def assembled_auxiliary_peer(
    repository: str,
    run: "TrainingRun",
    dht: Any,
    processor: "DalleCollabProcessor",
    options: "AuxiliaryOptions",
) -> "Iterator[tuple[AuxiliaryPeer, Trackers]]":
    """Yield the auxiliary peer with all that belongs to it. Enter it in the main thread; `dht` is of `open_dht`."""
    from pipelines.training.auxiliary_options import sole_user
    from pipelines.training.auxiliary_peer import AuxiliaryPeer
    from pipelines.training.commit_budget import CommitBudget
    from pipelines.training.hub_publisher import HubPublisher
    from pipelines.training.progress_reel import REEL_FOLDER
    from pipelines.training.publication_spool import PublicationSpool
    from pipelines.training.publisher_keys import PublisherKey
    from pipelines.training.run_creation import package_version
    from pipelines.training.run_metrics import RunMetrics
    from pipelines.training.snapshot_work import SnapshotWorker
    from pipelines.training.trackers import Trackers

    folder = options.generation_folder(run.generation)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sole_user(options.folder))
        metrics = RunMetrics(run, folder / "metrics")
        trackers = stack.enter_context(Trackers(options.trackers, run, options.folder / "trackers"))
        publisher = HubPublisher(
            repository,
            run,
            key=PublisherKey.load_or_create(options.key_file),
            spool=PublicationSpool(folder / "spool", options.max_spool_bytes),
            budget=CommitBudget(options.folder / "commit_times.json", run.max_commits_per_hour),
            metrics=metrics,
            reel_folder=folder / REEL_FOLDER,
            metrics_interval_seconds=options.metrics_interval_seconds,
            package_version=package_version(),
        )
        stopping = threading.Event()
        evaluate = _Evaluation(run, processor, metrics, trackers, stopping)
        tasks = snapshot_tasks(run, processor, metrics, folder / REEL_FOLDER, evaluate)
        worker = stack.enter_context(SnapshotWorker(tasks, stopping))
        peer = AuxiliaryPeer(
            run,
            dht,
            processor,
            publisher,
            worker,
            package_version=package_version(),
            follow_interval_seconds=options.follow_interval_seconds,
            takeover_seconds=options.takeover_seconds,
            retry_seconds=options.retry_seconds,
        )
        yield stack.enter_context(peer), trackers


def snapshot_tasks(
    run: "TrainingRun",
    processor: "DalleCollabProcessor",
    metrics: "RunMetrics",
    reel_folder: Path,
    evaluate: "Callable[[int, DalleCollabForConditionalGeneration], None]",
) -> "dict[SnapshotTask, int]":
    """Return what the run wants done with its model every few epochs, with the epoch up to which it is done."""
    from pipelines.training.progress_reel import ProgressReel
    from pipelines.training.snapshot_work import SnapshotTask

    tasks: dict[SnapshotTask, int] = {}
    evaluated = max((row["epoch"] for row in metrics.evaluations()), default=0)
    tasks[SnapshotTask(name="Evaluation", interval=run.evaluation_interval_epochs, work=evaluate)] = evaluated
    if run.reel_prompts:
        reel = ProgressReel(run, reel_folder, reel_drawer(processor))

        def draw(epoch: int, model: "torch.nn.Module") -> None:
            reel.add(epoch, model, time.time())

        task = SnapshotTask(name="Drawing the progress reel", interval=run.reel_interval_epochs, work=draw)
        tasks[task] = reel.newest_epoch()
    return tasks


class _Evaluation:
    """Computes the loss on held-out records, which are read from the Hub once."""

    def __init__(
        self,
        run: "TrainingRun",
        processor: "DalleCollabProcessor",
        metrics: "RunMetrics",
        trackers: "Trackers",
        stopping: threading.Event,
    ) -> None:
        self._run, self._processor, self._metrics, self._trackers = run, processor, metrics, trackers
        self._stopping = stopping
        self._batches: list[Any] | None = None

    def __call__(self, epoch: int, model: "torch.nn.Module") -> None:
        from pipelines.training.held_out_evaluation import evaluation_loss, held_out_batches

        started = time.monotonic()
        if self._batches is None:
            num_codes = model.config.image_grid_size**2
            self._batches = held_out_batches(self._run, self._processor, num_codes)
            if not self._batches:
                logger.warning("The run holds no records out of %s: no evaluation.", self._run.dataset_repository)
        if (loss := evaluation_loss(model, self._batches, self._stopping.is_set)) is None:
            return
        num_records = sum(len(batch.input_ids) for batch in self._batches)
        seconds = time.monotonic() - started
        self._metrics.add_evaluation(epoch=epoch, loss=loss, num_records=num_records, seconds=seconds, now=time.time())
        self._trackers.log_evaluation(epoch, loss)


def reel_drawer(processor: "DalleCollabProcessor") -> "Callable[[torch.nn.Module, Sequence[str]], Image.Image]":
    """Return a function that draws prompts, one row of pictures for each, with the run's codec and a fixed seed."""
    codec: Any = None

    def draw(model: "torch.nn.Module", prompts: "Sequence[str]") -> "Image.Image":
        nonlocal codec
        from pipelines.generation.picture_grid import draw_thumbnails
        from pipelines.generation.text_to_image import to_picture
        from pipelines.image_codes.vqgan_codec import VQGANCodec
        from pipelines.training.progress_reel import REEL_SEED

        if codec is None:
            revision = processor.image_codec_revision
            codec = VQGANCodec.from_pretrained(processor.image_codec_repository, revision=revision)
        input_ids = processor(text=list(prompts))["input_ids"]
        codes = model.generate_image_codes(input_ids, num_candidates=PICTURES_PER_PROMPT, seed=REEL_SEED)
        rows = [[to_picture(image) for image in codec.decode(row)] for row in codes]
        return draw_thumbnails(rows, PICTURE_SIDE)

    return draw
