"""A DHT node that looks for lost nodes: hivemind's permanently forgets a node that fails to reply once.

After a link failure of seconds both sides have forgotten each other. Neither asks the other again, and the peer stays
alone for ever although its link works again (seen in a swarm of four, whose fourth was cut off for 6.5 seconds).
"""

import asyncio
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.utils import get_logger, timed_storage
from hivemind.utils.multiaddr import Multiaddr

from pipelines.core.swarm.dialling import connect
from pipelines.core.swarm_time import SWARM_TIME

logger = get_logger(__name__)

_MACHINES_TIME = timed_storage.get_dht_time

SECONDS_BETWEEN_LOOKS = 2.0
MOST_ASKED_AT_ONCE = 4
"""Lost nodes that are asked at a time, while there are others."""

SECONDS_TO_REMEMBER = 1800.0
"""How long a lost node is asked; entry peers are asked for ever."""

MOST_REMEMBERED = 256


class KnownNodes:
    """The nodes that a node knows or has known, and which of them it should ping."""

    def __init__(self, entry_peers: Collection[PeerID]) -> None:
        self._entry_peers = frozenset(entry_peers)
        self._last_seen: dict[PeerID, float] = dict.fromkeys(entry_peers, -math.inf)
        self._last_asked: dict[PeerID, float] = {}

    def whom_to_ask(self, present: Collection[PeerID], now: float) -> list[PeerID]:
        """Return lost nodes, the least recently asked first; all of them if no other node is `present` any more.

        `now`: seconds of any clock.
        """
        seen = self._last_seen | dict.fromkeys(present, now)
        newest = sorted(seen, key=seen.__getitem__, reverse=True)[:MOST_REMEMBERED]
        remembered = {peer for peer in newest if now - seen[peer] <= SECONDS_TO_REMEMBER} | self._entry_peers
        self._last_seen = {peer: seen[peer] for peer in remembered}
        self._last_asked = {peer: time for peer, time in self._last_asked.items() if peer in remembered}
        lost = sorted(remembered - set(present), key=lambda peer: self._last_asked.get(peer, -math.inf))
        asked = lost[: MOST_ASKED_AT_ONCE if present else None]
        self._last_asked.update(dict.fromkeys(asked, now))
        return asked


def stay_joined(dht: hivemind.DHT, entry_addresses: Sequence[str]) -> None:
    """Look for lost nodes while the DHT node is running; `entry_addresses` are multiaddresses with peer ids."""
    dht.run_coroutine(partial(_begin, tuple(entry_addresses)))


async def _begin(entry_addresses: Sequence[str], _dht: hivemind.DHT, node: DHTNode) -> None:
    addresses: dict[PeerID, list[Multiaddr]] = {}
    for text in entry_addresses:
        place, _, peer_id = text.rpartition("/p2p/")
        if (peer := PeerID.from_base58(peer_id)) != node.peer_id:  # an auxiliary peer may be its own entry peer
            addresses.setdefault(peer, []).append(Multiaddr(place))
    node.rejoining = asyncio.create_task(_stay_joined(node, addresses))  # or the task may be garbage-collected


async def _stay_joined(node: DHTNode, addresses: Mapping[PeerID, Sequence[Multiaddr]]) -> None:
    nodes, loop = KnownNodes(addresses), asyncio.get_running_loop()
    while node.is_alive:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        present = set(node.protocol.routing_table.peer_id_to_uid)
        lost = nodes.whom_to_ask(present, loop.time())
        questions = [_ask(node, peer, addresses.get(peer, ())) for peer in lost]
        await asyncio.gather(*questions, return_exceptions=True)  # whatever the error, it is retried later


async def _ask(node: DHTNode, peer: PeerID, addresses: Sequence[Multiaddr]) -> None:
    """Ping a node, so that both sides know each other again; raises if that fails."""
    protocol = node.protocol
    if addresses:  # after hours libp2p has forgotten them
        async with asyncio.timeout(protocol.wait_timeout):
            await connect(protocol.p2p, peer, addresses)
    if await protocol.call_ping(peer) is not None:
        node.blacklist.register_success(peer)
        logger.debug("A node that was lost is back: %s", peer)


def keep_time() -> None:
    """From now on, everywhere in this process and its forks, hivemind's time is the swarm's, which begins now."""
    SWARM_TIME.follow()
    for module in list(sys.modules.values()):
        if vars(module).get("get_dht_time") is _MACHINES_TIME:
            setattr(module, "get_dht_time", SWARM_TIME)  # noqa: B010 - a module has no such attribute for mypy
