"""Looking for a group: without drowning the DHT in questions, and without it where a round is tried again.

hivemind 1.1.12 asks the DHT who else is looking as soon as the last answer is there, for as long as it looks: hundreds
of calls per second where answers take milliseconds. And it looks as long for the second group of a round as for the
first, with the very peer that has kept the first one waiting, in a DHT whose node that peer is: every look and every
declaration waits for it. In four of four rounds with a slow member the three others met in pairs or alone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from hivemind.averaging.control import StepControl
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

SECONDS_BETWEEN_SIGNS = 0.001


LOOKS_PER_MATCHMAKING = 10
LONGEST_PAUSE_SECONDS = 0.5

RETRY_SHARE = 0.5
"""Of the matchmaking time: how long the leader of a group that meets again waits for the others. They need not wait for
peers that come late, having been together just now."""

FOLLOWERS_PATIENCE = 2.0
"""A follower looks this many times as long: the leader may give the round up later, and must end its search earlier."""

SECONDS_TO_ASK = 0.2
"""For how long a leader that has been named is to be asked. After that it is named again: it may be looking now."""


def retry_seconds(matchmaking_seconds: float) -> float:
    """Return how long the search of a leader lasts that follows a round that was given up."""
    return RETRY_SHARE * matchmaking_seconds


class GroupSearch:
    """How an averager's searches go, in its process: for how long, how often it looks, and with whom it does not go."""

    def __init__(self, matchmaking: Matchmaking, rounds_begin_together: bool = True) -> None:
        """`matchmaking` is the averager's, whose next searches are changed.

        Members of a round that do not begin it together, because each averages behind its own next epoch, do not give
        it up together either: then nobody is late for the others, and they look for each other in the DHT.
        """
        self._matchmaking, self._seconds = matchmaking, matchmaking.min_matchmaking_time
        self._rounds_begin_together = rounds_begin_together
        self._group_size = matchmaking.target_group_size
        pause_seconds = min(LONGEST_PAUSE_SECONDS, self._seconds / LOOKS_PER_MATCHMAKING)
        self._key_manager = PacedKeyManager(matchmaking.group_key_manager, pause_seconds)
        matchmaking.group_key_manager = self._key_manager
        self._silent: frozenset[PeerID] = frozenset()
        self._late: frozenset[PeerID] = frozenset()
        self._members: tuple[PeerID, ...] = ()
        self._clients: frozenset[PeerID] = frozenset()

    @property
    def avoided(self) -> Collection[PeerID]:
        """Peers in whose group this one does not want to be now."""
        return self._key_manager.avoided

    def average_epoch(self, epoch: int | None) -> None:
        """The next searches are for a round of this epoch's values; see `PacedKeyManager.epoch`."""
        self._key_manager.epoch = epoch

    def begin(self) -> None:
        """The next search is the first one for a round, or a group has been found."""
        self._silent = self._late = self._clients = frozenset()
        self._members = ()
        self._key_manager.avoid(())
        self._key_manager.meet_again((), 0.0)
        self._set_search(self._seconds, self._group_size)

    def meet_again(
        self, members: Sequence[PeerID], clients: Collection[PeerID] = (), late: Collection[PeerID] = ()
    ) -> None:
        """Let the next search be among the members of a round that was given up, without asking the DHT.

        Not with those for whom the round has waited (`late`), nor with those who were silent; see `watch`. The first of
        the others in the group's order, which all know, leads; whoever finds no leader in time looks in the DHT again.
        """
        self._members, self._clients, self._late = tuple(members), frozenset(clients), frozenset(late)
        self._update()

    async def watch(self, members: Collection[PeerID], ask: Callable[[PeerID], Awaitable[object]]) -> None:
        """Ask the other members of a round that is late whether they are there; note who does not until cancelled.

        They are avoided in the next search, unless it is most of them: then it is this peer who is cut off or slow.
        Meanwhile it looks into the DHT, whose first look after a peer has gone takes long: nodes know then whom not to
        wait for.
        """
        silent = set(members)

        async def ask_one(member: PeerID) -> None:
            await ask(member)
            silent.discard(member)

        look = self._key_manager.get_averagers(self._key_manager.current_key, only_active=True)
        try:
            await asyncio.gather(look, *map(ask_one, members), return_exceptions=True)
        finally:
            self._silent = frozenset(silent)
            self._update()

    def _update(self) -> None:
        """Apply what is known of the members, if the round was given up."""
        if not self._members:
            return
        own = self._matchmaking.peer_id
        num_others = len(self._members) - (own in self._members)
        suspects = self._silent | self._late if self._rounds_begin_together else self._silent
        suspects &= frozenset(self._members) - {own}
        avoided = suspects if 2 * len(suspects) <= num_others else frozenset()
        self._key_manager.avoid(avoided)
        if not self._rounds_begin_together:
            self._set_search(retry_seconds(self._seconds), self._group_size)
            return
        group = [member for member in self._members if member not in avoided]
        leaders = [member for member in group if member not in self._clients]
        above = leaders[: leaders.index(own)] if own in leaders else leaders
        seconds = retry_seconds(self._seconds)
        self._key_manager.meet_again(above, FOLLOWERS_PATIENCE * seconds)
        self._set_search(FOLLOWERS_PATIENCE * seconds if above else seconds, len(group))

    def _set_search(self, seconds: float, group_size: int | None) -> None:
        matchmaking = self._matchmaking
        matchmaking.min_matchmaking_time = matchmaking.potential_leaders.min_matchmaking_time = seconds
        matchmaking.target_group_size = group_size


class PacedKeyManager(GroupKeyManager):
    """Tells who looks for a group, but for those to be avoided, and pauses between two looks into the DHT."""

    def __init__(self, former: GroupKeyManager, pause_seconds: float) -> None:
        super().__init__(former.dht, former.prefix, former.group_bits, former.target_group_size)
        self.avoided: frozenset[PeerID] = frozenset()
        self.epoch: int | None = None
        """Only those meet who say the same of the values that they average; None is said by all others."""
        self._pause_seconds, self._next_look = pause_seconds, 0.0
        self._leaders: tuple[PeerID, ...] = ()
        self._meets_until = 0.0
        self._declarations: set[asyncio.Future] = set()

    @property
    def current_key(self) -> str:
        """See `GroupKeyManager`: a leader refuses those who look under another key."""
        return super().current_key if self.epoch is None else f"{self.prefix}_{self.epoch}.0b{self.group_bits}"

    def avoid(self, peers: Collection[PeerID]) -> None:
        """Leave out these peers, and no others, from the next look on, which need not be waited for."""
        self.avoided, self._next_look = frozenset(peers), 0.0

    def meet_again(self, leaders: Sequence[PeerID], seconds: float) -> None:
        """Name only these for some seconds, in this order; 0 ends it."""
        self._leaders, self._meets_until = tuple(leaders), time.monotonic() + seconds

    async def get_averagers(self, *args: Any, **kwargs: Any) -> list[tuple[PeerID, float]]:
        """See `GroupKeyManager.get_averagers`."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._next_look - now()))
        if self._meets:
            self._next_look = now() + min(self._pause_seconds, SECONDS_TO_ASK / 2)
            until = get_dht_time() + SECONDS_TO_ASK
            # A moment apart, because the earliest is asked first.
            return [(leader, until + 1e-3 * number) for number, leader in enumerate(self._leaders)]
        try:
            found = await super().get_averagers(*args, **kwargs)
        finally:
            self._next_look = now() + self._pause_seconds
        return [(peer, expiration) for peer, expiration in found if peer not in self.avoided]

    async def declare_averager(self, *args: Any, **kwargs: Any) -> bool:
        """See `GroupKeyManager.declare_averager`. A group that meets again does not wait until the DHT knows."""
        declaration = asyncio.ensure_future(super().declare_averager(*args, **kwargs))
        if not self._meets:
            return await declaration
        self._declarations.add(declaration)
        declaration.add_done_callback(self._forget_declaration)
        return True

    @property
    def _meets(self) -> bool:
        return time.monotonic() < self._meets_until

    def _forget_declaration(self, declaration: asyncio.Future) -> None:
        self._declarations.discard(declaration)
        if not declaration.cancelled():
            declaration.exception()  # nobody else looks at it


async def until_cancelled(control: StepControl) -> None:
    """Wait, in the averager's process, until a step is cancelled.

    The message that it is comes before the step says so; hivemind looks once, and if it is too early, it looks for a
    group on and on: the peer is in a round that it has left, and its next search waits for this one.
    """
    await control._cancel
    while not control.done():
        await asyncio.sleep(SECONDS_BETWEEN_SIGNS)
