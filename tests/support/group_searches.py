"""Searches for a group, of one real node among members that are names only."""

import itertools

from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.group.matchmaking import (
    GroupSearch,
    PacedKeyManager,
)

NOTHING_GATHERED = MSGPackSerializer.dumps([None, AveragingMode.NODE.value, MSGPackSerializer.dumps(None)])
NUMBERS = itertools.count()
MEMBERS = tuple(PeerID(bytes([number]) * 34) for number in range(4))


def make_manager(dht, pause_seconds):
    return PacedKeyManager(GroupKeyManager(dht, f"paced{next(NUMBERS)}", "", None), pause_seconds)


async def look(manager):
    return await manager.get_averagers(manager.current_key, only_active=True)


async def make_search(dht, rounds_begin_together=True, **options):
    matchmaking = Matchmaking(
        await dht.replicate_p2p(), b"schema", dht, servicer_type=SwarmAverager, prefix=f"search{next(NUMBERS)}",
        target_group_size=None, min_group_size=2, min_matchmaking_time=2.0, request_timeout=0.5, client_mode=False,
    )  # fmt: skip
    return matchmaking, GroupSearch(matchmaking, rounds_begin_together, **options)
