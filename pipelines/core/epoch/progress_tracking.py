"""The swarm's progress: hivemind's tracker, but it counts itself, and others only as far as they are credible."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.utils import ValueWithExpiration, get_dht_time

from pipelines.core.admission.record_owners import AdmissionRecords
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.epoch.acquaintances import Acquaintances, believed_epoch
from pipelines.core.run.bounded_speeds import bounded_speeds
from pipelines.core.swarm.node import readable_peer_id

logger = logging.getLogger(__name__)

FIRST_DOUBT_SECONDS, LONGEST_DOUBT_SECONDS = 10.0, 600.0
"""A peer whose claim about the swarm's epoch has come to nothing is ignored for this long, twice as long each time."""

SECONDS_TO_RETRY = 5.0
REPORT_SHARE = 0.25
"""Share of an epoch's remaining time between two reports: near its end the others need newer figures."""

GENEROSITY = 2.0
"""A peer may have gathered this multiple of what its records say: records are late, and speeds vary."""


def plausible_samples(
    records: Iterable[LocalTrainingProgress], now: float, seconds_to_come: float, counted: Collection[str] | None = None
) -> dict[bytes, float]:
    """Return, by bytes of the peer id, the most samples that each peer can have gathered when the round begins.

    `seconds_to_come`: until then, at most. Of several records about one peer the largest counts, so that nobody can
    reduce another's weight by signing a record in its name. `counted`: the peers, by libp2p id, that end epochs; what
    a stranger says of itself gives it no weight. None: all.
    """
    samples: dict[bytes, float] = {}
    for record in records:
        if counted is not None and readable_peer_id(record.peer_id) not in counted:
            continue
        seconds = max(0.0, now - record.time) + seconds_to_come
        gathered = GENEROSITY * (record.samples_accumulated + seconds * record.samples_per_second)
        if math.isfinite(gathered):
            samples[record.peer_id] = max(gathered, samples.get(record.peer_id, 0.0))
    return samples


def newest_of_each_peer(records: Mapping[bytes, LocalTrainingProgress]) -> Collection[bytes]:
    """Return the owners of each peer's newest record: a peer that has started again, or has many keys, counts once."""
    newest: dict[bytes, bytes] = {}
    for owner, record in records.items():
        other = newest.get(record.peer_id)
        if other is None or record.time > records[other].time:
            newest[record.peer_id] = owner
    return newest.values()


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

    An epoch counts once half of the peers that this one has averaged with have reached it, see `acquaintances`. Peers
    ahead of it do not count: one that has just finished a round is counted again once the next ones have, and a liar
    drags nobody along.
    """

    local_progress: LocalTrainingProgress
    global_progress: GlobalTrainingProgress

    seconds_to_come = 0.0
    """Time that a round may take to start once an epoch has enough samples."""

    listens = False
    """Whether this peer has no samples of its own, and follows whoever trains."""

    _counted: frozenset[str] | None = None
    """Peers whose samples count for the end of the epoch; see `Acquaintances.give_samples`."""

    _records: tuple[LocalTrainingProgress, ...] = ()
    _metadata: object = None
    """The swarm's records as they were read last."""

    def __init__(
        self, *args: object, admissions: AdmissionRecords, acquaintances: Acquaintances, start: bool, **kwargs: object
    ) -> None:
        """`admissions` says whose progress counts, `acquaintances` whose word; all else is as in `ProgressTracker`."""
        self._admissions, self._owner = admissions, RSASignatureValidator().local_public_key
        self._acquaintances = acquaintances
        self._doubted = Blocklist(FIRST_DOUBT_SECONDS, LONGEST_DOUBT_SECONDS)
        self._voices: dict[str, int] = {}
        self._known: set[str] = set()
        super().__init__(*args, start=False, **kwargs)
        self.should_report_progress = PacedEvent(self._seconds_to_next_report)
        if start:
            self.start()

    def run(self) -> None:
        """See `ProgressTracker.run`; what fails is begun again: without it a peer would train on, blind and unseen."""
        while not self.shutdown_triggered.is_set():
            try:
                return super().run()
            except Exception:
                asyncio.get_event_loop().close()
                logger.exception("The swarm's progress could not be followed, next try in %.0f s.", SECONDS_TO_RETRY)
                self.shutdown_triggered.wait(SECONDS_TO_RETRY)
        self.shutdown_complete.set()

    def _seconds_to_next_report(self) -> float:
        """Return how long others can rely on this peer's reported speed: a share of the epoch's remaining time.

        hivemind reports after every micro-batch, which in a swarm of fast peers is most of the DHT's load.
        """
        seconds_left = self.global_progress.eta_next_epoch - get_dht_time()
        if not math.isfinite(seconds_left):
            return 0.0  # the epoch has just started, nothing is known yet
        return min(self.default_refresh_period, max(0.0, REPORT_SHARE * seconds_left))

    def report_local_progress(self, local_epoch: int, *args: object, **kwargs: object) -> None:
        """See `ProgressTracker.report_local_progress`; others wait for news that this peer is in a new epoch."""
        is_new = local_epoch != self.local_progress.epoch
        super().report_local_progress(local_epoch, *args, update_global_samples=self._gives_samples, **kwargs)
        if is_new:
            self.should_report_progress.hurry()

    def go_on(self, epoch: int, num_samples: int) -> None:
        """Begin an epoch with samples from before, which say nothing of this peer's speed; updates must be paused."""
        self.update_epoch(new_epoch=epoch)
        self.local_progress = self.local_progress.copy(update=dict(samples_accumulated=num_samples))
        self.global_progress.samples_accumulated += num_samples if self._gives_samples else 0
        self.should_report_progress.set()

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop, and remove this peer's record from the DHT."""
        self.should_report_progress.hurry()
        super().shutdown(timeout)
        # hivemind does the same without waiting: whoever ends its DHT node next is counted until the record expires.
        removed = self.dht.store(
            self.training_progress_key,
            subkey=self._owner,
            value=None,
            expiration_time=get_dht_time() + self.metadata_expiration,
            return_future=True,
        )
        with contextlib.suppress(Exception):  # the node does not answer: the record will expire
            removed.result(timeout)

    @property
    def num_peers(self) -> int:
        """Peers training now, including this one, also before anything has been read from the DHT."""
        return max(1, self.global_progress.num_peers)

    @property
    def swarm_samples_per_second(self) -> float:
        """What all peers say of their speed, together, this one included."""
        own = self.performance_ema.samples_per_second
        others = [r.samples_per_second for r in self._records if r.peer_id != self.local_progress.peer_id]
        return sum(bounded_speeds([own, *others]))

    @property
    def _gives_samples(self) -> bool:
        return self._counted is None or readable_peer_id(self.local_progress.peer_id) in self._counted

    def plausible_samples(self) -> dict[bytes, float]:
        """Return the most samples that each peer can have gathered when the round begins; see the function."""
        return plausible_samples(self._records, get_dht_time(), self.seconds_to_come, self._counted)

    def _parse_swarm_progress_data(self, metadata: object) -> GlobalTrainingProgress:
        self._metadata = metadata
        if isinstance(metadata, dict) and metadata:
            own = ValueWithExpiration(self.local_progress.dict(), math.inf)
            metadata = {self._owner: own} | self._only_counted(metadata)
        if isinstance(metadata, dict):
            values = [entry.value for entry in metadata.values() if entry.value is not None]
            self._records = tuple(LocalTrainingProgress.parse_obj(value) for value in values)
            metadata = self._only_samples_that_count(self._records)
        return super()._parse_swarm_progress_data(metadata)

    def _only_samples_that_count(self, records: Iterable[LocalTrainingProgress]) -> dict[bytes, ValueWithExpiration]:
        """Return the records by peer; who is no acquaintance is there, and has gathered nothing."""
        by_peer = {readable_peer_id(record.peer_id): record for record in sorted(records, key=lambda r: r.time)}
        counted = self._counted = frozenset(self._acquaintances.give_samples(by_peer, listens=self.listens))
        if self.listens:
            counted |= self._acquaintances.take_over_with(by_peer)
        nothing = dict(samples_accumulated=0, samples_per_second=0.0)
        return {
            record.peer_id: ValueWithExpiration(record.dict() | ({} if peer in counted else nothing), math.inf)
            for peer, record in by_peer.items()
        }

    def believed_epoch(self, records: Mapping[bytes, LocalTrainingProgress]) -> int:
        """Return the epoch that the other peers can be believed to have reached; their `records` go by owner."""
        own_peer = self.local_progress.peer_id  # also in a record from before a restart, under another key
        others = {owner: r for owner, r in records.items() if r.peer_id != own_peer and not r.client_mode}
        claims: dict[str, int] = {}
        known: set[str] = set()
        for owner, voice in self._admissions.users(others).items():
            claims[voice] = max(others[owner].epoch, claims.get(voice, 0))
            if self._acquaintances.know(readable_peer_id(others[owner].peer_id)):
                known.add(voice)
        now = get_dht_time()
        self._voices, self._known = claims, known
        heard = {voice: epoch for voice, epoch in claims.items() if not self._doubted.avoids(voice, now)}
        return believed_epoch(heard, known, believes_strangers=self._acquaintances.believe_strangers)

    @property
    def num_witnesses(self) -> int:
        """How many others that this peer has averaged with claim to have reached the swarm's epoch."""
        return sum(epoch >= self.global_epoch for voice, epoch in self._voices.items() if voice in self._known)

    def doubt(self) -> None:
        """Ignore for a while those who claim a later epoch than this peer's: there is no such state to be had."""
        now, ahead = get_dht_time(), self.local_progress.epoch + 1
        for voice, epoch in self._voices.items():
            if epoch > ahead and not self._doubted.avoids(voice, now):
                seconds = self._doubted.avoid(voice, now)
                logger.warning(
                    "A peer claims epoch %d, but nobody has such a state; it is ignored for %.0f s.", epoch, seconds
                )
        with self.lock_global_progress:
            self.global_progress = self._parse_swarm_progress_data(self._metadata)

    def _only_counted(self, metadata: dict[bytes, Any]) -> dict[bytes, Any]:
        """Drop the records of peers that are not admitted, ahead of the swarm, or never seen in a round."""
        values = {owner: entry.value for owner, entry in metadata.items() if entry.value is not None}
        records = {owner: LocalTrainingProgress.parse_obj(value) for owner, value in values.items()}
        counted = self._admissions.counted(records)
        peers = {owner: readable_peer_id(record.peer_id) for owner, record in counted.items()}
        self._acquaintances.note_claims(set(peers.values()))
        limit = max(self.believed_epoch(counted), self.local_progress.epoch)
        return {
            owner: metadata[owner]
            for owner in newest_of_each_peer(counted)
            if counted[owner].epoch <= limit and self._acquaintances.count(peers[owner])
        }
