"""With whom a peer looks for a group, for how long, and how often it asks the DHT who else does."""

import asyncio

import pytest
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from pipelines.training.gradient_averager import SwarmGradientAverager
from pipelines.training.group_search import GroupSearch, PacedKeyManager, retry_seconds

MEMBERS = tuple(PeerID(bytes([number]) * 34) for number in range(3))


def make_manager(dht, pause_seconds):
    return PacedKeyManager(GroupKeyManager(dht, "paced", "", None), pause_seconds)


async def look(manager):
    return await manager.get_averagers(manager.current_key, only_active=True)


def test_the_first_look_is_at_once_and_the_next_one_after_a_pause(dht):
    manager = make_manager(dht, pause_seconds=3600.0)

    async def look_twice():
        first = await look(manager)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(look(manager), 0.3)
        return first

    assert asyncio.run(look_twice()) == []


def test_what_is_found_is_what_others_have_declared_but_for_those_to_be_avoided(dht):
    manager = make_manager(dht, pause_seconds=0.01)

    async def declare_and_look():
        expiration = get_dht_time() + 60.0
        await manager.declare_averager(manager.current_key, dht.peer_id, expiration)
        found = await look(manager)
        manager.avoid([dht.peer_id])
        return expiration, found, await look(manager)

    expiration, found, found_then = asyncio.run(declare_and_look())
    assert found == [(dht.peer_id, expiration)]
    assert found_then == []


async def make_search(dht):
    matchmaking = Matchmaking(
        await dht.replicate_p2p(), b"schema", dht, servicer_type=SwarmGradientAverager, prefix="search",
        target_group_size=None, min_group_size=2, min_matchmaking_time=2.0, request_timeout=0.5, client_mode=False,
    )  # fmt: skip
    return matchmaking, GroupSearch(matchmaking)


@pytest.mark.parametrize(("num_silent", "num_avoided"), [(0, 0), (1, 1), (2, 0), (3, 0)])
def test_who_does_not_answer_in_a_late_round_is_avoided_unless_most_do_not(dht, num_silent, num_avoided):
    silent = MEMBERS[:num_silent]

    async def ask(member):
        if member in silent:
            await asyncio.Event().wait()

    async def watch_until_others_have_answered():
        _, search = await make_search(dht)
        watching = asyncio.create_task(search.watch(MEMBERS, ask))
        await asyncio.wait([watching], timeout=0.3)
        watching.cancel()
        await asyncio.wait([watching])
        avoided = set(search.avoided)
        search.begin()
        return avoided, set(search.avoided)

    avoided, avoided_in_the_next_round = asyncio.run(watch_until_others_have_answered())
    assert avoided == set(silent[:num_avoided])
    assert avoided_in_the_next_round == set()


def test_a_member_that_refuses_to_answer_is_avoided_too(dht):
    async def ask(member):
        if member == MEMBERS[1]:
            raise ConnectionResetError

    async def watch():
        _, search = await make_search(dht)
        await search.watch(MEMBERS, ask)
        return set(search.avoided)

    assert asyncio.run(watch()) == {MEMBERS[1]}


def test_the_second_search_of_a_round_is_shorter_than_the_first(dht):
    async def search_seconds():
        matchmaking, search = await make_search(dht)
        search.begin()
        first = matchmaking.potential_leaders.min_matchmaking_time
        search.repeat()
        second = matchmaking.potential_leaders.min_matchmaking_time
        search.begin()
        return first, second, matchmaking.potential_leaders.min_matchmaking_time

    assert asyncio.run(search_seconds()) == (2.0, retry_seconds(2.0), 2.0)
    assert retry_seconds(2.0) < 2.0
