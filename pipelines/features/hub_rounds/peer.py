"""A training peer whose only wire is the Hub: one loop that computes, and rounds that it exchanges meanwhile."""

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from hub_tools.printing.printable import one_line
from pipelines.core.gradients.machine_computation import MachineComputation
from pipelines.core.peer.pausing import PauseSwitch, take_break
from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.volunteer import last_epoch
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import Batch, num_samples
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.hub_rounds.closing import MOST_REASON, next_deadline, takes_back
from pipelines.features.hub_rounds.exchange import (
    SECONDS_OF_GRACE,
    ContributionOffer,
    RoundExchange,
    RoundStillOpenError,
)
from pipelines.features.hub_rounds.files import HubAwayError
from pipelines.features.hub_rounds.reading import IncompleteError, OtherStateError, RoundReader, follow, replayed
from pipelines.features.hub_rounds.statements import Pointer
from pipelines.features.hub_rounds.stepping import ClosedRound, FalseListError, ReplayedState
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.local_steps import SparseLocalSteps
from pipelines.features.sparse.mean import share_to_send_again

logger = logging.getLogger(__name__)

WINDOWS_AHEAD = 3.0
"""For how long a peer trains on without hearing of a round that it has offered a contribution to."""

SECONDS_BETWEEN_LOOKS = 1.0
SPEED_WEIGHT = 0.1
TRIES = 3


class RoundsUnusableError(RuntimeError):
    """No publisher's lists lead to the states that they name, as this machine computes."""


class OwnContribution:
    """What this peer has contributed last, as its gathering hears of it."""

    def __init__(self, codec: SparseCodec) -> None:
        self.codec = codec
        self.content: bytes | None = None
        self.share_to_send_again = 1.0
        """All of it until a list has it; then what the mean has cut."""

    def contribute(self, content: bytes | None) -> None:
        """Take the bytes to offer to the next round; None: nothing."""
        self.content, self.share_to_send_again = content, 1.0


class HubPeer:
    """Trains on a task's batches, and takes part in the run's rounds."""

    def __init__(
        self,
        task_run: TrainingRun,
        state: ReplayedState,
        computation: MachineComputation,
        reader: RoundReader,
        exchange: RoundExchange,
        *,
        user: str,
        device: str,
        package_version: str,
        limits: ComputeOptions,
        fetch_checkpoint: Callable[[], Path | None],
    ) -> None:
        self.run, self.state, self._computation, self._reader, self._exchange = (
            task_run, state, computation, reader, exchange,
        )  # fmt: skip
        self._user, self._device, self._package_version, self._limits = user, device, package_version, limits
        self._fetch_checkpoint, self._clock = fetch_checkpoint, reader.files.clock
        self.pause_switch = PauseSwitch()
        self._own = OwnContribution(state.codec)
        self._gathering = SparseLocalSteps(self.run, state.model, self._own, state.training)
        self._offered: Pointer | None = None
        self._deadline = 0.0
        self._samples_of_round, self._loss_of_round = 0, 0.0
        self._speed = 0.0
        self._newest: ClosedRound | None = None
        self._scales: Mapping[str, float] = {}
        self._synchronised_at = time.monotonic()
        self.num_samples = self.num_epochs = self._bytes_sent = 0

    @property
    def epoch(self) -> int:
        """The round that led to the state from which this peer trains."""
        return self.state.training.model_epoch

    @property
    def newest_round(self) -> ClosedRound | None:
        """The newest round that this peer has followed."""
        return self._newest

    @property
    def is_over(self) -> bool:
        """Whether the run has had its last round."""
        return self.epoch >= self.run.num_epochs

    def synchronise(self, stop: threading.Event) -> str:
        """Go to the run's newest state; return where it came from: `checkpoint` or `start`, with `+ N rounds`.

        Waits for the run's auxiliary peer to begin the rounds, or until `stop` is set.

        Raises:
            RoundsUnusableError: the lists of no publisher can be followed.
            OSError: the Hub refuses.
        """
        source, num_rounds = self._catch_up(stop)
        self._gathering.restart(keep_gradient=False)
        return f"{source} + {num_rounds} rounds" if num_rounds else source

    def train(self, batches: Iterable[Batch], stop: threading.Event) -> Iterator[StepReport]:
        """Train until `stop` is set, the run has had its last round or a local limit is reached.

        Yields a report after every micro-batch.
        """
        limit = last_epoch(self.run, self._limits, self.epoch)
        deadline = time.monotonic() + 3600 * (self._limits.max_hours or math.inf)
        for batch in batches:
            if self.pause_switch.is_on:
                self.pause_switch.wait_until_off(stop)
            if stop.is_set() or self.epoch >= limit or time.monotonic() >= deadline:
                return
            started, epoch = time.monotonic(), self.epoch
            loss = self._step(batch)
            seconds = time.monotonic() - started
            had_round = self._turn(stop)
            yield self._report(epoch, loss, ended_epoch=self.epoch != epoch)
            if not had_round:
                self._computation.note_step(seconds, num_samples(batch))
                take_break(self._computation.rest_after(seconds), stop, lambda: self.pause_switch.is_on)

    def close(self) -> None:
        """End the threads."""
        self._exchange.close()
        self.state.close()

    def _step(self, batch: Batch) -> float | None:
        """Add a micro-batch's gradient; return its mean loss, None if it overflowed."""
        started = time.monotonic()
        loss = self._computation.compute(batch)
        if loss is None:
            return None
        self._samples_of_round = self._gathering.add(loss.weight, self.epoch)
        self._loss_of_round += loss.mean * loss.weight
        speed = loss.weight / max(1e-6, time.monotonic() - started)
        self._speed += (SPEED_WEIGHT if self._speed else 1.0) * (speed - self._speed)
        return loss.mean

    def _turn(self, stop: threading.Event) -> bool:
        """Do what the round asks for now; return whether that took time."""
        waits = time.monotonic() - self._synchronised_at > WINDOWS_AHEAD * self.run.window_seconds
        try:
            if not self._exchange.is_under_way:
                now = self._clock()
                deadline = next_deadline(self._deadline, self.run.window_seconds, now)
                is_later = deadline > self._deadline  # somebody may close the round any time
                has_some = self._samples_of_round or self._offered is not None
                moment = self._exchange.moment_to_offer(deadline, is_later_window=is_later)
                if now >= (moment if has_some else deadline - SECONDS_OF_GRACE):
                    self._offer(deadline)
                    return True
                if is_later:
                    self._exchange.begin(self.state.terms(), self._deadline, None, self._step_along)
                return False
            while (closed := self._exchange.outcome(SECONDS_BETWEEN_LOOKS if waits else 0.0)) is None:
                if not waits or stop.is_set():
                    return False
            self._follow(closed)
        except RoundStillOpenError:
            if self._samples_of_round or self._offered is not None:  # at once: the next window may be nearly over
                self._offer(next_deadline(self._deadline, self.run.window_seconds, self._clock()))
        except (OtherStateError, FalseListError) as error:
            logger.warning("This peer takes the newest checkpoint: %s.", error)
            self._recover(stop)
        return True

    def _offer(self, deadline: float) -> None:
        """Offer the progress since the last round to the one that ends at the deadline."""
        self._take_back()  # what was offered to the round before its last window
        offer, samples = None, self._samples_of_round
        if samples:
            self._gathering.finish(self.epoch)
            self._gathering.end_epoch()  # what was gathered is in the contribution: it makes no inner step
            if self._own.content is not None:
                pointer = self._pointer(self._own.content, samples)
                offer, self._offered = ContributionOffer(pointer=pointer, content=self._own.content), pointer
                self._bytes_sent += pointer.size
            self._samples_of_round, self._loss_of_round = 0, 0.0
        self._exchange.begin(self.state.terms(), deadline, offer, self._step_along)

    def _pointer(self, content: bytes, samples: int) -> Pointer:
        self.num_samples += samples
        return Pointer(
            swarm_id=self.run.swarm_id,
            user=self._user,
            round=self.epoch + 1,
            state=self.state.digest,
            digest=hashlib.sha256(content).hexdigest(),
            size=len(content),
            samples=samples,
            total_samples=self.num_samples,
            loss=self._loss_of_round / samples,
            samples_per_second=self._speed,
            device=self._device[:64],
            package_version=self._package_version,
            key="",  # the exchange signs
        )

    def _step_along(self, closed: ClosedRound) -> None:
        """Take the step of a round that was closed, while the model trains on."""
        self._scales = follow(self._reader, self.state, closed, in_background=True)

    def _follow(self, closed: ClosedRound) -> None:
        """Go on from the state after a round that was closed."""
        counted = {pointer.user: pointer.digest for pointer in closed.pointers}
        self.state.training.apply_updates()
        if self._offered is not None:
            if counted.get(self._user) == self._offered.digest:
                self._own.share_to_send_again = share_to_send_again(self._scales[self._user])
            else:
                self._say_left_out(closed)
        self._note(closed)
        self.num_epochs += 1

    def _say_left_out(self, closed: ClosedRound) -> None:
        """Say why the contribution did not count; it may in the next round."""
        if takes_back(closed.closed, self._user):
            self._take_back()
        else:
            self.num_samples -= self._offered.samples if self._offered else 0
            self._own.share_to_send_again = 0.0
        reasons = {one.user: one.reason for one in closed.closed.left_out}
        reason = one_line(reasons.get(self._user, "the list does not name it"), MOST_REASON)
        logger.warning("Round %d was closed without this peer's contribution: %s.", closed.closed.round, reason)

    def _take_back(self) -> None:
        """Let what was offered, if no list had it, count in the next offer, which is then of the samples of both."""
        if self._offered is not None:
            self._samples_of_round = self._gathering.offer_again()
            self._loss_of_round += self._offered.loss * self._offered.samples
            self.num_samples -= self._offered.samples
            self._offered = None

    def _note(self, closed: ClosedRound) -> None:
        self._newest, self._deadline, self._offered = closed, closed.closed.deadline, None
        self._synchronised_at = time.monotonic()

    def _recover(self, stop: threading.Event) -> None:
        """Go to the run's newest state from a checkpoint; what this peer has learnt since counts in the next round."""
        self._take_back()
        self._catch_up(stop)
        self._gathering.restart(keep_gradient=True)
        self._samples_of_round, self._loss_of_round = 0, 0.0

    def _catch_up(self, stop: threading.Event) -> tuple[str, int]:
        for _ in range(TRIES):
            folder = self._fetch_checkpoint()
            self.state.restore(folder)
            try:
                num_rounds = self._replay(stop)
            except (FalseListError, OtherStateError) as error:
                logger.warning("The rounds after the newest checkpoint cannot be followed: %s.", error)
                continue
            return ("start" if folder is None else "checkpoint"), num_rounds
        raise RoundsUnusableError(
            f"No publisher of the run has closed rounds that lead from its newest checkpoint (epoch {self.epoch}) to "
            "the states that they name, as this machine computes. Check your version: dalle-collab doctor ORG/RUN. If "
            "others train, tell the run's organiser."
        )

    def _replay(self, stop: threading.Event) -> int:
        """Follow the rounds that were closed since the state; wait for the first list of the run. Return how many."""
        num_rounds, is_said = 0, False
        while not stop.is_set():
            try:
                for closed in replayed(self._reader, self.state):
                    self._note(closed)
                    num_rounds += 1
                if (present := self._reader.present(self.state.digest)) is not None:
                    self._deadline = present.deadline
                    self._synchronised_at = time.monotonic()
                    return num_rounds
                words = "its auxiliary peer has not begun the rounds: dalle-collab run assist ORG/RUN"
            except (HubAwayError, IncompleteError) as error:
                words = str(error)
            if not is_said:
                logger.warning("Waiting for the run: %s", words)
                is_said = True
            stop.wait(SECONDS_BETWEEN_LOOKS)
        return num_rounds

    def _report(self, epoch: int, loss: float | None, *, ended_epoch: bool) -> StepReport:
        others = [pointer for pointer in self._newest.pointers if pointer.user != self._user] if self._newest else []
        return StepReport(
            epoch=epoch,
            loss=loss,
            epoch_loss=self._loss_of_round / self._samples_of_round if self._samples_of_round else loss,
            was_used=loss is not None,
            ended_epoch=ended_epoch,
            num_peers=1 + len(others),
            samples_per_second=self._speed,
            swarm_samples_per_second=self._speed + sum(pointer.samples_per_second for pointer in others),
            share_averaged=1.0,
            num_samples=self.num_samples + self._samples_of_round,
            bytes_per_sample=self._bytes_sent / max(1, self.num_samples),
        )
