"""Whom an anchor keeps averaging with, as its statements say; see `core.state.anchors`."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from pipelines.core.swarm.peer_records import MOST_IN_ROSTER
from pipelines.core.swarm.records import sender_name

EPOCHS_TO_ENTER = 3
"""Rounds with an anchor after which a peer can be in its roster."""

NEW_IN_AN_EPOCH = 4
"""Peers that enter the roster in one epoch, once it names anybody: many new keys at once are not believed."""

EPOCHS_REMEMBERED = 8
"""Rounds after which a peer that was in none of them leaves the roster."""


@dataclass(frozen=True, kw_only=True)
class _Attendance:
    num_rounds: int
    last: int


class Roster:
    """Whom an anchor averages with: users, or peers in an open run, enter slowly and leave after missed rounds."""

    def __init__(self) -> None:
        self._seen: dict[str, _Attendance] = {}
        self._num_rounds = 0
        self.names: tuple[str, ...] = ()
        """Names of the peers in the roster; see `sender_name`."""

    def note_round(self, senders: Collection[str]) -> None:
        """Record whose values, by libp2p id, were in a round's average."""
        self._num_rounds += 1
        for name in map(sender_name, senders):
            before = self._seen.get(name, _Attendance(num_rounds=0, last=0))
            self._seen[name] = replace(before, num_rounds=before.num_rounds + 1, last=self._num_rounds)
        oldest = self._num_rounds - EPOCHS_REMEMBERED
        self._seen = {name: held for name, held in self._seen.items() if held.last > oldest}
        kept = [name for name in self.names if name in self._seen]
        proven = {name: held for name, held in self._seen.items() if held.num_rounds >= EPOCHS_TO_ENTER}
        waiting = sorted(proven.keys() - set(kept), key=lambda name: (-proven[name].num_rounds, name))
        # The first ones enter together: there is nobody yet whom they could outnumber.
        self.names = (*kept, *waiting[: NEW_IN_AN_EPOCH if kept else None])[:MOST_IN_ROSTER]
