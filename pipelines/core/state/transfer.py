"""Transfer of the training state: every peer signs which state it has, and newcomers download the one most sign.

Used by the auxiliary peer and by trainers, also when they have fallen out of step. It does not block training: the
copy, its hashes and the record are made in a thread, after a step.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from pipelines.core.state.anchors import Anchorage, AnchorWatch, is_contradicted
from pipelines.core.state.download import (
    DonorReport,
    DownloadLimits,
    StateDownloadError,
    StateRefusedError,
)
from pipelines.core.state.exchange import StateExchange
from pipelines.core.state.survey import StateSurvey
from pipelines.core.state.votes import VoteResult, count_votes, donors_in_turn, electorate
from pipelines.core.swarm.peer_records import StateRecord
from pipelines.core.swarm.records import PROGRESS, STATES, SwarmRecords

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_BETWEEN_JUDGEMENTS = 1.0
"""How often a peer looks whether the others have named their states of its epoch, until they have."""

NUM_MISFITS_TO_LEAVE = 5
"""Downloads in a row after which a peer's own step led to another state again, while all others agreed."""

SECONDS_BETWEEN_LOG_LINES = 10.0


@dataclass(frozen=True, kw_only=True)
class DownloadProgress:
    """Progress of a download; as text, a line for people."""

    verdict: VoteResult
    num_bytes: int
    """Bytes of the state received."""

    num_bytes_total: int

    def __str__(self) -> str:
        done, total = self.num_bytes / 1e6, self.num_bytes_total / 1e6
        return f"Downloading the training state of {self.verdict}: {done:.1f} of {total:.1f} MB"


ShowProgress = Callable[[DownloadProgress], None]


def logged_now_and_then() -> ShowProgress:
    """Return a function that logs progress at a limited rate."""
    next_line = time.monotonic() + SECONDS_BETWEEN_LOG_LINES

    def show(progress: DownloadProgress) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + SECONDS_BETWEEN_LOG_LINES
            logger.info("%s", progress)

    return show


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """Time limits of a transfer; see `hivemind_options.transfer_limits`."""

    download: DownloadLimits
    total_seconds: float
    """After this long a newcomer gives up on the swarm and uses the checkpoint. Increase on slow links."""

    settling_seconds: float
    """How long to wait for more than half of the voters to agree, if they can; at an epoch's end they do not."""

    num_attempts: int = 8
    record_seconds: float = 60.0
    """Lifetime of a signed record; renewed in time while its peer is alive."""

    longest_hold_seconds: float = 300.0
    """A snapshot of this age is replaced even while newcomers still request it."""


@dataclass(frozen=True, kw_only=True)
class TakenState:
    """Which state was loaded, and from whom."""

    verdict: VoteResult
    report: DonorReport
    seconds: float
    """From first reading the votes to the end of the download."""


class Witnesses(Protocol):
    """Whose word a peer takes; see `acquaintances.Acquaintances`."""

    @property
    def believe_strangers(self) -> bool:
        """Whether those vote whom this peer has never averaged with, if it knows nobody."""

    @property
    def quorum(self) -> int:
        """How many of those that this peer knows must be there for their votes to count."""

    def know(self, peer: str) -> bool:
        """Return whether this peer has averaged with another one, by libp2p id, or others vouch for it."""

    def meet(self, peers: Collection[str]) -> None:
        """Take note of who has the state that this peer has taken over."""

    def vouch(self, names: frozenset[str] | None) -> None:
        """Take note of whom the run's anchors average with; None: it has no anchors."""


class StateTransfer:
    """Downloads the state from others and offers it to others; `close` it and its exchange at the end."""

    def __init__(
        self,
        exchange: StateExchange,
        records: SwarmRecords,
        limits: TransferLimits,
        witnesses: Witnesses,
        anchors: AnchorWatch,
    ) -> None:
        """`witnesses` are those whose votes this peer takes, `anchors` those whose signature it takes."""
        self._witnesses, self._anchors = witnesses, anchors
        self.exchange, self._state, self._records, self._limits = exchange, exchange.state, records, limits
        self._peer_id = exchange.peer_id.to_base58()
        self._generator = random.Random()  # specific to this peer: newcomers arriving together spread over the donors
        self._stop = threading.Event()
        self.is_to_stop: Callable[[], bool] = self._stop.is_set
        """Asked often while a state is downloaded: whether its peer is about to leave, and does not need it."""

        self._thread: threading.Thread | None = None
        self._avoided: set[str] = set()
        self._sealed_at = self._renewed_at = 0.0
        self.is_judged = True
        """Whether this peer knows if the others have the same state as it has now."""

        self.reached_epoch = 0
        """The epoch that the run has reached for certain: while no anchor speaks, no earlier state counts."""

        self.last_taken: TakenState | None = None
        self.is_outvoted = False
        """Whether the others have another state of this trainer's epoch; it then downloads theirs."""

        self.num_misfits = 0
        """Times in a row that this trainer alone had another state."""

        self.was_offered_newer = False
        """Whether somebody serves the state that the last `fetch` wanted, whether or not it could be loaded."""

    @property
    def fits(self) -> bool:
        """Whether this machine computes what the others compute: False if downloads of their state do not help."""
        return self.num_misfits < NUM_MISFITS_TO_LEAVE

    def look(self) -> StateSurvey:
        """Return what the swarm's records say now about its training state."""
        own = self.exchange.peer_id.to_bytes()
        epochs = {key: int(held.epoch) for key, held in self._records.read(PROGRESS).items() if held.peer_id != own}
        seen, witnesses = self.look_at_anchors(), self._witnesses
        oldest = self.reached_epoch if seen.present is None else 0
        states = self._records.read(STATES).items()
        claims = {key: claim for key, claim in states if claim.peer_id != self._peer_id and claim.epoch >= oldest}
        return StateSurvey(
            claims=claims,
            epochs=epochs,
            voters=electorate(
                claims,
                epochs,
                witnesses.know,
                believes_strangers=witnesses.believe_strangers,
                quorum=witnesses.quorum,
            ),
            believes_strangers=witnesses.believe_strangers,
            users=self._records.admissions.users(claims),
            anchorage=seen,
        )

    def look_at_anchors(self) -> Anchorage:
        """Return what the run's anchors have said; it is read from the swarm at most once a second."""
        seen = self._anchors.look()
        self._witnesses.vouch(seen.roster if seen.has_anchors else None)
        return seen

    def fetch(self, *, at_least: int, wanted: int = 0, show: ShowProgress | None = None) -> TakenState | None:
        """Load the state that most signed trainers name, if it is of epoch `at_least` or later; None if that failed.

        Waits briefly for the state of epoch `wanted`, which a swarm that has just stepped is about to offer. Always
        ends after `total_seconds` or `num_attempts`, and within a second once `is_to_stop` returns True.
        """
        started, show = time.monotonic(), show or logged_now_and_then()
        refused: set[str] = set()
        avoided = set(self._avoided)
        anchor = self.look_at_anchors().present
        self.was_offered_newer = not self.is_outvoted and anchor is not None and anchor.epoch >= at_least
        for _ in range(self._limits.num_attempts):
            if self.is_to_stop():
                break
            rest = started + self._limits.total_seconds - time.monotonic()
            verdict = self._settled_verdict(wanted, refused)
            if verdict is None or verdict.epoch < at_least or rest <= 0:
                break
            donors = donors_in_turn(verdict, avoided, self._generator, self._witnesses.know)
            if not donors:
                refused.add(verdict.digest)  # its donors are known to fail; the next best state may have others
                continue
            try:
                report = self._download(verdict, donors, rest, show)
            except (StateRefusedError, StateDownloadError) as error:
                logger.warning("%s", error)
                self._avoided |= set(error.report.liars)
                avoided |= set(error.report.failures) - set(error.report.moved_on)
                if isinstance(error, StateRefusedError):
                    refused.add(verdict.digest)
                else:
                    self.was_offered_newer = True
                continue
            self._avoided |= set(report.liars)
            self.was_offered_newer, self.is_outvoted = True, False
            self._witnesses.meet([c.peer_id for c in self._records.read(STATES).values() if c.digest == verdict.digest])
            self.last_taken = TakenState(verdict=verdict, report=report, seconds=time.monotonic() - started)
            return self.last_taken
        self._state.changed.set()  # the earlier snapshot may have been partly overwritten: copy again
        return None

    def share(self) -> None:
        """Offer the state from now on; call it once this peer is known to be in step with the swarm."""
        self.exchange.share()
        if self._thread is None:
            self._state.changed.set()
            self._thread = threading.Thread(target=self._keep_offering, name="state transfer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop offering new states; the last one is handed out until the exchange is closed."""
        self._stop.set()
        self._state.changed.set()
        if self._thread is not None:
            self._thread.join()

    def _download(self, verdict: VoteResult, donors: list[str], seconds: float, show: ShowProgress) -> DonorReport:
        if verdict.outvoted:
            logger.warning("Downloading the state of %s; outvoted: %s", verdict, ", ".join(verdict.outvoted))
        return self.exchange.download(
            digest=verdict.digest,
            epoch=verdict.epoch,
            donors=donors,
            limits=self._limits.download,
            total_seconds=seconds,
            is_to_stop=self.is_to_stop,
            show=lambda done, of: show(DownloadProgress(verdict=verdict, num_bytes=done, num_bytes_total=of)),
        )

    def _settled_verdict(self, wanted: int, refused: set[str]) -> VoteResult | None:
        deadline = time.monotonic() + self._limits.settling_seconds
        while True:
            seen = self.look()
            verdict = seen.verdict(refused)
            is_settled = verdict is not None and verdict.is_decided and verdict.epoch >= wanted
            # The anchor has signed a state, and its donors' records are still to come.
            is_hopeless = verdict is None and seen.anchorage.present is None
            if is_settled or is_hopeless or self.is_to_stop():
                return verdict
            if time.monotonic() > deadline:
                is_old = verdict is None or verdict.epoch < wanted
                return seen.verdict(refused, is_overdue=True) if is_old else verdict
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _keep_offering(self) -> None:
        """Snapshot, hash and sign the state after every step; renew the record and judge the state in between."""
        while not self._stop.is_set():
            changed = self._state.changed.wait(self._seconds_to_next_look())
            if self._stop.is_set():
                return
            try:
                if changed and not self._may_replace_snapshot():
                    self._stop.wait(SECONDS_BETWEEN_LOOKS)
                    continue
                self._state.changed.clear()
                if changed or self._seconds_to_renewal() <= 0:
                    self._offer()
                if not (changed or self.is_judged):
                    self._judge()
            except Exception:  # the outermost loop of this thread: training continues, the next epoch retries
                logger.exception("The state could not be offered to newcomers.")

    def _may_replace_snapshot(self) -> bool:
        is_old = time.monotonic() - self._sealed_at > self._limits.longest_hold_seconds
        return is_old or not self._state.snapshot.is_held

    def _seconds_to_renewal(self) -> float:
        return self._renewed_at + self._limits.record_seconds / 3 - time.monotonic()

    def _seconds_to_next_look(self) -> float:
        longest = math.inf if self.is_judged else SECONDS_BETWEEN_JUDGEMENTS
        return max(0.0, min(longest, self._seconds_to_renewal()))

    def _offer(self) -> None:
        self._renewed_at = time.monotonic()
        if self._state.snapshot_is_current:
            manifest = self._state.snapshot.manifest()
        else:
            self.is_judged = False
            manifest = self._state.take_snapshot()
            self._sealed_at = time.monotonic()
        if manifest is None:
            return
        record = StateRecord(
            peer_id=self._peer_id,
            epoch=manifest.epoch,
            digest=manifest.digest,
            shares=self.exchange.shares,
        )
        self._records.publish(STATES, record, self._limits.record_seconds)

    def _judge(self) -> None:
        """Learn, once in an epoch, whether the anchor, or those whom this peer believes, have the same state of it."""
        own, claims, seen = self._state.snapshot.manifest(), self._records.read(STATES), self.look_at_anchors()
        voters = electorate(claims, self._records.trainers(), self._believes, believes_strangers=False)
        if own is None or (seen.present is None and not voters):
            return
        verdict = count_votes(claims, voters, users=self._records.admissions.users(claims)) if voters else None
        if (differs := is_contradicted(own.epoch, own.digest, seen.present, verdict)) is None:
            return
        is_clear = verdict is not None and verdict.is_clear and verdict.digest != own.digest
        # An anchor yields to most of those it has just averaged with, who took another round for the one that counts.
        self.is_judged, self.is_outvoted = True, differs and (is_clear or not self._anchors.is_anchor)
        if self.is_outvoted and seen.present is not None and seen.present.epoch < own.epoch:
            logger.warning(
                "The run's anchor returns to epoch %d from epoch %d: what was trained in between is trained again.",
                seen.present.epoch,
                own.epoch,
            )
        elif self.is_outvoted:
            logger.warning("The others have another training state of epoch %d; it is downloaded.", own.epoch)
        self.num_misfits = self.num_misfits + 1 if self.is_outvoted and is_clear else 0

    def _believes(self, peer: str) -> bool:
        return peer == self._peer_id or self._witnesses.know(peer)
