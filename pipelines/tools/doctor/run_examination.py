"""The organiser's examination of a whole run: reads the Hub, restores a checkpoint, probes the swarm."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch
from huggingface_hub import HfApi, HfFileSystem, ModelCard

from hub_tools.foreign.downloads import listed_files
from hub_tools.run_files import CARD_FILE
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.publishing.checkpoint_tensors import load_training_state
from pipelines.features.publishing.metrics.history import read_history
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.servers.complaints import COMPLAINTS, accused_servers
from pipelines.features.servers.server_record import SERVERS
from pipelines.tools.doctor import hub_checks, organiser_checks, swarm_checks
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, unknown
from pipelines.tools.doctor.examination import Examination, check_data, check_hub_and_run
from pipelines.tools.doctor.probing.probe_result import SwarmFinding
from pipelines.tools.doctor.round_checks import check_closer
from pipelines.tools.doctor.serving.server_checks import check_complaints, check_servers
from pipelines.tools.doctor.swarm_examination import look_at_swarm

SPLITS = ("train", "validation", "test")
MOST_SHARDS_READ = 8


def run_checklist(
    repository: str,
    network: NetworkOptions,
    *,
    announce: Callable[[str], None] = lambda name: None,
    now: Callable[[], float] = time.time,
) -> Iterator[CheckResult]:
    """Yield one finding after the other about a run; changes nothing."""
    examination = Examination(
        repository=repository, network=network, compute=ComputeOptions(), now=now, announce=announce
    )
    announce("Hub")
    yield from check_hub_and_run(examination)
    if (opened := examination.opened) is None:
        return
    run = opened.run
    yield organiser_checks.check_required_versions(run)
    yield organiser_checks.check_protection(run, repository)
    announce("dataset")
    yield from check_dataset(examination, opened.task)
    announce("history of the run")
    yield from check_course(opened.snapshot)
    announce("related repositories and card")
    yield from check_companions(opened.task)
    yield check_card(opened.snapshot)
    announce("checkpoint")
    yield check_restoring(opened.snapshot, opened.task)
    if run.wire == "hub":
        yield check_closer(RoundFiles(repository, run), opened.snapshot, run)
    else:
        yield from check_entry_peers(examination, run)


def check_dataset(examination: Examination, task: PublishableTask) -> Iterator[CheckResult]:
    """Check that the dataset is pinned and readable, and fits the schedule."""
    run = task.run
    yield organiser_checks.check_pinned(run)
    yield from check_data(examination, task)
    files = dataset_files(run) if examination.fits else []
    splits = sorted({split for split in SPLITS if any(split in Path(file).name for file in files)})
    yield organiser_checks.check_evaluation(run, splits)
    yield from organiser_checks.check_schedule(run, count_records(files) if files else None)


def check_course(snapshot: RunSnapshot) -> Iterator[CheckResult]:
    """Compare time-outs and the commit budget with the published history."""
    try:
        history = hub_checks.retried(lambda: read_history(snapshot))
    except hub_checks.USER_ERRORS as error:
        yield hub_checks.failure("history", error)
        return
    yield from organiser_checks.check_timeouts(snapshot.run, history)
    yield organiser_checks.check_commit_budget(snapshot.run, history)


def dataset_files(run: TrainingRun) -> list[str]:
    """Return the dataset's shards at the run's revision."""
    place = f"datasets/{run.dataset_repository}@{run.dataset_revision}"
    found = listed_files(run.dataset_repository, run.dataset_revision, "dataset")
    return sorted(f"{place}/{file.path}" for file in found if file.path.endswith(".parquet"))


def count_records(files: list[str]) -> int:
    """Return the number of training records; of many shards those between the first and the last are assumed full."""
    shards = [file for file in files if not any(split in Path(file).name for split in SPLITS[1:])]
    if not shards:
        return 0
    if len(shards) <= MOST_SHARDS_READ:
        return sum(map(_num_rows, shards))
    return _num_rows(shards[0]) * (len(shards) - 1) + _num_rows(shards[-1])


def _num_rows(file: str) -> int:
    with HfFileSystem().open(file) as shard:
        return pq.read_metadata(shard).num_rows


def check_companions(task: PublishableTask) -> Iterator[CheckResult]:
    """Check that the other repositories needed to use the model exist."""
    try:
        companions = hub_checks.retried(task.companions)
    except hub_checks.USER_ERRORS as error:
        yield hub_checks.failure("processor", error)
        return
    for name, (repository, revision) in companions.items():
        try:
            hub_checks.retried(partial(HfApi().model_info, repository, revision=revision))
        except hub_checks.USER_ERRORS as error:
            yield hub_checks.failure(name, error, f"{repository} at {revision}")
        else:
            yield ok(name, f"{repository} at {str(revision)[:12]}")


def check_card(snapshot: RunSnapshot) -> CheckResult:
    """Read the run's README.md from the Hub and judge it."""
    try:
        path = hub_checks.retried(lambda: snapshot.download(CARD_FILE))
        if path is None:
            return organiser_checks.check_card(None, {})
        card = ModelCard.load(path)
    except hub_checks.USER_ERRORS as error:
        return hub_checks.failure("card", error)
    return organiser_checks.check_card(card.text, card.data.to_dict())


def check_restoring(snapshot: RunSnapshot, task: PublishableTask) -> CheckResult:
    """Download the newest checkpoint and load it into model and optimizer, like a peer that starts from it."""
    name = "checkpoint"
    try:
        if hub_checks.retried(lambda: snapshot.epoch) is None:
            cure = f"The auxiliary peer publishes it: dalle-collab run assist {snapshot.repository}"
            return unknown(name, "none yet", cure)
        started = time.monotonic()
        epoch, not_finite = restore(snapshot.download_checkpoint(task), task)
    except hub_checks.USER_ERRORS as error:
        return hub_checks.failure(name, error, "a checkpoint that can be restored")
    if not_finite:
        seen = f"epoch {epoch}: {not_finite[0]} has values that are not finite"
        return fail(name, seen, "finite values", "Go back to an older checkpoint; all are in the repository's history.")
    return ok(name, f"epoch {epoch} restored in {time.monotonic() - started:.1f} s")


def restore(folder: Path, task: PublishableTask) -> tuple[int, list[str]]:
    """Load a checkpoint's folder into a fresh model and optimizer; return its epoch and tensors that are not finite.

    Raises:
        ValueError: a file is missing, damaged, or of another model.
    """
    model = task.new_model()
    parts = optimizer_parts(task.run, model)
    state = load_training_state(folder, model, parts["optimizer"](parts["params"]))
    not_finite = [name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()]
    return state.epoch, not_finite


def check_entry_peers(examination: Examination, run: TrainingRun) -> Iterator[CheckResult]:
    """Check where the entry peers are, and call each of them."""
    repository = examination.repository
    try:
        yield organiser_checks.check_entry_places(repository, run.entry_addresses)
    except ValueError as error:
        yield fail("entry places", str(error), "addresses", f"dalle-collab run assist {repository}")
    results, finding = look_at_swarm(examination, run)
    yield from results
    if finding.daemon_seconds is None:
        yield swarm_checks.check_daemon(finding)
        return
    for result in swarm_checks.check_entries(repository, finding):
        # Of a run that is over the entry peers serve those who draw with it: without them it can be downloaded.
        is_harmless = examination.is_over and result.status == "fail"
        yield dataclasses.replace(result, status="warn") if is_harmless else result
    if (split := swarm_checks.check_one_swarm(repository, finding)) is not None:
        yield split
    yield swarm_checks.check_clock(swarm_checks.clock_sources(finding), examination.hub_clock_offset)
    if examination.opened is not None and any(entry.answers for entry in finding.entries):
        yield from check_serving(examination.opened.snapshot, finding)


def check_serving(snapshot: RunSnapshot, finding: SwarmFinding) -> Iterator[CheckResult]:
    """Check who serves the model, as far as the entry peers know."""
    try:
        revision, num_layers, epoch = hub_checks.retried(
            lambda: (snapshot.weights_sha256, snapshot.num_layers, snapshot.epoch)
        )
    except hub_checks.USER_ERRORS as error:
        yield hub_checks.failure("servers", error)
        return
    seen = [entry.records.get(SERVERS, {}) for entry in finding.entries]
    servers = {server.peer_id: server for some in seen for server in some.values()}
    is_over = epoch is not None and epoch >= snapshot.run.num_epochs
    found = list(servers.values())
    yield from check_servers(snapshot.repository, found, revision, num_layers, is_over=is_over)
    names_users = bool(snapshot.run.authorization_key)
    claims = (entry.records.get(COMPLAINTS, {}) for entry in finding.entries)
    accused = max((accused_servers(made, names_users=names_users) for made in claims), key=len, default=[])
    if found or accused:
        yield check_complaints(snapshot.repository, accused, found)
