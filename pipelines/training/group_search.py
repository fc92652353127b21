"""Looking for a group: without drowning the DHT in questions, and sooner over where a round is tried again.

hivemind 1.1.12 asks the DHT who else is looking as soon as the last answer is there, for as long as it looks: hundreds
of calls per second where answers take milliseconds. And it looks as long for the second group of a round as for the
first, with the very peer that has kept the first one waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID

LOOKS_PER_MATCHMAKING = 10
LONGEST_PAUSE_SECONDS = 0.5

RETRY_SHARE = 0.5
"""Of the matchmaking time: how long members of a group that was given up look for another one. They need not wait for
peers that come late, having been together just now."""


def retry_seconds(matchmaking_seconds: float) -> float:
    """Return how long a search lasts that follows a round that was given up."""
    return RETRY_SHARE * matchmaking_seconds


class GroupSearch:
    """How an averager's searches go, in its process: for how long, how often it looks, and with whom it does not go."""

    def __init__(self, matchmaking: Matchmaking) -> None:
        """`matchmaking` is the averager's, whose next searches are changed."""
        self._matchmaking, self._seconds = matchmaking, matchmaking.min_matchmaking_time
        pause_seconds = min(LONGEST_PAUSE_SECONDS, self._seconds / LOOKS_PER_MATCHMAKING)
        self._key_manager = PacedKeyManager(matchmaking.group_key_manager, pause_seconds)
        matchmaking.group_key_manager = self._key_manager

    @property
    def avoided(self) -> Collection[PeerID]:
        """Peers in whose group this one does not want to be now."""
        return self._key_manager.avoided

    def begin(self) -> None:
        """The next search is the first one for a round."""
        self._set_seconds(self._seconds)
        self._key_manager.avoid(())

    def repeat(self) -> None:
        """The next search, if there is one, is for a round that is tried again."""
        self._set_seconds(retry_seconds(self._seconds))

    async def watch(self, members: Collection[PeerID], ask: Callable[[PeerID], Awaitable[Any]]) -> None:
        """Ask the members of a round that is late whether they are there; avoid who does not answer until cancelled.

        If most do not, it is this peer who is cut off, and nobody is avoided. Meanwhile it looks into the DHT, whose
        first look after a peer has gone takes long: nodes know then whom not to wait for when the search begins.
        """
        silent = set(members)

        async def ask_one(member: PeerID) -> None:
            await ask(member)
            silent.discard(member)

        look = self._key_manager.get_averagers(self._key_manager.current_key, only_active=True)
        try:
            await asyncio.gather(look, *map(ask_one, members), return_exceptions=True)
        finally:
            self._key_manager.avoid(silent if 2 * len(silent) <= len(members) else ())

    def _set_seconds(self, seconds: float) -> None:
        matchmaking = self._matchmaking
        matchmaking.min_matchmaking_time = matchmaking.potential_leaders.min_matchmaking_time = seconds


class PacedKeyManager(GroupKeyManager):
    """Tells who looks for a group, but for those to be avoided, and pauses between two looks into the DHT."""

    def __init__(self, former: GroupKeyManager, pause_seconds: float) -> None:
        super().__init__(former.dht, former.prefix, former.group_bits, former.target_group_size)
        self.avoided: frozenset[PeerID] = frozenset()
        self._pause_seconds, self._next_look = pause_seconds, 0.0

    def avoid(self, peers: Collection[PeerID]) -> None:
        """Leave out these peers, and no others, from the next look on, which need not be waited for."""
        self.avoided, self._next_look = frozenset(peers), 0.0

    async def get_averagers(self, *args: Any, **kwargs: Any) -> list[tuple[PeerID, float]]:
        """See `GroupKeyManager.get_averagers`."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._next_look - now()))
        try:
            found = await super().get_averagers(*args, **kwargs)
        finally:
            self._next_look = now() + self._pause_seconds
        return [(peer, expiration) for peer, expiration in found if peer not in self.avoided]
