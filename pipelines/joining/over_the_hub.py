"""Joining and assisting a run whose only wire is the Hub. Nothing here, or below it, needs hivemind."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from huggingface_hub import HfApi

from pipelines.core.gradients.machine_computation import MachineComputation
from pipelines.core.peer.pausing import stop_on_signals
from pipelines.core.peer.prefetching import prefetched
from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.volunteer import ANONYMOUS, EventHandler, hub_username, ignore_events
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.finished import RunFinishedError, finished_message
from pipelines.core.run.task import Batch, TrainingTask
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.core.run.versions import package_version
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.hub_rounds.auditing import AuditedRound, audited, first_start
from pipelines.features.hub_rounds.closer import SECONDS_BETWEEN_LISTINGS, RoundCloser
from pipelines.features.hub_rounds.exchange import RoundExchange
from pipelines.features.hub_rounds.files import RoundFiles, let_uploads_fail_soon
from pipelines.features.hub_rounds.following import HubFollowing
from pipelines.features.hub_rounds.peer import HubPeer
from pipelines.features.hub_rounds.reading import RoundReader
from pipelines.features.hub_rounds.stepping import ReplayedState
from pipelines.features.local_computation.local_computation import LocalComputation
from pipelines.features.open_runs.admitting import admitting_strangers
from pipelines.features.open_runs.asking import ask_to_contribute
from pipelines.features.publishing.auxiliary.assembly import assembled_auxiliary_peer
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.auxiliary_peer import AuxiliaryPeer
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.metrics.trackers import Trackers
from pipelines.features.publishing.publishable_task import OpenTask, PublishableTask
from pipelines.features.publishing.repository.epoch_tags import tagged_epochs
from pipelines.features.publishing.repository.generation_watch import GenerationWatch, watching_generation
from pipelines.features.publishing.repository.key_list import PUBLISHER, TrustedKeys
from pipelines.features.publishing.repository.organiser import local_folder
from pipelines.features.publishing.repository.run_bucket import RunBucket, newest_checkpoint
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.torch_devices import num_cores, with_devices

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 5.0
"""At the keys of a run that has none yet."""


@dataclass(frozen=True, kw_only=True)
class HubMembership:
    """A peer that has joined a run over the Hub and has its newest state."""

    peer: HubPeer
    task: TrainingTask
    compute: ComputeOptions
    computation: MachineComputation
    stop: threading.Event
    """Ends the training when it is set, from any thread."""

    watch: GenerationWatch
    seed: int
    username: str

    @property
    def found_new_generation(self) -> bool:
        """Whether the run was rolled back, which ends the training: join again."""
        return self.watch.found_new_generation

    def train(
        self, through: Callable[[Iterator[Batch]], Iterator[Batch]] = lambda batches: batches
    ) -> Iterator[StepReport]:
        """Train until the run is over, `stop` is set, or a local limit is reached.

        Yields a report after every micro-batch. `through` may watch or delay the stream of batches.
        """
        if self.stop.is_set():
            return
        self.computation.choose_micro_batch()

        def read() -> Iterator[Batch]:
            return self.task.batches(
                batch_size=self.computation.batch_size,
                seed=self.seed,
                shuffle_buffer_size=self.compute.shuffle_buffer_size,
                spans=None,
            )

        with prefetched(read, self.computation.batch_size, self.stop) as batches:
            yield from self.peer.train(through(batches), self.stop)


@contextlib.contextmanager
def join_over_hub(
    repository: str,
    open_task: OpenTask,
    *,
    compute: ComputeOptions = ComputeOptions(device="auto"),
    check: Callable[[RunSnapshot, ComputeOptions], None] = lambda _snapshot, _compute: None,
    on_event: EventHandler = ignore_events,
    takes_signals: bool = False,
    exchange_type: Callable[[RoundReader, str, PublisherKey, float], RoundExchange] = RoundExchange,
) -> Iterator[HubMembership]:
    """Join a run whose wire is the Hub; leave it at the end of the block. See `join_run`.

    Raises:
        RunFinishedError: the run is at its last epoch.
        ValueError: run, dataset and package do not match, nobody is logged in, the run's keys are refused, or this
            user is.
        OSError: the Hub cannot be reached, or refuses this user a bucket.
    """
    snapshot, run, task = _opened(repository, open_task)
    compute = with_devices(compute)
    on_event("checking", run=run)
    check(snapshot, compute)
    on_event("asking", run=run)
    if (user := hub_username()) == ANONYMOUS:
        raise ValueError(
            f"Peers of {repository} give their progress as files, for which a Hub account is needed, and nobody is "
            "logged in here. Log in with a token that may write: hf auth login"
        )
    keys, files = TrustedKeys(run), RoundFiles(repository, run)
    reader = RoundReader(files, run.contributions_per_round, partial(_publishers, repository, keys, files, _Paced()))
    files.make_bucket(user, private=_is_private(repository))
    if user in files.strangers:
        ask_to_contribute(repository, user)
    key = PublisherKey.load_or_create(local_folder("rounds", repository) / f"{user}.pem")
    with contextlib.ExitStack() as stack:
        computation = stack.enter_context(LocalComputation(task, compute, repository))
        peer = HubPeer(
            run,
            ReplayedState(run, computation.model),
            computation,
            reader,
            exchange_type(reader, user, key, run.window_seconds),
            user=user,
            device=computation.description(),
            package_version=package_version(),
            limits=compute,
            fetch_checkpoint=lambda: newest_checkpoint(RunSnapshot.read(repository), task),
        )
        stack.callback(peer.close)
        peer.pause_switch.on_rest = lambda rests: on_event("paused" if rests else "resumed")
        stop = stack.enter_context(stop_on_signals(peer.pause_switch)) if takes_signals else threading.Event()
        watch = stack.enter_context(
            watching_generation(repository, run, stop, keys, is_ending=lambda: peer.epoch >= run.num_epochs - 1)
        )
        on_event("synchronising")
        source = peer.synchronise(stop)
        if peer.is_over:
            raise RunFinishedError(finished_message(run, repository))
        if not stop.is_set():
            on_event("joined", run=run, username=user, epoch=peer.epoch, state=source)
        yield HubMembership(
            peer=peer,
            task=task,
            compute=compute,
            computation=computation,
            stop=stop,
            watch=watch,
            seed=stable_seed(run.run_id, user),
            username=user,
        )


@dataclass(frozen=True, kw_only=True)
class HubAssistance:
    """An auxiliary peer that closes the rounds of a run, and publishes it."""

    peer: AuxiliaryPeer
    trackers: Trackers
    stop: threading.Event


@contextlib.contextmanager
def assist_over_hub(
    repository: str,
    open_task: OpenTask,
    *,
    options: AuxiliaryOptions,
    on_event: EventHandler = ignore_events,
    takes_signals: bool = False,
) -> Iterator[HubAssistance]:
    """Start the auxiliary peer of a run whose wire is the Hub; needs no port. See `assist_run`.

    Raises:
        RunFinishedError: the run is at its last epoch.
        OSError: the Hub cannot be reached, or refuses the run's bucket.
    """
    torch.set_num_threads(num_cores())
    snapshot, run, task = _opened(repository, open_task)
    RunBucket(run).create(private=_is_private(repository))
    with contextlib.ExitStack() as stack:
        follow = partial(_following, repository, task)
        peer, trackers = stack.enter_context(assembled_auxiliary_peer(repository, task, follow, options))
        stop = stack.enter_context(stop_on_signals()) if takes_signals else threading.Event()
        if run.who_may_contribute == "everybody":
            seconds = min(SECONDS_BETWEEN_LISTINGS, run.window_seconds / 2)
            stack.enter_context(admitting_strangers(repository, lambda: peer.publisher.is_elected, seconds))
        epoch = peer.restore(newest_checkpoint(snapshot, task))
        peer.announce()
        on_event("assisting", run=run, epoch=epoch, addresses=())
        key = peer.publisher.key.public
        if not peer.publisher.is_listed:
            on_event("unlisted", key=key, entry=peer.publisher.keys.find(key))
        yield HubAssistance(peer=peer, trackers=trackers, stop=stop)


@contextlib.contextmanager
def rounds_to_audit(repository: str, open_task: OpenTask) -> Iterator[tuple[TrainingRun, Iterator[AuditedRound]]]:
    """Yield a run whose wire is the Hub, and the findings about its rounds: all whose contributions are still kept.

    Raises:
        ValueError: the run has another wire, or no round that can be repeated.
        OSError: the Hub cannot be reached.
    """
    snapshot = RunSnapshot.read(repository)
    run = snapshot.run
    if run.wire != "hub":
        raise ValueError(f"The wire of {repository} is {run.wire}; expected hub: only there are rounds kept as files.")
    task = open_task(run, str(snapshot.download_signed()), None)
    files = RoundFiles(repository, run)
    reader = RoundReader(files, run.contributions_per_round, lambda: snapshot.keys.holders(PUBLISHER, at=files.clock()))
    tags = tagged_epochs(HfApi(), repository)
    if (start := first_start(reader, {0, *tags})) is None:
        raise ValueError(
            f"{repository} has no round whose contributions are still kept. Look again once its auxiliary peer has "
            f"closed one: dalle-collab run assist {repository}"
        )
    folder = RunSnapshot.read(repository, revision=tags[start]).download_checkpoint(task) if start else None
    state = ReplayedState(run, task.new_model())
    with contextlib.closing(state):
        yield run, audited(reader, state, folder)


def _following(repository: str, task: PublishableTask, publisher: HubPublisher, _evaluate: object) -> HubFollowing:
    run, files = task.run, RoundFiles(repository, task.run)
    reader = RoundReader(
        files,
        run.contributions_per_round,
        lambda: publisher.keys.holders(PUBLISHER, at=files.clock()),
    )
    closer = RoundCloser(reader, ReplayedState(run, task.new_model()), publisher.key)
    fetch = lambda: newest_checkpoint(RunSnapshot.read(repository), task)  # noqa: E731
    return HubFollowing(closer, reader, publisher.key, fetch)


def _opened(repository: str, open_task: OpenTask) -> tuple[RunSnapshot, TrainingRun, PublishableTask]:
    let_uploads_fail_soon()
    snapshot = RunSnapshot.read(repository)
    run = snapshot.run
    if snapshot.epoch is not None and snapshot.epoch >= run.num_epochs:
        raise RunFinishedError(finished_message(run, repository))
    task = open_task(run, str(snapshot.download_signed()), None)
    task.check()
    return snapshot, run, task


def _is_private(repository: str) -> bool:
    return bool(HfApi().repo_info(repository).private)


class _Paced:
    """Says once in a while that it is time."""

    def __init__(self, seconds: float = SECONDS_BETWEEN_LOOKS) -> None:
        self._seconds, self._next = seconds, 0.0

    def __call__(self) -> bool:
        is_due = time.monotonic() >= self._next
        self._next = time.monotonic() + self._seconds if is_due else self._next
        return is_due


def _publishers(repository: str, keys: TrustedKeys, files: RoundFiles, is_due: Callable[[], bool]) -> Sequence[str]:
    """Return the keys of who may close rounds; while there is none, the Hub is asked again and again."""
    if not keys.newest().entries and is_due():
        RunSnapshot.read(repository, in_cache=False).trusting(keys)
    return keys.newest().holders(PUBLISHER, at=files.clock())
