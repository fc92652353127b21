"""Transfer of the training state: every peer signs which state it has, and newcomers download the one most sign.

Used by the auxiliary peer and by trainers, also when they have fallen out of step. It does not block training: the
copy, its hashes and the record are made in a thread, after a step.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.swarm.records import StateRecord, SwarmRecords
from pipelines.training.state.averager import SwarmStateAverager
from pipelines.training.state.digest import StateManifest
from pipelines.training.state.download import (
    DownloadLimits,
    DownloadReport,
    StateDownloadError,
    StateRefusedError,
)
from pipelines.training.state.votes import Verdict, count_votes, donors_in_turn, electorate

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.25
NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING = 5
"""A trainer contradicted by a clear majority for this many epochs in a row loads the majority's state."""

SECONDS_BETWEEN_LOG_LINES = 10.0


@dataclass(frozen=True, kw_only=True)
class DownloadProgress:
    """Progress of a download; as text, a line for people."""

    verdict: Verdict
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

    verdict: Verdict
    report: DownloadReport
    seconds: float
    """From first reading the votes to the end of the download."""


class StateTransfer:
    """Downloads the state from others and offers it to others. `close` it before the averager is shut down."""

    def __init__(
        self,
        averager: SwarmStateAverager,
        records: SwarmRecords,
        limits: TransferLimits,
        knows: Callable[[str], bool] = lambda _peer: False,
    ) -> None:
        """`knows` tells of a libp2p id whether this peer has averaged with it, and takes its vote."""
        self._knows = knows
        self._averager, self._records, self._limits = averager, records, limits
        self._peer_id = averager.peer_id.to_base58()
        self._generator = random.Random()  # specific to this peer: newcomers arriving together spread over the donors
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._avoided: set[str] = set()
        self._sealed_at = 0.0
        self.last_taken: TakenState | None = None
        self.num_outvoted_epochs = 0
        self.was_offered_newer = False
        """Whether somebody serves the state that the last `fetch` wanted, whether or not it could be loaded."""

    @property
    def is_outvoted(self) -> bool:
        """Whether this trainer's state has differed from the majority's for too long to be fixed by averaging."""
        return self.num_outvoted_epochs >= NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING

    def newest_epoch(self) -> int:
        """Return the epoch of the state that most signed trainers name; 0 if nobody serves one."""
        verdict = self._verdict(frozenset())
        return verdict.epoch if verdict else 0

    def fetch(self, *, at_least: int, wanted: int = 0, show: ShowProgress | None = None) -> TakenState | None:
        """Load the state that most signed trainers name, if it is of epoch `at_least` or later; None if that failed.

        Waits briefly for the state of epoch `wanted`, which a swarm that has just stepped is about to offer. Always
        ends after `total_seconds` or `num_attempts`.
        """
        started, show = time.monotonic(), show or logged_now_and_then()
        refused: set[str] = set()
        avoided = set(self._avoided)
        self.was_offered_newer = False
        for _ in range(self._limits.num_attempts):
            rest = started + self._limits.total_seconds - time.monotonic()
            verdict = self._settled_verdict(wanted, refused)
            if verdict is None or verdict.epoch < at_least or rest <= 0:
                break
            donors = donors_in_turn(verdict, avoided, self._generator)
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
            self.was_offered_newer, self.num_outvoted_epochs = True, 0
            self.last_taken = TakenState(verdict=verdict, report=report, seconds=time.monotonic() - started)
            return self.last_taken
        self._averager.state_changed.set()  # the earlier snapshot may have been partly overwritten: copy again
        return None

    def share(self) -> None:
        """Offer the state from now on; call it once this peer is known to be in step with the swarm."""
        if not self._averager.client_mode:
            self._averager.allow_state_sharing = True
        if self._thread is None:
            self._averager.state_changed.set()
            self._thread = threading.Thread(target=self._keep_offering, name="state transfer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop offering the state."""
        self._stop.set()
        self._averager.state_changed.set()
        if self._thread is not None:
            self._thread.join()

    def _download(self, verdict: Verdict, donors: list[str], seconds: float, show: ShowProgress) -> DownloadReport:
        if verdict.outvoted:
            logger.warning("Downloading the state of %s; outvoted: %s", verdict, ", ".join(verdict.outvoted))
        return self._averager.download(
            digest=verdict.digest,
            epoch=verdict.epoch,
            donors=donors,
            limits=self._limits.download,
            total_seconds=seconds,
            show=lambda done, of: show(DownloadProgress(verdict=verdict, num_bytes=done, num_bytes_total=of)),
        )

    def _verdict(self, refused: frozenset[str] | set[str], with_own: bool = False) -> Verdict | None:
        claims = self._records.states()
        if not with_own:
            claims = {key: claim for key, claim in claims.items() if claim.peer_id != self._peer_id}
        voters = electorate(claims, self._records.trainers(), self._knows)
        return count_votes(claims, voters, refused, self._records.admissions.users(claims))

    def _settled_verdict(self, wanted: int, refused: set[str]) -> Verdict | None:
        deadline = time.monotonic() + self._limits.settling_seconds
        while True:
            verdict = self._verdict(refused)
            if verdict is None or (verdict.is_decided and verdict.epoch >= wanted) or time.monotonic() > deadline:
                return verdict
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _keep_offering(self) -> None:
        """Snapshot, hash and sign the state after every step; renew the record in between."""
        while not self._stop.is_set():
            changed = self._averager.state_changed.wait(self._limits.record_seconds / 3)
            if self._stop.is_set():
                return
            try:
                if changed and not self._may_replace_snapshot():
                    self._stop.wait(SECONDS_BETWEEN_LOOKS)
                    continue
                self._averager.state_changed.clear()
                self._offer()
            except Exception:  # the outermost loop of this thread: training continues, the next epoch retries
                logger.exception("The state could not be offered to newcomers.")

    def _may_replace_snapshot(self) -> bool:
        is_old = time.monotonic() - self._sealed_at > self._limits.longest_hold_seconds
        return is_old or not self._averager.snapshot.is_held

    def _offer(self) -> None:
        if self._averager.snapshot_is_current:
            manifest = self._averager.snapshot.manifest()
        else:
            self._count_contradictions(self._averager.snapshot.manifest())
            manifest = self._averager.take_snapshot()
            self._sealed_at = time.monotonic()
        if manifest is None:
            return
        record = StateRecord(
            peer_id=self._peer_id,
            epoch=manifest.epoch,
            digest=manifest.digest,
            shares=self._averager.allow_state_sharing,
        )
        self._records.publish_state(record, self._limits.record_seconds)

    def _count_contradictions(self, own: StateManifest | None) -> None:
        """Check at the end of an epoch whether the others agree with this peer's digest."""
        verdict = self._verdict(frozenset(), with_own=True)
        if own is None or verdict is None or verdict.epoch != own.epoch or not verdict.is_clear:
            return
        self.num_outvoted_epochs = 0 if verdict.digest == own.digest else self.num_outvoted_epochs + 1
