"""What the signed lists of a run over the Hub say of its peers, as `swarm_watch` tells it of a swarm."""

import hashlib
import time
from collections.abc import Iterator

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.hub_rounds.following import SECONDS_ALIVE, figures_of, presence_of
from pipelines.features.hub_rounds.reading import RoundReader
from pipelines.features.hub_rounds.statements import Pointer, RoundList, fingerprint
from pipelines.features.publishing.repository.key_list import PUBLISHER
from pipelines.features.publishing.repository.snapshot import RunSnapshot

ROUNDS_TO_LOOK_BACK = 3
"""Members of older rounds alone are away, see `TrainingRun.sign_of_life_seconds`."""

SECONDS_BETWEEN_KEYS, SECONDS_WITHOUT_KEYS = 60.0, 5.0
SECONDS_BETWEEN_PRESENCES = 15.0


class NewestKeys:
    """The keys of those who may close rounds, read again once in a while."""

    def __init__(self, repository: str, files: RoundFiles) -> None:
        self._repository, self._files = repository, files
        self._keys: tuple[str, ...] = ()
        self._read_at = float("-inf")

    def __call__(self) -> tuple[str, ...]:
        """Return them in order. Raises what `RunSnapshot.read` raises."""
        if time.monotonic() >= self._read_at + (SECONDS_BETWEEN_KEYS if self._keys else SECONDS_WITHOUT_KEYS):
            self._read_at = time.monotonic()
            self._keys = RunSnapshot.read(self._repository).keys.holders(PUBLISHER, at=self._files.clock())
        return self._keys


class RoundsWatch:
    """Reads the newest lists of a run, and which auxiliary peers are there. Used by one thread."""

    def __init__(self, reader: RoundReader, run: TrainingRun) -> None:
        self._reader, self._run, self._files = reader, run, reader.files
        self._presences_at = float("-inf")
        self._num_auxiliaries = 0
        self._lists: dict[int, tuple[RoundList, float]] = {}

    def look(self) -> dict[str, object]:
        """Return one snapshot as JSON values; see `swarm_snapshot.SwarmSnapshot.from_values`.

        Raises:
            OSError: the Hub does not answer, or refuses.
            ValueError: as the reader's `publishers`.
        """
        found = [self._reader.newest(key) for key in self._reader.publishers()]
        newest = max(filter(None, found), key=lambda one: one.round, default=None)
        if newest is not None and newest.round not in self._lists:
            before = range(max(1, newest.round - ROUNDS_TO_LOOK_BACK + 1), newest.round)
            older = [self._lists.get(number) or self._list(newest.key, number) for number in before]
            kept = [*filter(None, older), self._dated(newest)]
            self._lists = {one.round: (one, closed_at) for one, closed_at in kept}
        peers = dict(self._peers())
        self._count_auxiliaries()
        return dict(
            time=time.time(),
            peers=[peers[user] for user in sorted(peers)],
            num_auxiliaries=self._num_auxiliaries,
            verdict=None,
        )

    def _peers(self) -> Iterator[tuple[str, dict[str, object]]]:
        for _, (closed, closed_at) in sorted(self._lists.items()):
            if time.time() >= closed_at + self._run.sign_of_life_seconds:
                continue
            for member in closed.members:
                yield member.pointer.user, self._peer(member.pointer, closed_at)

    def _peer(self, pointer: Pointer, closed_at: float) -> dict[str, object]:
        figures = figures_of(pointer)
        introduction = dict(username=pointer.user, device=pointer.device, package_version=pointer.package_version)
        return dict(
            key=hashlib.sha256(pointer.user.encode()).hexdigest()[:16],
            peer_id=fingerprint(pointer.key),
            progress=figures.dict(include={"epoch", "samples_per_second", "client_mode"}),
            valid_until=closed_at + self._run.sign_of_life_seconds,
            metrics=figures.dict(),
            introduction=introduction,
        )

    def _list(self, key: str, number: int) -> tuple[RoundList, float] | None:
        found = self._reader.list_of(key, number)
        return None if found is None else self._dated(found)

    def _dated(self, closed: RoundList) -> tuple[RoundList, float]:
        """Return a list and when it was closed, by this machine's clock."""
        return closed, time.time() + closed.closed_at - self._files.clock()

    def _count_auxiliaries(self) -> None:
        if time.monotonic() >= self._presences_at + SECONDS_BETWEEN_PRESENCES:
            self._presences_at = time.monotonic()
            found = [presence_of(self._files, self._run, key) for key in self._reader.publishers()]
            since = self._files.clock() - SECONDS_ALIVE
            self._num_auxiliaries = sum(one is not None and one.time >= since for one in found)
