"""Putting an auxiliary peer together from its parts: keys, spool, publisher, metrics, evaluation, reel, trackers."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from hub_tools.run_files import REEL_FOLDER
from pipelines.core.run.versions import package_version
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions, sole_user
from pipelines.features.publishing.auxiliary.auxiliary_peer import AuxiliaryPeer
from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import CheckpointEvaluator
from pipelines.features.publishing.auxiliary.evaluating.held_out_evaluation import HeldOutEvaluation
from pipelines.features.publishing.auxiliary.following import Follow
from pipelines.features.publishing.auxiliary.publishing.bucket_publisher import BucketPublisher
from pipelines.features.publishing.auxiliary.publishing.commit_budget import CommitBudget
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool
from pipelines.features.publishing.auxiliary.snapshot_tasks import SnapshotTask, SnapshotWorker
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.metrics.sample_gallery import SampleGallery
from pipelines.features.publishing.metrics.trackers import Trackers
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.organiser import needed_organiser, organiser_here

REST_AFTER_DRAWING = 9.0
"""Times what a drawing took: it gets at most a tenth of the time of a machine that also closes rounds and publishes."""

SECONDS_BESIDE_A_BUCKET = 3600.0
"""Between commits of metrics alone where the run's bucket has them, which dashboard and landing page read."""


@contextlib.contextmanager
def assembled_auxiliary_peer(
    repository: str, task: PublishableTask, follow: Follow, options: AuxiliaryOptions
) -> Iterator[tuple[AuxiliaryPeer, Trackers]]:
    """Yield the auxiliary peer with all its parts, following its run as `follow` does. Enter it in the main thread."""
    run = task.run
    folder = options.generation_folder(run.generation)
    find_organiser = needed_organiser if options.organiser_key_file else organiser_here
    organiser = find_organiser(repository, run, options.organiser_key_file)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sole_user(options.folder))
        metrics = RunMetrics(run, folder / "metrics")
        trackers = stack.enter_context(Trackers(options.trackers, run, options.folder / "trackers"))
        evaluator = None
        if options.evaluation is not None:
            evaluator = stack.enter_context(
                CheckpointEvaluator(repository, run, options.evaluation, folder=folder / "evaluation", metrics=metrics)
            )
        key, bucket = PublisherKey.load_or_create(options.key_file), None
        if run.bucket:
            bucket = BucketPublisher(
                run,
                key=key,
                spool=PublicationSpool(folder / "bucket_spool", options.max_spool_bytes),
                metrics=metrics,
                metrics_interval_seconds=options.metrics_interval_seconds,
                retry_seconds=options.retry_seconds,
            )
        publisher = HubPublisher(
            repository,
            task,
            key=key,
            organiser=organiser,
            spool=PublicationSpool(folder / "spool", options.max_spool_bytes),
            budget=CommitBudget(options.folder / "commit_times.json", run.max_commits_per_hour),
            metrics=metrics,
            reel_folder=folder / REEL_FOLDER,
            metrics_interval_seconds=max(options.metrics_interval_seconds, SECONDS_BESIDE_A_BUCKET if bucket else 0.0),
            package_version=package_version(),
            bucket=bucket,
            on_published=evaluator.take if evaluator else lambda epoch, folder, commit: None,
        )
        stopping = threading.Event()
        evaluation = HeldOutEvaluation(task, metrics, trackers, stopping)
        worker = stack.enter_context(
            SnapshotWorker(snapshot_tasks(task, metrics, folder / REEL_FOLDER, evaluation), stopping)
        )
        peer = AuxiliaryPeer(
            task,
            stack.enter_context(contextlib.closing(follow(publisher, evaluation.loss_of))),
            publisher,
            worker,
            package_version=package_version(),
            options=options,
            evaluator=evaluator,
        )
        yield peer, trackers


def snapshot_tasks(
    task: PublishableTask, metrics: RunMetrics, reel_folder: Path, evaluation: HeldOutEvaluation
) -> dict[SnapshotTask, int]:
    """Return the run's periodic tasks for its model, with the epoch up to which they are done."""
    run = task.run
    evaluated = max((row["epoch"] for row in metrics.evaluations()), default=0)
    tasks = {SnapshotTask(name="Evaluation", interval=run.evaluation_interval_epochs, work=evaluation): evaluated}
    if run.reel_prompts:
        gallery = SampleGallery(run, reel_folder, task.draw)

        def draw(epoch: int, model: torch.nn.Module) -> None:
            gallery.add(epoch, model, time.time())

        drawing = SnapshotTask(
            name="Drawing the progress reel", interval=run.reel_interval_epochs, work=draw, rest=REST_AFTER_DRAWING
        )
        tasks[drawing] = gallery.newest_epoch()
    return tasks
