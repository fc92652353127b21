"""A training peer: downloads the swarm's state, computes gradients, averages them, reports, serves its state."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator

import torch

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.reduce.suspects import Suspect
from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.gradients.machine_computation import MachineComputation, NewComputation
from pipelines.core.peer.data_lease import DataLease
from pipelines.core.peer.handing_over import hand_over
from pipelines.core.peer.pausing import PauseSwitch, take_break
from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.volunteer import last_epoch
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.finished import RunFinishedError, finished_message
from pipelines.core.run.task import Batch, NamedBatch, TrainingTask, num_samples
from pipelines.core.state.anchors import AnchorKeys
from pipelines.core.state.transfer import ShowProgress
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.peer_records import (
    INTRODUCTION_SECONDS,
    MAX_SUSPECTS,
    PeerIntroduction,
    PeerMetrics,
    SuspectRecord,
)
from pipelines.core.swarm.records import INTRODUCTIONS, METRICS, RecordKind, SwarmRecords, sender_name

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LINES = 1.0, 30.0

LoadCheckpoint = Callable[[torch.nn.Module, torch.optim.Optimizer], int]
"""Copies a checkpoint into a model and an optimizer, whose parameters may be copies of it; returns its epoch."""

FetchCheckpoint = Callable[[], LoadCheckpoint | None]
"""Downloads the run's newest checkpoint; None: there is none."""


class TrainingPeer:
    """Trains in a swarm. Use as a context manager around `synchronise` and `train`.

    `place` is where this peer's other devices find the run: its repository, or a folder.
    """

    def __init__(
        self,
        task: TrainingTask,
        dht: SwarmDHT,
        network: NetworkOptions,
        compute: ComputeOptions,
        *,
        admission: PeerAdmission | None,
        username: str,
        package_version: str,
        place: str = "",
        averager_type: type[SwarmAverager] | None = None,
        anchor_keys: AnchorKeys = tuple,
        record_kinds: Collection[RecordKind] = (),
        lease: DataLease | None = None,
        new_computation: NewComputation = MachineComputation,
    ) -> None:
        """`record_kinds`: that the swarm has besides the core's; `lease`: None: nobody tells this peer what to read."""
        self.task, self.run, self.network, self.compute = task, task.run, network, compute
        self.computation = new_computation(task, compute, place)
        self.model = self.computation.model
        self.records = SwarmRecords(dht, self.run.swarm_id, admission=admission, kinds=record_kinds)
        self.num_samples = 0
        """What this peer has contributed, in the task's unit."""

        self.num_epochs = 0
        """Epochs that this peer has ended with the others."""

        self._dht, self._username, self._package_version, self._place = dht, username, package_version, place
        self._averager_type, self._anchor_keys, self._lease = averager_type, anchor_keys, lease
        self.ask_for_lease: Callable[[], None] = _ask_nobody
        """To be called when this peer is about to train on the run's dataset."""

        self._epoch_losses: list[float] = []
        self.pause_switch = PauseSwitch()
        self._parts = contextlib.ExitStack()

    def __enter__(self) -> "TrainingPeer":
        self.records.open()
        self.optimizer = make_optimizer(
            run=self.run,
            dht=self._dht,
            model=self.model,
            records=self.records,
            bandwidth_limit_mbit=self.network.bandwidth_limit_mbit,
            averager_type=self._averager_type,
            anchor_keys=self._anchor_keys,
            listeners=() if self._lease is None else (self._lease.listener,),
            children=self._dht.children,
            verbose=logger.isEnabledFor(logging.DEBUG),
        )
        self._parts.callback(self.optimizer.shutdown)
        # hivemind has forked by now, and must not once the devices have joined.
        self._parts.enter_context(self.computation)
        self._introduce()
        if self._lease is not None:
            name = sender_name(self._dht.peer_id.to_base58())
            self.ask_for_lease = self._parts.enter_context(self._lease.watch(self.records, name))
        return self

    def __exit__(self, *exception: object) -> None:
        self._parts.close()

    def wait_for_word(self, stop: threading.Event) -> None:
        """In a run with anchors: wait until one of them, or peers that one vouches for, say which state the run has.

        Ends at once while nobody trains, and when `stop` is set.
        """
        next_line = 0.0
        while self.optimizer.state_transfer.look().is_without_word and not stop.wait(SECONDS_BETWEEN_LOOKS):
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + SECONDS_BETWEEN_LINES
                logger.warning(
                    "Peers train here, but neither an anchor of the run nor enough of the peers that one vouches for "
                    "say which state it has. This peer waits. The organiser starts an anchor with: dalle-collab run "
                    "assist %s",
                    self._place or "ORG/RUN",
                )

    def synchronise(self, fetch_checkpoint: FetchCheckpoint, show: ShowProgress | None = None) -> str:
        """Load the newest available state; return where it came from: `peers`, `checkpoint` or `start`.

        `fetch_checkpoint` is called only when no peer serves the state that most peers name. `show` is called with
        download progress; by default it is logged occasionally.

        Raises:
            RunFinishedError: the run is at its last epoch.
        """
        source = "start"
        if self.optimizer.state_transfer.look().newest_epoch() > 0:
            self.optimizer.load_state_from_peers(show)
        if self.optimizer.state.state_epoch > 0:
            source = "peers"
        elif not self.optimizer.state_transfer.is_to_stop() and (load := fetch_checkpoint()) is not None:
            self.restore(load)
            source = "checkpoint"
        if self.optimizer.is_over:
            raise RunFinishedError(finished_message(self.run, self._place))
        if not self.optimizer.state_transfer.is_to_stop():  # else it may have no state worth sharing
            self.optimizer.share_state()
        return source

    def restore(self, load: LoadCheckpoint) -> None:
        """Load a checkpoint; the peer continues at its epoch."""
        own = self.optimizer.state
        with own.lock:
            own.set_epoch(load(self.model, own.optimizer))
        self.optimizer.begin_epoch()

    @property
    def epoch(self) -> int:
        """The epoch whose gradients this peer gathers."""
        return self.optimizer.local_epoch

    def may_be_ending(self) -> bool:
        """Whether the others may have ended the run's last epoch, so that the Hub will soon say so."""
        optimizer, last = self.optimizer, self.run.num_epochs
        is_alone = optimizer.tracker.num_peers <= 1
        return max(optimizer.tracker.global_epoch, optimizer.local_epoch + is_alone) >= last

    def pause(self) -> None:
        """Stop computing after the current micro-batch, from any thread; the other peers do not wait."""
        self.pause_switch.pause()

    def resume(self) -> None:
        """Resume after a pause, from any thread, with the swarm's newest state."""
        self.pause_switch.resume()

    def train(
        self, batches: Iterable[Batch], stop: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[StepReport]:
        """Train until `stop` is set, or the run's last epoch or a local limit (`max_epochs`, `max_hours` by the
        clock's seconds) is reached.

        Yields a report after every micro-batch.
        """
        limit = last_epoch(self.run, self.compute, self.optimizer.local_epoch)
        deadline = clock() + 3600 * (self.compute.max_hours or math.inf)
        for batch in batches:
            if self.pause_switch.is_on:
                self._rest(stop)
            if stop.is_set() or self.optimizer.local_epoch >= limit or clock() >= deadline:
                break
            started = clock()
            report = self.step(batch)
            seconds = clock() - started
            yield report
            if not report.ended_epoch:  # the seconds of a round are not computing
                started = clock()
                self.computation.note_step(
                    seconds,
                    num_samples(batch),
                    may_test=lambda: not self.optimizer.is_awaited,
                    around_a_test=self.optimizer.tracker.performance_ema.pause,
                )
                rest = self.computation.rest_after(seconds + clock() - started)
                take_break(rest, stop, lambda: self.pause_switch.is_on or self.optimizer.is_awaited)
        self.optimizer.wait_for_updates()
        if self.optimizer.is_over:
            hand_over(self.optimizer, self.records, stop, place=self._place or "ORG/RUN")

    def _rest(self, stop: threading.Event) -> None:
        self.num_samples -= self.optimizer.suspend()
        bring_back = self.computation.make_room(self.optimizer.own_tensors())
        logger.info("Paused at epoch %d; the state is kept.", self.optimizer.local_epoch)
        self.pause_switch.wait_until_off(stop)
        if not stop.is_set():
            bring_back()
            self.optimizer.resume()
            logger.info("Resumed at epoch %d.", self.optimizer.local_epoch)

    def step(self, batch: Batch) -> StepReport:
        """Compute the gradient of one micro-batch, add it to the epoch, and end the epoch when the swarm has enough."""
        epoch = self.optimizer.local_epoch
        named = batch if isinstance(batch, NamedBatch) else None
        loss = self.computation.compute(batch)
        if loss is None:  # overflowed in float16: neither the gradient nor the loss is usable
            self.optimizer.drop(named)
            return self._step_report(epoch, None, was_used=False, ended_epoch=False)
        self.optimizer.step(batch_size=loss.weight, batch=named)
        self.optimizer.zero_grad()
        was_used = self.optimizer.last_gradient_was_used
        if was_used:
            self.num_samples += loss.weight
            self._epoch_losses.append(loss.mean)
        ended = self.optimizer.local_epoch != epoch
        report = self._step_report(epoch, loss.mean, was_used=was_used, ended_epoch=ended)
        if ended:
            self.num_epochs += 1
            self._report_epoch()
        return report

    def _step_report(self, epoch: int, loss: float | None, *, was_used: bool, ended_epoch: bool) -> StepReport:
        progress = self.optimizer.progress()
        return StepReport(
            epoch=epoch,
            loss=loss,
            epoch_loss=loss if self._epoch_loss is None else self._epoch_loss,
            was_used=was_used,
            ended_epoch=ended_epoch,
            num_peers=progress.num_peers,
            samples_per_second=progress.samples_per_second,
            swarm_samples_per_second=progress.swarm_samples_per_second,
            share_averaged=progress.share_averaged,
            num_samples=self.num_samples,
            bytes_per_sample=progress.bytes_sent / max(1, self.num_samples),
        )

    @property
    def _epoch_loss(self) -> float | None:
        return sum(self._epoch_losses) / len(self._epoch_losses) if self._epoch_losses else None

    def _introduce(self) -> None:
        introduction = PeerIntroduction(
            username=self._username,
            device=self.computation.description(),
            client_mode=bool(self.network.client_mode),
            package_version=self._package_version,
        )
        self.records.publish(INTRODUCTIONS, introduction, INTRODUCTION_SECONDS)

    def _report_epoch(self) -> None:
        if (loss := self._epoch_loss) is None:
            return
        progress = self.optimizer.progress()
        averaging = progress.gradient_round
        metrics = PeerMetrics(
            username=self._username,
            epoch=progress.epoch,
            loss=loss,
            num_samples=self.num_samples,
            samples_per_second=progress.samples_per_second,
            share_averaged=averaging.share_averaged,
            bytes_sent=progress.bytes_sent,
            num_rounds=averaging.num_rounds,
            round_seconds=averaging.seconds,
            num_refused_gradients=progress.num_refused_gradients,
            client_mode=bool(self.network.client_mode),
            package_version=self._package_version,
            num_incomplete_rounds=progress.num_incomplete_rounds,
            num_withheld=averaging.num_withheld,
            suspects=[suspect_record(suspect) for suspect in averaging.suspects[:MAX_SUSPECTS]],
        )
        self._epoch_losses.clear()
        self._introduce()
        self.records.publish(METRICS, metrics, self.run.progress_expiration_seconds)


def _ask_nobody() -> None: ...


def suspect_record(suspect: Suspect) -> SuspectRecord:
    """Return what is published of a suspect."""
    return SuspectRecord(peer_id=suspect.peer_id, offence=suspect.offence.name, num_rounds=suspect.num_rounds)
