"""The swarm's progress: hivemind's tracker, but it counts itself, and others only as far as they are credible."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils import ValueWithExpiration, get_dht_time

from pipelines.admission.record_owners import AdmissionRecords

TRUSTED_COMPANY = 2
SHARE_OF_WITNESSES = 0.25
"""Share of the other peers that must have reached an epoch before this peer believes that the swarm has."""

REPORT_SHARE = 0.25
"""Share of an epoch's remaining time between two reports: near its end the others need newer figures."""

GENEROSITY = 2.0
"""A peer may have gathered this multiple of what its records say: records are late, and speeds vary."""


def plausible_samples(
    records: Iterable[LocalTrainingProgress], now: float, seconds_to_come: float
) -> dict[bytes, float]:
    """Return, by bytes of the peer id, the most samples that each peer can have gathered when the round begins.

    `seconds_to_come`: until then, at most. Of several records about one peer the largest counts, so that nobody can
    reduce another's weight by signing a record in its name.
    """
    samples: dict[bytes, float] = {}
    for record in records:
        seconds = max(0.0, now - record.time) + seconds_to_come
        gathered = GENEROSITY * (record.samples_accumulated + seconds * record.samples_per_second)
        if math.isfinite(gathered):
            samples[record.peer_id] = max(gathered, samples.get(record.peer_id, 0.0))
    return samples


def witnessed_epoch(epochs: Sequence[int]) -> int:
    """Return the latest epoch confirmed by enough other peers not to rest on a single claim; 0 without others.

    One claim is enough if there are at most two others: the swarm would otherwise stall with any of them.
    """
    num_witnesses = 1 if len(epochs) <= TRUSTED_COMPANY else max(2, math.ceil(len(epochs) * SHARE_OF_WITNESSES))
    return sorted(epochs, reverse=True)[num_witnesses - 1] if epochs else 0


class PacedEvent(threading.Event):
    """An event that releases its waiter at most every `pause()` seconds, unless it must hurry."""

    def __init__(self, pause: Callable[[], float]) -> None:
        super().__init__()
        self._pause, self._earliest, self._is_urgent = pause, 0.0, threading.Event()

    def hurry(self) -> None:
        """Release the waiter at once if the event is set."""
        self._is_urgent.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, and then until the last release is long enough ago."""
        if not super().wait(timeout):
            return False
        self._is_urgent.wait(max(0.0, self._earliest - time.monotonic()))
        self._is_urgent.clear()
        self._earliest = time.monotonic() + self._pause()
        return True


class SwarmProgressTracker(ProgressTracker):
    """Counts this peer among the swarm's even before its own record has come back from the DHT.

    Without this, a newcomer that sees the record of one other peer believes it is alone, ends the epoch without
    averaging, and leaves the swarm's trajectory with its first gradient.

    Peers that claim an epoch not confirmed by others do not count: one that has just finished a round is counted again
    once the next ones have, and a liar drags nobody along.
    """

    seconds_to_come = 0.0
    """Time that a round may take to start once an epoch has enough samples."""

    _records: tuple[LocalTrainingProgress, ...] = ()

    def __init__(self, *args: Any, admissions: AdmissionRecords, start: bool, **kwargs: Any) -> None:
        """`admissions` says whose progress counts; all else is as in `ProgressTracker`."""
        self._admissions, self._owner = admissions, RSASignatureValidator().local_public_key
        super().__init__(*args, start=False, **kwargs)
        self.should_report_progress = PacedEvent(self._seconds_to_next_report)
        if start:
            self.start()

    def _seconds_to_next_report(self) -> float:
        """Return how long others can rely on this peer's reported speed: a share of the epoch's remaining time.

        hivemind reports after every micro-batch, which in a swarm of fast peers is most of the DHT's load.
        """
        seconds_left = self.global_progress.eta_next_epoch - get_dht_time()
        if not math.isfinite(seconds_left):
            return 0.0  # the epoch has just started, nothing is known yet
        return min(self.default_refresh_period, max(0.0, REPORT_SHARE * seconds_left))

    def report_local_progress(self, local_epoch: int, *args: Any, **kwargs: Any) -> None:
        """See `ProgressTracker.report_local_progress`; others wait for news that this peer is in a new epoch."""
        is_new = local_epoch != self.local_progress.epoch
        super().report_local_progress(local_epoch, *args, **kwargs)
        if is_new:
            self.should_report_progress.hurry()

    def shutdown(self, timeout: float | None = None) -> None:
        """Remove this peer's record from the DHT and stop."""
        self.should_report_progress.hurry()
        super().shutdown(timeout)

    def plausible_samples(self) -> dict[bytes, float]:
        """Return the most samples that each peer can have gathered when the round begins; see the function."""
        return plausible_samples(self._records, get_dht_time(), self.seconds_to_come)

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        if isinstance(metadata, dict) and metadata:
            own = ValueWithExpiration(self.local_progress.dict(), math.inf)
            metadata = {self._owner: own} | self._only_counted(metadata)
        if isinstance(metadata, dict):
            values = [entry.value for entry in metadata.values() if entry.value is not None]
            self._records = tuple(LocalTrainingProgress.parse_obj(value) for value in values)
        return super()._parse_swarm_progress_data(metadata)

    def _only_counted(self, metadata: dict[bytes, Any]) -> dict[bytes, Any]:
        """Drop the records of peers not admitted by the run's authority, and of peers claiming an unconfirmed epoch."""
        values = {owner: entry.value for owner, entry in metadata.items() if entry.value is not None}
        records = {owner: LocalTrainingProgress.parse_obj(value) for owner, value in values.items()}
        counted = self._admissions.counted(records)
        others = {owner: r.epoch for owner, r in counted.items() if owner != self._owner and not r.client_mode}
        witnesses: dict[str, int] = {}
        for owner, user in self._admissions.users(others).items():
            witnesses[user] = max(others[owner], witnesses.get(user, 0))
        limit = max(witnessed_epoch(list(witnesses.values())), self.local_progress.epoch)
        return {owner: metadata[owner] for owner, record in counted.items() if record.epoch <= limit}
