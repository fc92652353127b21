"""Watches this machine's clock: tells people when it was moved, and follows it if the others agree with it."""

import asyncio
import statistics
from collections.abc import Sequence

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import get_logger

from pipelines.core.swarm_time import SWARM_TIME, in_words

logger = get_logger(__name__)

SECONDS_BETWEEN_LOOKS, MOST_ASKED = 1.0, 5
TOLERATED_SECONDS = 1.0
"""By which a machine's clock may differ from the swarm's time unnoticed: it is a third of what hivemind tolerates."""


def watch_clock(dht: hivemind.DHT) -> None:
    """Watch it until the DHT node ends."""
    dht.run_coroutine(_begin)


async def _begin(_dht: hivemind.DHT, node: DHTNode) -> None:
    node.timekeeping = asyncio.create_task(_watch(node))  # or the task may be garbage-collected


async def _watch(node: DHTNode) -> None:
    """Say that this machine's clock was moved, and ask the others whether it, or the time as it was, is right."""
    judged = said = 0.0
    while node.is_alive:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        ahead = SWARM_TIME.ahead
        if abs(ahead) <= TOLERATED_SECONDS:
            judged = said = 0.0  # it was not moved, or is right again
            continue
        if abs(ahead - judged) <= TOLERATED_SECONDS:
            continue
        peers = list(node.protocol.routing_table.peer_id_to_uid)[:MOST_ASKED]
        answers = await asyncio.gather(*(_ahead(node, peer) for peer in peers), return_exceptions=True)
        others = [answer for answer in answers if isinstance(answer, float)]
        judged = ahead if others else judged  # who knows nobody at the moment asks again
        is_right = is_rather_right(ahead, others)
        if is_right:
            SWARM_TIME.follow()
            judged = 0.0
        if is_right or abs(ahead - said) > TOLERATED_SECONDS:
            logger.warning("%s", words_for_a_moved_clock(ahead, is_followed=is_right))
            said = 0.0 if is_right else ahead


async def _ahead(node: DHTNode, peer: PeerID) -> float:
    """Return the seconds by which another node is ahead of the swarm's time as it is kept here; raises if it fails."""
    protocol = node.protocol
    asked = SWARM_TIME()
    request = dht_pb2.PingRequest(peer=protocol.node_info, validate=False)
    reply = await protocol.get_stub(peer).rpc_ping(request, timeout=protocol.wait_timeout)
    return float(reply.dht_time - (asked + SWARM_TIME()) / 2)


def is_rather_right(ahead: float, others: Sequence[float]) -> bool:
    """Tell whether a clock is nearer to the others' than the swarm's time as it was kept here; not without others.

    `ahead` and `others`: seconds by which this machine's clock, and others, are ahead of that.
    """
    return bool(others) and abs(statistics.median(others) - ahead) < abs(statistics.median(others))


def words_for_a_moved_clock(ahead: float, *, is_followed: bool) -> str:
    """Return the line for people about a clock that was moved while their peer ran."""
    moved = f"This machine's clock was set {'forward' if ahead > 0 else 'back'} by {in_words(ahead)}"
    if is_followed:
        return f"{moved}, and now agrees with the others': this peer goes by it."
    return f"{moved}: this peer goes on with the time as it was. Set the clock right: sudo timedatectl set-ntp true"
