"""Joining a run by its name: everything is read from its repository. What `dalle-collab join` and chaos do.

`collaborate` is for your own training loop.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

from pipelines.core.peer.entering import Membership, PeerContext, enter_run
from pipelines.core.peer.volunteer import hub_username
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.finished import RunFinishedError, finished_message
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.all_services import ALL_SERVICES
from pipelines.features.ledger.leases.leasing import open_lease
from pipelines.features.local_computation.local_computation import LocalComputation
from pipelines.features.publishing.checkpoint_tensors import loader_of
from pipelines.features.publishing.publishable_task import OpenTask
from pipelines.features.publishing.repository.generation_watch import GenerationWatch, watching_generation
from pipelines.features.publishing.repository.key_list import TrustedKeys
from pipelines.features.publishing.repository.run_bucket import newest_checkpoint
from pipelines.features.publishing.repository.snapshot import RunSnapshot, signed_epoch
from pipelines.features.torch_devices import with_devices

logger = logging.getLogger(__name__)

Check = Callable[[RunSnapshot, NetworkOptions, ComputeOptions], None]
"""Checks the machine before it enters the swarm; raises an error if it cannot join."""


def _check_nothing(_snapshot: RunSnapshot, _network: NetworkOptions, _compute: ComputeOptions) -> None: ...


@contextlib.contextmanager
def join_run(
    repository: str,
    open_task: OpenTask,
    *,
    network: NetworkOptions = NetworkOptions(),
    compute: ComputeOptions = ComputeOptions(device="auto"),
    check: Check = _check_nothing,
    parts: PeerContext = PeerContext(),
    seed: int | None = None,
) -> Iterator[Membership]:
    """Join a run by its name; leave it cleanly at the end of the block.

    Call it in the main thread of a process that has no other threads: hivemind forks. `seed` decides the order of
    the data; by default it is the peer's own.

    Raises:
        RunFinishedError: the run is at its last epoch.
        ValueError: run, dataset and package do not match, the run has no entry address, or its list of keys or of
            entries is refused.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    snapshot = RunSnapshot.read(repository)
    run = snapshot.run
    if snapshot.epoch is not None and snapshot.epoch >= run.num_epochs:
        raise RunFinishedError(finished_message(run, repository))
    run.check_has_swarm(repository, "Call join_over_hub of pipelines.joining.over_the_hub.")
    run = snapshot.run_to_enter
    if not run.entry_addresses:
        raise ValueError(
            f"{repository} has no entry address yet. Its organiser starts the auxiliary peer, which announces one: "
            f"dalle-collab run assist {repository}"
        )
    task = open_task(run, str(snapshot.download_signed()), None)
    task.check()
    compute = with_devices(compute)
    parts.on_event("checking", run=run)
    check(snapshot, network, compute)
    keys = _read_keys(snapshot)
    with enter_run(
        task,
        repository,
        network=network,
        compute=compute,
        parts=dataclasses.replace(
            parts,
            username=parts.username or hub_username(),
            record_kinds=ALL_RECORDS,
            services=ALL_SERVICES,
            open_lease=open_lease,
            new_computation=LocalComputation,
        ),
        fetch_checkpoint=lambda: loader_of(newest_checkpoint(snapshot, task)),
        watch_run=partial(_watched, repository, run, keys),
        anchor_keys=keys.anchors,
        reached_epoch=signed_epoch(snapshot),
        seed=seed,
    ) as membership:
        yield membership


def _read_keys(snapshot: RunSnapshot) -> TrustedKeys:
    keys = TrustedKeys(snapshot.run)
    try:
        snapshot.trusting(keys)
    except OSError as error:  # the swarm may be there without the Hub; the watch tries again
        logger.warning("The keys of %s cannot be read at the moment: %s", snapshot.repository, error)
    return keys


def _watched(
    repository: str, run: TrainingRun, keys: TrustedKeys, stop: threading.Event, is_ending: Callable[[], bool]
) -> contextlib.AbstractContextManager[GenerationWatch]:
    return watching_generation(repository, run, stop, keys, is_ending=is_ending)
