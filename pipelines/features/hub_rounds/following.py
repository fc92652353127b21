"""How an auxiliary peer keeps up with a run whose only wire is the Hub: it closes the rounds, see `closer`."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import StatementRefusedError, read_statement, signed_text
from pipelines.core.swarm.peer_records import AuxiliaryStatus, PeerMetrics, Reporter
from pipelines.features.hub_rounds.closer import RoundCloser
from pipelines.features.hub_rounds.files import HubAwayError, RoundFiles
from pipelines.features.hub_rounds.reading import IncompleteError, OtherStateError, RoundReader
from pipelines.features.hub_rounds.statements import Pointer, fingerprint
from pipelines.features.hub_rounds.stepping import ClosedRound, FalseListError, ReplayedState
from pipelines.features.publishing.auxiliary.side_threads import RoundThread
from pipelines.features.publishing.metrics.credit.claims import RoundLog

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_ANNOUNCEMENTS = 30.0
SECONDS_ALIVE = 180.0
"""An auxiliary peer that has not announced itself for so long is away."""

SECONDS_BETWEEN_WORDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Presence:
    """What an auxiliary peer says of itself in the run's bucket."""

    PURPOSE: ClassVar[str] = "presence"
    MOST_BYTES: ClassVar[int] = 4096

    swarm_id: str
    held_epoch: int
    published_epoch: int
    proof: str
    time: float
    """By the Hub's clock, in seconds since 1970."""

    key: str


class HubFollowing:
    """See `Following`: states come from the lists of rounds, which it closes itself when it is its turn."""

    addresses: tuple[str, ...] = ()

    def __init__(
        self,
        closer: RoundCloser,
        reader: RoundReader,
        key: PublisherKey,
        fetch_checkpoint: Callable[[], Path | None],
    ) -> None:
        self._closer, self._reader, self._key, self._files = closer, reader, key, reader.files
        self._replayed: ReplayedState = closer.state
        self._run: TrainingRun = closer.run
        self._fetch_checkpoint = fetch_checkpoint
        self.model, self.state, self.rounds = self._replayed.model, self._replayed.training, RoundLog()
        self.owner = key.public.encode()
        self._recent: deque[ClosedRound] = deque(maxlen=4)
        self._announced_at = self._heard_at = self._said_at = float("-inf")
        self._others: dict[bytes, AuxiliaryStatus] = {}
        self._lifetime = SECONDS_ALIVE
        closer.on_closed = self._note
        self._thread = RoundThread(self._keep_up)
        self.paused = self._thread.paused

    def begin(self) -> None:
        """See `Following`: go on from the state as it is, after the rounds that were closed since."""
        self._replayed.refresh()

    @contextlib.contextmanager
    def keeping_up(self) -> Iterator[None]:
        """See `Following`."""
        with self._thread:
            yield

    def figures(self) -> tuple[Mapping[bytes, PeerMetrics], Mapping[bytes, Reporter]]:
        """See `Following`: a volunteer's figures are those of his newest contribution that counted."""
        figures, reporters = {}, {}
        for closed in self._living():
            for pointer in closed.pointers:
                figures[pointer.user.encode()] = figures_of(pointer)
                reporters[pointer.user.encode()] = Reporter(
                    user=pointer.user, sender=pointer.user, device=pointer.device[:64]
                )
        return figures, reporters

    def trainer_epochs(self) -> Sequence[int]:
        """See `Following`."""
        return [figures.epoch for figures in self.figures()[0].values()]

    def others(self) -> Mapping[bytes, AuxiliaryStatus]:
        """See `Following`."""
        if time.monotonic() >= self._heard_at + SECONDS_BETWEEN_ANNOUNCEMENTS:
            self._heard_at = time.monotonic()
            keys = [key for key in self._reader.publishers() if key != self._key.public]
            with self._hub_may_be_away():
                self._others = {key.encode(): status for key in keys if (status := self._presence(key)) is not None}
        return self._others

    def announce(self, status: AuxiliaryStatus, lifetime_seconds: float) -> None:
        """See `Following`."""
        self._lifetime = lifetime_seconds
        if time.monotonic() < self._announced_at + min(SECONDS_BETWEEN_ANNOUNCEMENTS, lifetime_seconds / 3):
            return
        self._announced_at = time.monotonic()
        presence = Presence(
            swarm_id=self._run.swarm_id,
            held_epoch=status.held_epoch,
            published_epoch=status.published_epoch,
            proof=status.publisher_proof,
            time=self._files.clock(),
            key=self._key.public,
        )
        path = self._files.presence_path(fingerprint(self._key.public))
        with self._hub_may_be_away():
            self._files.put(self._files.run_bucket, {path: signed_text(presence, self._key)})

    def close(self) -> None:
        """See `Following`."""
        self._replayed.close()

    def _presence(self, key: str) -> AuxiliaryStatus | None:
        presence = presence_of(self._files, self._run, key)
        if presence is None or presence.time < self._files.clock() - self._lifetime:
            return None
        return AuxiliaryStatus(
            held_epoch=presence.held_epoch,
            published_epoch=presence.published_epoch,
            addresses=[],
            publisher_key=key,
            publisher_proof=presence.proof,
        )

    def _keep_up(self) -> None:
        if self._replayed.epoch >= self._run.num_epochs:
            return
        try:
            if self._closer.is_open:
                self._closer.keep_up()
            elif self._closer.place() is not None:
                self._closer.open()
        except (HubAwayError, IncompleteError) as error:
            self._say("The rounds wait for the Hub: %s", error)
        except (FalseListError, OtherStateError) as error:
            logger.warning("This peer takes the newest checkpoint: %s.", error)
            self._closer.restore(self._fetch_checkpoint())
        except OSError as error:  # the bucket is full, private or gone: what is due is done once it is mended
            self._say("The round cannot be closed: %s", error)

    def _note(self, closed: ClosedRound) -> None:
        self._recent.append(closed)
        self.rounds.note(closed.closed.round, [pointer.user for pointer in closed.pointers])

    def _living(self) -> list[ClosedRound]:
        since = self._files.clock() - self._run.sign_of_life_seconds / 2
        return [closed for closed in list(self._recent) if closed.closed.closed_at >= since]

    @contextlib.contextmanager
    def _hub_may_be_away(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._say("The Hub does not answer: %s", error)

    def _say(self, words: str, error: Exception) -> None:
        is_due = time.monotonic() >= self._said_at + SECONDS_BETWEEN_WORDS
        logger.log(logging.WARNING if is_due else logging.DEBUG, words, error)
        if is_due:
            self._said_at = time.monotonic()


def figures_of(pointer: Pointer) -> PeerMetrics:
    """Return a volunteer's figures, of a contribution that has counted; `num_samples` are all that he has sent."""
    return PeerMetrics(
        username=pointer.user[:96],
        epoch=pointer.round,
        loss=max(0.0, min(pointer.loss, 1e15)),
        num_samples=pointer.total_samples,
        samples_per_second=max(0.0, min(pointer.samples_per_second, 1e15)),
        share_averaged=1.0,
        bytes_sent=pointer.size,
        num_rounds=1,
        round_seconds=0.0,
        num_refused_gradients=0,
        client_mode=True,
        package_version=pointer.package_version[:32],
    )


def presence_of(files: RoundFiles, run: TrainingRun, key: str) -> Presence | None:
    """Return what a publisher says of itself; None: nothing that counts. Raises what `RoundFiles.take` raises."""
    found = files.take(files.run_bucket, files.presence_path(fingerprint(key)), Presence.MOST_BYTES)
    try:
        presence = None if found is None else read_statement(Presence, found.content)
    except StatementRefusedError as error:
        logger.info("%s", error)
        return None
    return presence if presence is not None and (presence.key, presence.swarm_id) == (key, run.swarm_id) else None
