"""Matchmaking: without flooding the DHT with requests, and without the DHT where a round is retried.

While looking for a group, hivemind 1.1.12 asks the DHT who else is looking as soon as the last answer arrives: hundreds
of calls per second where answers take milliseconds. And it looks as long for the second group of a round as for the
first, including the very peer that delayed the first one, in a DHT of which that peer is a node: every request and
every declaration waits for it. In four of four rounds with a slow member the three others met in pairs or alone.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.group.kept_tasks import kept_from_garbage

FIRST_STALL_SECONDS, LONGEST_STALL_SECONDS = 5.0, 3600.0
"""A leader whose group has never begun is not followed for this long, twice as long each time."""

SECONDS_BETWEEN_SIGNS = 0.001


LOOKS_PER_MATCHMAKING = 10
LONGEST_PAUSE_SECONDS = 0.5

MOST_STRANGERS, MOST_KNOWN = 8, 256

RETRY_SHARE = 0.5
"""Share of the matchmaking time that the leader of a retried group waits for the others. They were together just now,
so there are no latecomers to wait for."""

SPREAD_SHARE = 0.25
"""Members finish a round that lacks answers one after the other, as their links allow, and on busy machines abort one a
second apart: the leader of its retry waits longer by at least this share of what the round took it. A group that is
complete begins at once."""

FOLLOWERS_PATIENCE = 2.0
"""A follower looks this many times as long: the leader may abort the round later, and must end its search earlier."""

SECONDS_TO_ASK = 0.2
"""Seconds for which a named leader is asked. After that it is named again: it may be looking by then."""


def retry_seconds(matchmaking_seconds: float, apart_seconds: float = 0.0) -> float:
    """Return how long a leader searches after a round whose members' ends of it may be so far apart."""
    return RETRY_SHARE * matchmaking_seconds + apart_seconds


class GroupSearch:
    """Controls an averager's matchmaking, in its process: for how long, how often it polls, and whom it avoids."""

    def __init__(
        self,
        matchmaking: Matchmaking,
        rounds_begin_together: bool = True,
        on_stall: Callable[[PeerID], None] = lambda leader: None,
        is_kept_out: Callable[[PeerID], bool] = lambda peer: False,
        may_sign: Callable[[PeerID, bytes], bool] = lambda peer, owner: True,
    ) -> None:
        """`matchmaking` is the averager's own, whose next searches are changed; `on_stall` hears of leaders that stall.

        Peers that are `is_kept_out` are neither followed nor accepted; what an owner of records says counts for peers
        for which it `may_sign`.

        Members that do not start a round together, because each averages in the background of its own next epoch, do
        not abort it together either: then nobody is late, and they look for each other in the DHT.
        """
        self._matchmaking, self._seconds = matchmaking, matchmaking.min_matchmaking_time
        self._rounds_begin_together = rounds_begin_together
        self._group_size = matchmaking.target_group_size
        pause_seconds = min(LONGEST_PAUSE_SECONDS, self._seconds / LOOKS_PER_MATCHMAKING)
        self._stalled, self._on_stall = Blocklist(FIRST_STALL_SECONDS, LONGEST_STALL_SECONDS), on_stall
        self.leader: PeerID | None = None
        """Leader of the group that has just begun, which has put it together; None: this peer, or no group yet."""

        self._key_manager = PacedKeyManager(
            matchmaking.group_key_manager, pause_seconds, self._may_be_followed, may_sign
        )
        matchmaking.group_key_manager = self._key_manager
        self._is_kept_out, self._num_requests = is_kept_out, 0
        self._request_join_group = matchmaking._request_join_group
        matchmaking._request_join_group = self._follow
        self._look_for_group = matchmaking.look_for_group
        matchmaking.look_for_group = self._look
        self._silent: frozenset[PeerID] = frozenset()
        self._late: frozenset[PeerID] = frozenset()
        self._members: tuple[PeerID, ...] = ()
        self._followers: frozenset[PeerID] = frozenset()
        self._listeners: frozenset[PeerID] = frozenset()
        self._retry_seconds = retry_seconds(self._seconds)

    @property
    def avoided(self) -> Collection[PeerID]:
        """Peers that this one avoids in the group of an aborted round."""
        return self._key_manager.avoided

    @property
    def seconds_to_meet(self) -> float:
        """How long the members of an aborted round look for each other, and then in the DHT."""
        return self._retry_seconds + self._seconds

    def accepts(self, follower: PeerID) -> bool:
        """Return whether a peer may join a group of this one."""
        return not (follower in self.avoided or self._is_kept_out(follower))

    def remember(self, members: Collection[PeerID]) -> None:
        """Note who has just averaged with this peer: from now on no number of strangers keeps it from them."""
        known = self._key_manager.known
        for member in members:
            known.pop(member, None)
            known[member] = None
        for oldest in list(known)[:-MOST_KNOWN]:
            del known[oldest]

    def average_epoch(self, epoch: int | None) -> None:
        """Make the next searches for a round of this epoch's values; see `PacedKeyManager.epoch`."""
        self._key_manager.epoch = epoch

    def begin(self) -> None:
        """Reset: the next search is the first one for a round, or a group has been found."""
        self._silent = self._late = self._followers = self._listeners = frozenset()
        self._members, self.leader = (), None
        self._key_manager.avoid(())
        self._key_manager.meet_again((), 0.0)
        self._set_search(self._seconds, self._group_size)

    def end(self) -> None:
        """Let go of what waits for a search that is over; there is no other.

        hivemind 1.1.12 leaves a task for each follower that has joined, which ends when this peer follows somebody: for
        a peer whose followers are all clients, never.
        """
        if not self._matchmaking.is_looking_for_group:
            self._matchmaking.was_accepted_to_group.set()
            self._matchmaking.was_accepted_to_group.clear()

    def meet_again(
        self,
        members: Sequence[PeerID],
        followers: Collection[PeerID] = (),
        listeners: Collection[PeerID] = (),
        late: Collection[PeerID] = (),
        apart_seconds: float = 0.0,
    ) -> None:
        """Make the next search among the members of an aborted round, without asking the DHT.

        `apart_seconds` is by how much its members' ends of it may differ; see `retry_seconds`.

        Excluded are those the round waited for (`late`) and those who were silent; see `watch`. The first of the others
        in the group's order, which all know, leads, except `followers`, who never do; a peer that finds no leader in
        time looks in the DHT again. `listeners` send nothing: they neither make a majority, nor exclude anybody.
        """
        self._members, self._followers, self._late = tuple(members), frozenset(followers), frozenset(late)
        self._listeners = frozenset(listeners)
        self._retry_seconds = retry_seconds(self._seconds, apart_seconds)
        self._update()

    async def watch(self, members: Collection[PeerID], ask: Callable[[PeerID], Awaitable[object]]) -> None:
        """Until cancelled, ask the other members of a late round whether they are alive; record who does not answer.

        They are avoided in the next search, unless it is most of them: then this peer is the one that is cut off or
        slow. Meanwhile it queries the DHT, whose first query after a peer has left takes long: afterwards nodes know
        whom not to wait for.
        """
        members = set(members) - {self._matchmaking.peer_id}
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

    async def _look(self, step: StepControl) -> GroupInfo | None:
        """See `Matchmaking.look_for_group`. A search that is given up goes on until the DHT has heard of it."""
        with kept_from_garbage():
            return await self._look_for_group(step)

    async def _follow(self, leader: PeerID) -> GroupInfo | None:
        """Ask a leader to join its group, and remember whether that has begun."""
        if self._is_kept_out(leader):
            return None  # another leader has sent this peer there
        matchmaking, was_accepted = self._matchmaking, self._matchmaking.was_accepted_to_group
        deadline = matchmaking.get_request_expiration_time() + matchmaking.request_timeout / 2
        accepted = asyncio.create_task(was_accepted.wait())
        self._num_requests += 1
        number = self._num_requests
        try:
            group = await self._request_join_group(leader)
        finally:
            is_accepted = accepted.done()
            accepted.cancel()
        if self._num_requests != number:
            return group  # it sent this peer on to another leader, whom it asked then
        if group is not None:
            self.leader = leader
            self._stalled.forgive(leader)
        elif is_accepted and get_dht_time() > deadline:
            self._stalled.avoid(leader, time.monotonic())
            self._on_stall(leader)
        return group

    def _may_be_followed(self, leader: PeerID) -> bool:
        return not (self._stalled.avoids(leader, time.monotonic()) or self._is_kept_out(leader))

    def _update(self) -> None:
        """Apply what is known about the members, if the round was aborted."""
        if not self._members:
            return
        own = self._matchmaking.peer_id
        others = frozenset(self._members) - self._listeners - {own}
        suspects = self._silent | self._late if self._rounds_begin_together else self._silent
        suspects &= others
        is_minority = 2 * len(suspects) <= len(others) and own not in self._listeners
        avoided = suspects if is_minority else frozenset()
        self._key_manager.avoid(avoided)
        if not self._rounds_begin_together:
            self._set_search(self._retry_seconds, self._group_size)
            return
        group = [member for member in self._members if member not in avoided and not self._is_kept_out(member)]
        leaders = [member for member in group if member not in self._followers]
        above = leaders[: leaders.index(own)] if own in leaders else leaders
        seconds = self._retry_seconds
        self._key_manager.meet_again(above, FOLLOWERS_PATIENCE * seconds)
        self._set_search(FOLLOWERS_PATIENCE * seconds if above else seconds, len(group))

    def _set_search(self, seconds: float, group_size: int | None) -> None:
        matchmaking = self._matchmaking
        matchmaking.min_matchmaking_time = matchmaking.potential_leaders.min_matchmaking_time = seconds
        matchmaking.target_group_size = group_size


class PacedKeyManager(GroupKeyManager):
    """Tells who is looking for a group, except peers to avoid, and pauses between two DHT queries."""

    def __init__(
        self,
        former: GroupKeyManager,
        pause_seconds: float,
        may_be_followed: Callable[[PeerID], bool] = lambda leader: True,
        may_sign: Callable[[PeerID, bytes], bool] = lambda peer, owner: True,
    ) -> None:
        self._may_be_followed, self._may_sign = may_be_followed, may_sign
        self._owner = RSASignatureValidator().local_public_key
        self.known: dict[PeerID, None] = {}
        """Peers that have averaged with this one, the newest last."""

        super().__init__(former.dht, former.prefix, former.group_bits, former.target_group_size)
        self.avoided: frozenset[PeerID] = frozenset()
        self.epoch: int | None = None
        """Only peers with the same epoch come into one group; None, the default, counts as an epoch too."""
        self._pause_seconds, self._next_look = pause_seconds, 0.0
        self._leaders: tuple[PeerID, ...] = ()
        self._meets_until = 0.0
        self._declarations: set[asyncio.Future] = set()

    @property
    def current_key(self) -> str:
        """See `GroupKeyManager`: a leader refuses peers whose key is another."""
        return super().current_key if self.epoch is None else f"{self.prefix}_{self.epoch}.0b{self.group_bits}"

    @property
    def _declared_key(self) -> str:
        """Where all declare, whatever their epoch, in signed records of which each owner has one."""
        return f"{self.prefix}_searches"

    def avoid(self, peers: Collection[PeerID]) -> None:
        """Exclude exactly these peers from the next query on, which happens without delay."""
        self.avoided, self._next_look = frozenset(peers), 0.0

    def meet_again(self, leaders: Sequence[PeerID], seconds: float) -> None:
        """Return only these peers for some seconds, in this order; 0 ends it."""
        self._leaders, self._meets_until = tuple(leaders), time.monotonic() + seconds

    async def get_averagers(self, group_key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        """See `GroupKeyManager.get_averagers`."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._next_look - now()))
        if self._meets:
            self._next_look = now() + min(self._pause_seconds, SECONDS_TO_ASK / 2)
            until = get_dht_time() + SECONDS_TO_ASK
            # Slightly apart, because the earliest is asked first.
            return [(leader, until + 1e-3 * number) for number, leader in enumerate(self._leaders)]
        try:
            found = await self.dht.get(self._declared_key, latest=True, return_future=True)
        finally:
            self._next_look = now() + self._pause_seconds
        searches = found.value if found is not None and isinstance(found.value, dict) else {}
        looking: dict[PeerID, float] = {}
        for owner, (search, expiration) in searches.items():
            peer = PeerID(search["peer_id"])
            if (search["is_looking"] or not only_active) and self._may_sign(peer, owner) and self._may_be_asked(peer):
                looking[peer] = max(expiration, looking.get(peer, 0.0))
        return chosen(looking, self.known)

    async def declare_averager(
        self, group_key: str, peer_id: PeerID, expiration_time: float, looking_for_group: bool = True
    ) -> bool:
        """See `GroupKeyManager.declare_averager`. A retried group does not wait for the DHT."""
        declaration = self.dht.store(
            self._declared_key,
            dict(peer_id=peer_id.to_bytes(), is_looking=looking_for_group),
            expiration_time if looking_for_group else math.nextafter(expiration_time, math.inf),
            subkey=self._owner,
            return_future=True,
        )
        if not self._meets:
            return bool(await declaration)
        self._declarations.add(declaration)
        declaration.add_done_callback(self._forget_declaration)
        return True

    def _may_be_asked(self, peer: PeerID) -> bool:
        return peer not in self.avoided and self._may_be_followed(peer)

    @property
    def _meets(self) -> bool:
        return time.monotonic() < self._meets_until

    def _forget_declaration(self, declaration: asyncio.Future) -> None:
        self._declarations.discard(declaration)
        if not declaration.cancelled():
            declaration.exception()  # nobody else looks at it


def chosen(looking: Mapping[PeerID, float], known: Collection[PeerID]) -> list[tuple[PeerID, float]]:
    """Return whom to ask, and until when it looks: everybody, or, of a crowd, first those that are known.

    Keys are free, so of many strangers a few are asked, drawn anew at each look, and only if nobody who is known looks.
    """
    strangers = [peer for peer in looking if peer not in known]
    if len(strangers) > MOST_STRANGERS:
        strangers = [] if len(strangers) < len(looking) else random.sample(strangers, MOST_STRANGERS)
    return [(peer, until) for peer, until in looking.items() if peer in known or peer in strangers]


async def until_cancelled(control: StepControl) -> None:
    """Wait, in the averager's process, until a step is cancelled.

    The message arrives before the step's own flag is set; hivemind checks that once, and if that is too early, keeps
    looking for a group: the peer is in a round that it has left, and its next search waits for this one.
    """
    await control._cancel
    while not control.done():
        await asyncio.sleep(SECONDS_BETWEEN_SIGNS)
