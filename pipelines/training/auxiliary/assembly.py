"""Putting an auxiliary peer together from its parts: keys, spool, publisher, metrics, evaluation, reel, trackers."""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.training.tasks.text_to_image.reel_drawing import reel_drawer

if TYPE_CHECKING:
    import torch

    from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
    from pipelines.admission.client import PeerAdmission
    from pipelines.training.auxiliary.auxiliary_options import AuxiliaryOptions
    from pipelines.training.auxiliary.auxiliary_peer import AuxiliaryPeer
    from pipelines.training.auxiliary.snapshot_tasks import SnapshotTask
    from pipelines.training.metrics.run_metrics import RunMetrics
    from pipelines.training.metrics.trackers import Trackers
    from pipelines.training.run.training_run import TrainingRun

logger = logging.getLogger(__name__)


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
    *,
    admission: "PeerAdmission | None",
) -> "Iterator[tuple[AuxiliaryPeer, Trackers]]":
    """Yield the auxiliary peer with all that belongs to it. Enter it in the main thread; `dht` is of `open_dht`.

    `admission` is this peer's; None: the run is open.
    """
    from hub_tools.run_files import REEL_FOLDER
    from pipelines.training.auxiliary.auxiliary_options import sole_user
    from pipelines.training.auxiliary.auxiliary_peer import AuxiliaryPeer
    from pipelines.training.auxiliary.commit_budget import CommitBudget
    from pipelines.training.auxiliary.hub_publisher import HubPublisher
    from pipelines.training.auxiliary.publication_spool import PublicationSpool
    from pipelines.training.auxiliary.snapshot_tasks import SnapshotWorker
    from pipelines.training.metrics.run_metrics import RunMetrics
    from pipelines.training.metrics.trackers import Trackers
    from pipelines.training.repository.publisher_keys import PublisherKey
    from pipelines.training.run.versions import package_version

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
            admission=admission,
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
    from pipelines.training.auxiliary.snapshot_tasks import SnapshotTask
    from pipelines.training.metrics.reel import ProgressReel

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
        from pipelines.training.tasks.text_to_image.held_out_evaluation import evaluation_loss, held_out_batches

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
