"""Assisting a run as a library call: the recipe of an auxiliary peer, from the run's name to its last checkpoint."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from pipelines.core.epoch.hivemind_options import reply_seconds
from pipelines.core.peer.entering import admitted
from pipelines.core.peer.pausing import stop_on_signals
from pipelines.core.peer.volunteer import EventHandler, ignore_events
from pipelines.core.run.finished import RunFinishedError, finished_message
from pipelines.core.swarm.forks import set_aside_what_exists
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import SwarmUnreachableError, open_dht
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.all_services import ALL_SERVICES
from pipelines.features.publishing.auxiliary.assembly import assembled_auxiliary_peer
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.auxiliary_peer import AuxiliaryPeer
from pipelines.features.publishing.auxiliary.entry_keeping import entered_run, tell_strangers
from pipelines.features.publishing.auxiliary.swarm_following import SwarmFollowing
from pipelines.features.publishing.metrics.trackers import Trackers
from pipelines.features.publishing.publishable_task import OpenTask
from pipelines.features.publishing.repository.run_bucket import newest_checkpoint
from pipelines.features.publishing.repository.snapshot import RunSnapshot, signed_epoch


@dataclass(frozen=True, kw_only=True)
class Assistance:
    """An auxiliary peer that has announced itself."""

    peer: AuxiliaryPeer
    trackers: Trackers
    records: SwarmRecords
    stop: threading.Event
    """Ends `peer.follow(stop)` when it is set, from any thread."""


@contextlib.contextmanager
def assist_run(
    repository: str,
    open_task: OpenTask,
    *,
    options: AuxiliaryOptions,
    network: NetworkOptions = NetworkOptions(),
    on_event: EventHandler = ignore_events,
    takes_signals: bool = False,
) -> Iterator[Assistance]:
    """Start a run's auxiliary peer: it keeps and serves the newest state, and newcomers find the swarm through it.

    Call it in the main thread of a process that has no other threads: hivemind forks. `on_event` is told `asking`,
    `starting anew` where no entry address answers, `assisting`, and `unlisted` with the key while that may not publish.

    Raises:
        RunFinishedError: the run is at its last epoch.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the Hub, the authority or the swarm cannot be reached.
    """
    torch.set_num_threads(1)
    snapshot = RunSnapshot.read(repository)
    run = snapshot.run
    if snapshot.epoch is not None and snapshot.epoch >= run.num_epochs:
        raise RunFinishedError(finished_message(run, repository))
    run = entered_run(snapshot)
    task = open_task(run, str(snapshot.download_signed()))
    task.check()  # and reads the processor, which checkpoints need even while the Hub is down
    with contextlib.ExitStack() as stack:
        on_event("asking", run=run)
        network, admission = stack.enter_context(admitted(run, repository, network))
        how = dict(admission=admission, reply_seconds=reply_seconds(run), services=ALL_SERVICES)
        set_aside_what_exists()
        try:
            dht = stack.enter_context(open_dht(repository, run.entry_addresses, network, **how))
        except SwarmUnreachableError:
            if not run.entry_addresses:
                raise
            on_event("starting anew")
            dht = stack.enter_context(open_dht(repository, (), network, **how))
        tell_strangers(dht, run, admission)
        records = SwarmRecords(dht, run.swarm_id, admission=admission, kinds=ALL_RECORDS)
        reached, may_help = signed_epoch(snapshot), options.helps_averaging
        follow = partial(SwarmFollowing, task, dht, records, reached_epoch=reached, may_help=may_help)
        peer, trackers = stack.enter_context(assembled_auxiliary_peer(repository, task, follow, options))
        stop = stack.enter_context(stop_on_signals()) if takes_signals else threading.Event()
        admission.on_refusal(stop.set)
        epoch = peer.restore(newest_checkpoint(snapshot, task))
        on_event("assisting", run=run, epoch=epoch, addresses=peer.announce())
        if not peer.publisher.is_listed:
            on_event(
                "unlisted", key=peer.publisher.key.public, entry=peer.publisher.keys.find(peer.publisher.key.public)
            )
        yield Assistance(peer=peer, trackers=trackers, records=records, stop=stop)
