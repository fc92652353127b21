"""Entering a run's swarm as a training peer, from its task to its last report; `pipelines.joining` finds both."""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from huggingface_hub import get_token

from pipelines.core.admission.client import PeerAdmission, seek_admission
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.epoch.hivemind_options import reply_seconds
from pipelines.core.gradients.machine_computation import MachineComputation, NewComputation
from pipelines.core.peer.data_lease import DataLease, OpenLease, no_lease
from pipelines.core.peer.pausing import stop_on_signals
from pipelines.core.peer.prefetching import prefetched
from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.training_peer import FetchCheckpoint, TrainingPeer
from pipelines.core.peer.volunteer import ANONYMOUS, EventHandler, ignore_events
from pipelines.core.run.admission_config import admission_config_of
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.finished import RunFinishedError, finished_message
from pipelines.core.run.task import Batch, TrainingTask
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.core.run.versions import package_version
from pipelines.core.state.anchors import AnchorKeys
from pipelines.core.state.transfer import ShowProgress
from pipelines.core.swarm.forks import set_aside_what_exists
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import NodeService, open_dht
from pipelines.core.swarm.records import RecordKind

logger = logging.getLogger(__name__)


class RunWatch(Protocol):
    """Tells a peer that its run goes on in another swarm, or is over."""

    found_new_generation: bool
    is_over: bool

    def look(self) -> bool:
        """Look now; return whether there is a new generation."""


WatchRun = Callable[[threading.Event, Callable[[], bool]], contextlib.AbstractContextManager[RunWatch]]
"""Watches a run for the duration of a block: sets the event when the peer is to leave, and looks more often while the
function says that the run may be ending."""


@dataclass(frozen=True, kw_only=True)
class PeerContext:
    """What differs between peers of one kind: identity and callbacks."""

    username: str | None = None
    """User name published with the peer's figures; None: the Hub user's, or `anonymous`."""

    package_version: str = dataclasses.field(default_factory=package_version)
    on_event: EventHandler = ignore_events
    show: ShowProgress | None = None
    """Called with the progress of a state download; None: progress is logged occasionally."""

    takes_signals: bool = False
    """Whether SIGINT and SIGTERM end the training cleanly, and SIGUSR1 and SIGUSR2 pause and resume it."""

    averager_type: type[SwarmAverager] | None = None
    """What averages gradients, or progress; None: what the run asks for."""

    record_kinds: Collection[RecordKind] = ()
    """Kinds of records that the swarm has besides the core's."""

    services: Sequence[NodeService] = ()
    """What the DHT node runs, besides the core's."""

    open_lease: OpenLease = no_lease
    new_computation: NewComputation = MachineComputation
    """What computes gradients on this machine."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A peer that has joined a run and has its newest state."""

    peer: TrainingPeer
    stop: threading.Event
    """Ends the training when it is set, from any thread."""

    watch: RunWatch | None
    seed: int
    """Seed of the order in which this peer reads the data, where nobody leases it."""

    lease: DataLease | None = None
    username: str = ANONYMOUS

    @property
    def found_new_generation(self) -> bool:
        """Whether the run was rolled back, which ends the training: join again."""
        return self.watch is not None and self.watch.found_new_generation

    def train(
        self, through: Callable[[Iterator[Batch]], Iterator[Batch]] = lambda batches: batches
    ) -> Iterator[StepReport]:
        """Train until the run is over, `stop` is set, or a local limit is reached.

        Yields a report after every micro-batch. `through` may watch or delay the stream of batches.
        """
        if self.stop.is_set():  # already while the state was downloaded
            return
        compute = self.peer.compute
        self.peer.computation.choose_micro_batch()
        if self.lease is not None and compute.shuffle_buffer_size != ComputeOptions.shuffle_buffer_size:
            logger.warning("--shuffle-buffer has no effect: this run's records are leased in an order of their own.")

        def read() -> Iterator[Batch]:
            return self.peer.task.batches(
                batch_size=self.peer.computation.batch_size,
                seed=self.seed,
                shuffle_buffer_size=compute.shuffle_buffer_size,
                spans=None if self.lease is None else self.lease.spans,
            )

        self.peer.ask_for_lease()
        with prefetched(read, self.peer.computation.batch_size, self.stop) as batches:
            try:
                yield from self.peer.train(through(batches), self.stop)
            finally:
                if self.lease is not None:
                    self.lease.close()


@contextlib.contextmanager
def enter_run(
    task: TrainingTask,
    name: str,
    *,
    network: NetworkOptions,
    compute: ComputeOptions,
    parts: PeerContext = PeerContext(),
    fetch_checkpoint: FetchCheckpoint = lambda: None,
    watch_run: WatchRun | None = None,
    anchor_keys: AnchorKeys = tuple,
    reached_epoch: int = 0,
    seed: int | None = None,
) -> Iterator[Membership]:
    """Enter the swarm of a task's run and download its newest state; `name` is the run's, for messages.

    `watch_run` watches the run for new generations, None: nobody does; `anchor_keys` returns the keys of its anchors.
    Of peers whom no anchor vouches for now no state before `reached_epoch` is taken. Without entry addresses in the
    run's settings the peer is its first one.

    Raises:
        RunFinishedError: the run is at its last epoch.
        AdmissionRefusedError: the run's authority does not admit this user, or no longer does.
        ConnectionError: the authority or the swarm cannot be reached.
    """
    run = task.run
    with contextlib.ExitStack() as stack:
        parts.on_event("asking", run=run)
        network, admission = stack.enter_context(admitted(run, name, network))
        patience = reply_seconds(run)
        set_aside_what_exists()
        dht = stack.enter_context(
            open_dht(
                name,
                run.entry_addresses,
                network,
                admission=admission,
                reply_seconds=patience,
                services=parts.services,
            )
        )
        username = parts.username or admission.username
        own_seed = stable_seed(run.run_id, dht.peer_id) if seed is None else seed
        lease = parts.open_lease(task, own_seed, anchor_keys)
        peer = stack.enter_context(
            TrainingPeer(
                task,
                dht,
                network,
                compute,
                admission=admission,
                username=username,
                package_version=parts.package_version,
                place=name,
                averager_type=parts.averager_type,
                record_kinds=parts.record_kinds,
                anchor_keys=anchor_keys,
                lease=lease,
                new_computation=parts.new_computation,
            )
        )
        # Signals must kill hivemind's children, so they are forked before.
        stop = stack.enter_context(stop_on_signals(peer.pause_switch)) if parts.takes_signals else threading.Event()
        admission.on_refusal(stop.set)
        watch = None if watch_run is None else stack.enter_context(watch_run(stop, peer.may_be_ending))
        peer.pause_switch.on_rest = lambda rests: parts.on_event("paused" if rests else "resumed")
        parts.on_event("entered", dht=dht)
        parts.on_event("synchronising")
        peer.optimizer.state_transfer.is_to_stop = stop.is_set
        peer.optimizer.state_transfer.reached_epoch = reached_epoch
        peer.wait_for_word(stop)
        source = peer.synchronise(fetch_checkpoint, parts.show)
        peer.optimizer.state_transfer.reached_epoch = 0  # from now on those it averages with say where the run is
        if watch is not None and (watch.is_over or (source != "peers" and not watch.look() and watch.is_over)):
            raise RunFinishedError(finished_message(run, name))  # while this peer was joining
        membership = Membership(peer=peer, stop=stop, watch=watch, seed=own_seed, lease=lease, username=username)
        if not stop.is_set():
            parts.on_event("joined", run=run, username=username, epoch=peer.optimizer.local_epoch, state=source)
        yield membership


@contextlib.contextmanager
def admitted(run: TrainingRun, name: str, network: NetworkOptions) -> Iterator[tuple[NetworkOptions, PeerAdmission]]:
    """Stay admitted for the duration of the block: with this machine's Hub account where the run has an authority.

    After the block, raises the authority's refusal to renew the admission, if any.
    """
    with seek_admission(admission_config_of(run, name), network.identity_file, get_token()) as (
        identity_file,
        admission,
    ):
        yield dataclasses.replace(network, identity_file=identity_file), admission
        admission.raise_refusal()
