"""Joining a run as a library call: the recipe of a training peer, from the run's name to its last report.

`join_run` is what `dalle-collab join` and chaos do: everything is read from the run's repository. `enter_run` is the
second half of it, for a run and a task that the caller has. `collaborate` is for your own training loop.
"""

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import get_token, whoami

from pipelines.admission.client import PeerAdmission, seek_admission
from pipelines.swarm.forks import set_aside_what_exists
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht
from pipelines.torch_devices import num_cores, torch_device, wanted_threads
from pipelines.training.ledger.gradient_sketch import GradientSketcher
from pipelines.training.ledger.lease_book import LeaseBook
from pipelines.training.peer.generation_watch import GenerationWatch, watching_generation
from pipelines.training.peer.pausing import stop_on_signals
from pipelines.training.peer.prefetching import prefetched
from pipelines.training.peer.reports import StepReport
from pipelines.training.peer.training_peer import RunFinishedError, TrainingPeer, finished_message
from pipelines.training.repository.key_list import TrustedKeys
from pipelines.training.repository.manifest import CheckpointRefusedError
from pipelines.training.repository.run_bucket import newest_checkpoint
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.compute_options import ComputeOptions
from pipelines.training.run.door import door_of
from pipelines.training.run.task import Batch, TrainingTask
from pipelines.training.run.training_run import TrainingRun, stable_seed
from pipelines.training.run.versions import package_version
from pipelines.training.state.anchors import AnchorKeys
from pipelines.training.state.transfer import ShowProgress
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.hivemind_options import reply_seconds

logger = logging.getLogger(__name__)

LEAST_PATIENCE_SECONDS = 20.0
"""How long a peer waits for a lease at least before it reads in an order of its own."""

ANONYMOUS = "anonymous"
"""Who has no token; several people."""

OpenTask = Callable[[TrainingRun, str, str | None], TrainingTask]
"""Returns the task of a run, whose files are in a repository at a commit, or in a folder; `tasks.choice.open_task`
knows all of ours."""

Hear = Callable[..., None]
"""Called with an event's name and values: `checking`, `asking`, `entered`, `synchronising`, `joined`, `paused`,
`resumed`."""

Check = Callable[[RunSnapshot, NetworkOptions, ComputeOptions], None]
"""Checks the machine before it enters the swarm; raises an error if it cannot join."""


def hear_nothing(_event: str, **_values: object) -> None:
    """Ignore the event."""


def _check_nothing(_snapshot: RunSnapshot, _network: NetworkOptions, _compute: ComputeOptions) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PeerParts:
    """What differs between peers of one kind: identity and callbacks."""

    username: str | None = None
    """User name published with the peer's figures; None: the Hub user's, or `anonymous`."""

    package_version: str = dataclasses.field(default_factory=package_version)
    hear: Hear = hear_nothing
    show: ShowProgress | None = None
    """Called with the progress of a state download; None: progress is logged occasionally."""

    takes_signals: bool = False
    """Whether SIGINT and SIGTERM end the training cleanly, and SIGUSR1 and SIGUSR2 pause and resume it."""

    gradient_averager_type: type[SwarmGradientAverager] | None = None
    """What averages gradients, or progress; None: what the run asks for."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A peer that has joined a run and has its newest state."""

    peer: TrainingPeer
    stop: threading.Event
    """Ends the training when it is set, from any thread."""

    watch: GenerationWatch | None
    seed: int
    """Seed of the order in which this peer reads the data, where nobody leases it."""

    lease: LeaseBook | None = None
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
        self.peer.choose_micro_batch()
        if self.lease is not None and compute.shuffle_buffer_size != ComputeOptions.shuffle_buffer_size:
            logger.warning("--shuffle-buffer has no effect: this run's records are leased in an order of their own.")

        def batch_size() -> int:
            return self.peer.micro_batch_size * (compute.num_devices or 1)

        def read() -> Iterator[Batch]:
            return self.peer.task.batches(
                batch_size=batch_size,
                seed=self.seed,
                shuffle_buffer_size=compute.shuffle_buffer_size,
                spans=self.lease,
            )

        self.peer.ask_for_lease()
        with prefetched(read, batch_size, self.stop) as batches:
            try:
                yield from self.peer.train(through(batches), self.stop)
            finally:
                if self.lease is not None:
                    self.lease.close()


@contextlib.contextmanager
def join_run(
    repository: str,
    open_task: OpenTask,
    *,
    network: NetworkOptions = NetworkOptions(),
    compute: ComputeOptions = ComputeOptions(device="auto"),
    check: Check = _check_nothing,
    parts: PeerParts = PeerParts(),
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
    run, state = snapshot.run, snapshot.run_state
    if state is not None and state["epoch"] >= run.num_epochs:
        raise RunFinishedError(finished_message(run, repository))
    run = snapshot.run_to_enter
    if not run.entry_addresses:
        raise ValueError(
            f"{repository} has no entry address yet. Its organiser starts the auxiliary peer, which announces one: "
            f"dalle-collab run assist {repository}"
        )
    task = open_task(run, str(snapshot.download_signed()))
    task.check()
    compute = with_devices(compute)
    parts.hear("checking", run=run)
    check(snapshot, network, compute)
    with enter_run(
        task,
        repository,
        network=network,
        compute=compute,
        parts=dataclasses.replace(parts, username=parts.username or hub_username()),
        fetch_checkpoint=lambda: newest_checkpoint(snapshot, task),
        keys=_read_keys(snapshot),
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


def signed_epoch(snapshot: RunSnapshot) -> int:
    """Return the epoch of the newest signed checkpoint: the run has reached it for certain; 0 if that is unknown."""
    try:
        return snapshot.signed_epoch
    except (OSError, CheckpointRefusedError) as error:  # the swarm may be there without the Hub, or have a good state
        logger.warning("The signed epoch of %s cannot be read at the moment: %s", snapshot.repository, error)
        return 0


@contextlib.contextmanager
def enter_run(
    task: TrainingTask,
    name: str,
    *,
    network: NetworkOptions,
    compute: ComputeOptions,
    parts: PeerParts = PeerParts(),
    fetch_checkpoint: Callable[[], Path | None] = lambda: None,
    keys: TrustedKeys | None = None,
    anchor_keys: AnchorKeys | None = None,
    reached_epoch: int = 0,
    seed: int | None = None,
) -> Iterator[Membership]:
    """Enter the swarm of a task's run and download its newest state; `name` is the run's, for messages.

    `keys` are those of a run on the Hub, which is then watched for new keys and generations; None: it is not.
    `anchor_keys` returns the run's anchors', by default those among `keys`. Of peers whom no anchor vouches for
    now no state before `reached_epoch` is taken. Without entry addresses in the run's settings the peer is its first
    one. Raises as `join_run` does.
    """
    run = task.run
    compute = dataclasses.replace(compute, cpu_threads=wanted_threads(compute.cpu_threads, os.environ))
    torch.set_num_threads(compute.cpu_threads or num_cores())
    with contextlib.ExitStack() as stack:
        parts.hear("asking", run=run)
        network, admission = stack.enter_context(admitted(run, name, network))
        patience = reply_seconds(run)
        set_aside_what_exists()
        dht = stack.enter_context(
            open_dht(name, run.entry_addresses, network, admission=admission, reply_seconds=patience)
        )
        username = parts.username or admission.username
        own_seed = stable_seed(run.run_id, dht.peer_id) if seed is None else seed
        anchor_keys = anchor_keys or (keys.anchors if keys is not None else tuple)
        lease = open_lease(task, own_seed, anchor_keys)
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
                gradient_averager_type=parts.gradient_averager_type,
                anchor_keys=anchor_keys,
                lease=lease,
            )
        )
        # Signals must kill hivemind's children, so they are forked before.
        stop = stack.enter_context(stop_on_signals(peer.pause_switch)) if parts.takes_signals else threading.Event()
        admission.on_refusal(stop.set)
        watch = None
        if keys is not None:
            watch = stack.enter_context(watching_generation(name, run, stop, keys, is_ending=peer.may_be_ending))
        peer.pause_switch.on_rest = lambda rests: parts.hear("paused" if rests else "resumed")
        parts.hear("entered", dht=dht)
        parts.hear("synchronising")
        peer.optimizer.state_transfer.is_to_stop = stop.is_set
        peer.optimizer.state_transfer.reached_epoch = reached_epoch
        peer.wait_for_word(stop)
        source = peer.synchronise(fetch_checkpoint, parts.show)
        peer.optimizer.state_transfer.reached_epoch = 0  # from now on those it averages with say where the run is
        if watch is not None and (watch.is_over or (source != "peers" and not watch.look() and watch.is_over)):
            raise RunFinishedError(finished_message(run, name))  # while this peer was joining
        membership = Membership(peer=peer, stop=stop, watch=watch, seed=own_seed, lease=lease, username=username)
        if not stop.is_set():
            parts.hear("joined", run=run, username=username, epoch=peer.optimizer.local_epoch, state=source)
        yield membership


def open_lease(task: TrainingTask, seed: int, anchor_keys: AnchorKeys) -> LeaseBook | None:
    """Return an empty book for the records that the run's anchors lease; None: this task's data is not leased.

    `seed` is that of the order in which the peer reads while it has no lease.
    """
    order = task.block_order("without a lease", seed)
    if order is None:
        return None
    patience = max(LEAST_PATIENCE_SECONDS, 2 * task.run.progress_expiration_seconds)
    # With local steps every peer has parameters of its own, which nobody else knows.
    sketcher = GradientSketcher(task.run.run_id) if task.run.local_steps == 1 else None
    return LeaseBook(order, time.monotonic, patience, waits_first=bool(anchor_keys()), sketcher=sketcher)


@contextlib.contextmanager
def admitted(run: TrainingRun, name: str, network: NetworkOptions) -> Iterator[tuple[NetworkOptions, PeerAdmission]]:
    """Stay admitted for the duration of the block: with this machine's Hub account where the run has an authority.

    After the block, raises the authority's refusal to renew the admission, if any.
    """
    with seek_admission(door_of(run, name), network.identity_file, get_token(), token_host=network.token_host) as (
        identity_file,
        admission,
    ):
        yield dataclasses.replace(network, identity_file=identity_file), admission
        admission.raise_refusal()


def with_devices(compute: ComputeOptions) -> ComputeOptions:
    """Return the options with the devices of this machine in place of `auto`: all GPUs, unless one is named."""
    device = torch_device(compute.device)
    return dataclasses.replace(
        compute,
        device=device,
        num_devices=compute.num_devices or (torch.cuda.device_count() if device == "cuda" else 1),
    )


def hub_username() -> str:
    """Return the Hub user's name, or `anonymous` without a token; a refused token is an error."""
    return whoami()["name"] if get_token() else ANONYMOUS
