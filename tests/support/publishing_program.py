"""A publisher without a swarm, as a program of its own: spools made-up checkpoints of a run and publishes them.

Usage: python publishing_program.py REPOSITORY SETTINGS(JSON). Prints one JSON object. Settings: `folder`; `epochs` to
spool; `until`: epoch that must be published, default the last; `seconds_more`: to work after that; `records`: samples
of a peer to observe, by epoch; `has_organiser`: whether this machine may use the organiser's key, by default it may;
`begun_file`, `wait_for_file`: to make and to wait for; `head_check_seconds`; `die_when_spooled`;
`bucket_epochs` for the run's bucket alone; `epoch_seconds` that an observed epoch takes; `evaluations`: held-out
losses by epoch that come after all checkpoints, one after the other.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from hub_tools.endpoint import prepare_hub_client
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm.peer_records import PeerMetrics, Reporter
from pipelines.features.held_out_loss import HeldOutLoss
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.publishing.bucket_publisher import BucketPublisher
from pipelines.features.publishing.auxiliary.publishing.checkpoint_writing import write_checkpoint
from pipelines.features.publishing.auxiliary.publishing.commit_budget import CommitBudget
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HEAD_CHECK_SECONDS, HubPublisher
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool
from pipelines.features.publishing.auxiliary.side_threads import PublishingThread
from pipelines.features.publishing.checkpoint_tensors import RunState
from pipelines.features.publishing.metrics.credit.claims import RoundLog
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.repository.organiser import organiser_here
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tasks.choice import open_task

SECONDS_TO_PUBLISH = 240


def made_checkpoint(task, epoch):
    """A function that writes a checkpoint whose tensors the epoch decides."""
    run, model = task.run, task.new_model()
    parts = optimizer_parts(run, model)
    optimizer = parts["optimizer"](parts["params"])
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(1000 * epoch + number)
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    state = RunState(run_id=run.run_id, epoch=epoch, loss=5.0 / epoch, package_version="0.1.0")
    return lambda folder: write_checkpoint(folder, task, model, optimizer, state)


def made_figures(epoch, num_samples, username="ann"):
    """One peer's figures."""
    return PeerMetrics(
        username=username, epoch=epoch, loss=5.0 / epoch, num_samples=num_samples, samples_per_second=10.0,
        share_averaged=1.0, bytes_sent=100, num_rounds=epoch, round_seconds=0.5, num_refused_gradients=0,
        client_mode=False, package_version="0",
    )  # fmt: skip


def main(repository: str, settings: dict) -> None:
    torch.set_num_threads(1)
    prepare_hub_client()
    snapshot = RunSnapshot.read(repository)
    run = snapshot.run
    task = open_task(run, repository, snapshot.commit)
    task.check()  # reads the processor while the Hub is there; checkpoints are written when it may be away
    options = AuxiliaryOptions(folder=Path(settings["folder"]))
    folder = options.generation_folder(run.generation)
    metrics = RunMetrics(run, folder / "metrics")
    key, bucket = PublisherKey.load_or_create(options.key_file), None
    if run.bucket:
        bucket = BucketPublisher(
            run,
            key=key,
            spool=PublicationSpool(folder / "bucket_spool", options.max_spool_bytes),
            metrics=metrics,
            metrics_interval_seconds=0.1,
            retry_seconds=0.3,
        )
    publisher = HubPublisher(
        repository,
        task,
        key=key,
        organiser=organiser_here(repository, run) if settings.get("has_organiser", True) else None,
        spool=PublicationSpool(folder / "spool", options.max_spool_bytes),
        budget=CommitBudget(options.folder / "commit_times.json", run.max_commits_per_hour),
        metrics=metrics,
        reel_folder=folder / "progress_reel",
        metrics_interval_seconds=settings.get("metrics_seconds", 3600.0),
        package_version="0.1.0",
        bucket=bucket,
        head_check_seconds=settings.get("head_check_seconds", HEAD_CHECK_SECONDS),
    )
    publisher.begin(["/ip4/127.0.0.1/tcp/1"])
    print(json.dumps(dict(event="begun", published=publisher.published_epoch)), flush=True)
    if "begun_file" in settings:
        Path(settings["begun_file"]).touch()
    while "wait_for_file" in settings and not Path(settings["wait_for_file"]).exists():
        time.sleep(0.05)
    publisher.set_elected(True)
    records = settings.get("records", [])
    began = time.time() - settings.get("epoch_seconds", 0.0) * len(records)
    for number, (epoch, num_samples) in enumerate(records, 1):
        figures = {b"ann": made_figures(epoch, num_samples)}
        reporters = {b"ann": Reporter(user="ann", sender="", device="2 x Tesla T4")}
        now = began + number * settings.get("epoch_seconds", 0.0)
        metrics.observe(figures, reporters, RoundLog(), now, epoch)
    with PublishingThread(publisher, retry_seconds=0.3) as publishing:
        for epoch in settings["epochs"]:
            publisher.spool.add(epoch, made_checkpoint(task, epoch))
        for epoch in settings.get("bucket_epochs", []):
            bucket.spool.add(epoch, made_checkpoint(task, epoch))
        if settings.get("die_when_spooled"):
            os._exit(9)
        deadline = time.monotonic() + SECONDS_TO_PUBLISH
        until = settings.get("until", max(settings["epochs"], default=0))
        while publisher.published_epoch < until or publisher.spool.newest_epoch() == until:
            assert time.monotonic() < deadline, f"published {publisher.published_epoch}, not {until}"
            publishing.check()
            time.sleep(0.05)
        while bucket is not None and bucket.has_work():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(settings.get("seconds_more", 0.0))
    for epoch, nats in settings.get("evaluations", []):
        loss = HeldOutLoss(mean=nats, low=nats - 0.1, high=nats + 0.1, num_samples=256)
        metrics.add_evaluation(loss, epoch=epoch, weights="d" * 64, seconds=1.0, now=time.time())
        publisher.drain()
    print(
        json.dumps(
            dict(
                event="ended",
                published=publisher.published_epoch,
                waiting=[entry.epoch for entry in publisher.spool.entries()],
            )
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
