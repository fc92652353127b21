"""With whom a peer looks for a group, for how long, and how often it asks the DHT who else does."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from group_searches import MEMBERS, NOTHING_GATHERED, look, make_manager, make_search
from hivemind.averaging.key_manager import GroupKeyManager, is_valid_group
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.group.matchmaking import (
    MOST_STRANGERS,
    PacedKeyManager,
    chosen,
    retry_seconds,
)
from pipelines.core.averaging.reduce.suspects import Misbehaviour


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


def test_peers_of_all_epochs_declare_in_one_place_and_only_those_of_ones_own_are_accepted(dht):
    async def declare_for_one_epoch_and_be_asked_for_another():
        matchmaking, search = await make_search(dht)
        manager = search._key_manager
        search.average_epoch(7)
        key = manager.current_key
        await manager.declare_averager(key, dht.peer_id, get_dht_time() + 60.0)
        search.average_epoch(8)
        search.begin()
        found = await look(manager)
        codes = []
        async with matchmaking.lock_looking_for_group:
            for group_key in (key, manager.current_key):
                request = averaging_pb2.JoinRequest(
                    schema_hash=b"schema", expiration=get_dht_time() + 30, gather=NOTHING_GATHERED, group_key=group_key
                )
                codes.append(matchmaking._check_reasons_to_reject(request, SimpleNamespace(remote_id=MEMBERS[1])).code)
        return key, found, manager.current_key, codes

    key, found, next_key, codes = asyncio.run(declare_for_one_epoch_and_be_asked_for_another())
    assert is_valid_group(key) and is_valid_group(next_key) and key != next_key
    assert [peer for peer, _ in found] == [dht.peer_id]
    assert codes == [averaging_pb2.BAD_GROUP_KEY, averaging_pb2.NOT_DECLARED]


OTHERS = MEMBERS[1:]
"""All members but the first, which is this peer wherever a search is made."""


async def make_own_search(dht, own=0, rounds_begin_together=True):
    """Return the search of one of the members, which the real peer is called here."""
    matchmaking, search = await make_search(dht, rounds_begin_together)
    matchmaking.peer_id = MEMBERS[own]
    return matchmaking, search


@pytest.mark.parametrize(("num_silent", "num_avoided"), [(0, 0), (1, 1), (2, 0), (3, 0)])
def test_who_does_not_answer_in_a_late_round_is_avoided_unless_most_do_not(dht, num_silent, num_avoided):
    silent = OTHERS[:num_silent]

    async def ask(member):
        if member in silent:
            await asyncio.Event().wait()

    async def watch_until_others_have_answered():
        _, search = await make_own_search(dht)
        watching = asyncio.create_task(search.watch(OTHERS, ask))
        await asyncio.wait([watching], timeout=0.3)
        search.meet_again(MEMBERS)
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
        _, search = await make_own_search(dht)
        await search.watch(OTHERS, ask)
        avoided_in_time = set(search.avoided)
        search.meet_again(MEMBERS)
        return avoided_in_time, set(search.avoided)

    assert asyncio.run(watch()) == (set(), {MEMBERS[1]}), "nobody is avoided while the round may succeed"


def test_a_convicted_peer_is_neither_found_nor_accepted_nor_followed_where_others_point_to_it(dht):
    convicted = {dht.peer_id, MEMBERS[1]}

    async def search_among_convicts():
        matchmaking, search = await make_search(dht, is_kept_out=convicted.__contains__)
        manager = search._key_manager
        await manager.declare_averager(manager.current_key, dht.peer_id, get_dht_time() + 60.0)
        found = await look(manager)
        followed = await matchmaking._request_join_group(MEMBERS[1])
        search.meet_again(MEMBERS)
        again = [leader for leader, _ in await look(manager)]
        return found, followed, again, [search.accepts(member) for member in MEMBERS]

    found, followed, again, accepted = asyncio.run(search_among_convicts())
    assert found == [] and followed is None
    assert again == [MEMBERS[0], *MEMBERS[2:]]
    assert accepted == [True, False, True, True]


def test_a_peer_that_is_not_understood_and_a_leader_of_such_a_group_are_left_alone_for_a_while(dht):
    named = []
    checks = Checks(dht.peer_id, stub_of=None, name=lambda *who_and_what: named.append(who_and_what))

    async def search_with_distrust():
        matchmaking, search = await make_search(dht, is_kept_out=checks.avoids)
        assert search.leader is None, "nobody leads"
        checks.distrust(MEMBERS[1], Misbehaviour.NOT_UNDERSTOOD)
        search.leader = MEMBERS[2]
        checks.distrust(search.leader, Misbehaviour.NOT_UNDERSTOOD)
        search.begin()
        assert search.leader is None, "the leader of an earlier group has no part in the next one"
        search.meet_again(MEMBERS)
        again = [leader for leader, _ in await look(search._key_manager)]
        followed = await matchmaking._request_join_group(MEMBERS[1])
        return again, followed, [search.accepts(member) for member in MEMBERS]

    again, followed, accepted = asyncio.run(search_with_distrust())
    assert again == [MEMBERS[0], MEMBERS[3]] and followed is None and accepted == [True, False, False, True]
    assert named == [(member, Misbehaviour.NOT_UNDERSTOOD) for member in MEMBERS[1:3]]


@pytest.mark.parametrize(
    ("silent", "late", "avoided"), [((), (1,), {1}), ((1,), (1,), {1}), ((2,), (1,), set()), ((), (1, 2), set())]
)
def test_for_whom_a_round_has_waited_is_avoided_in_the_next_search_and_no_longer(dht, silent, late, avoided):
    async def ask(member):
        if member in [MEMBERS[number] for number in silent]:
            raise ConnectionResetError

    async def search_twice():
        _, search = await make_own_search(dht)
        await search.watch(OTHERS, ask)
        search.meet_again(MEMBERS, late=[MEMBERS[number] for number in late])
        first = set(search.avoided)
        search.begin()
        return first, set(search.avoided)

    assert asyncio.run(search_twice()) == ({MEMBERS[number] for number in avoided}, set())


@pytest.mark.parametrize(
    ("own", "late", "clients", "asked"),
    [(0, (), (), []), (2, (), (), [0, 1]), (3, (1,), (), [0, 2]), (3, (0,), (1,), [2]), (1, (), (1,), [0, 2, 3])],
)
def test_members_meet_again_under_the_first_in_their_order_who_can_lead(dht, own, late, clients, asked):
    def named(numbers):
        return [MEMBERS[number] for number in numbers]

    async def meet():
        matchmaking, search = await make_own_search(dht, own)
        search.meet_again(MEMBERS, followers=named(clients), late=named(late))
        found = await look(matchmaking.group_key_manager)
        seconds, size = matchmaking.potential_leaders.min_matchmaking_time, matchmaking.target_group_size
        search.begin()
        return found, seconds, size, await look(matchmaking.group_key_manager), matchmaking.target_group_size

    before = get_dht_time()
    found, seconds, size, found_in_the_next_round, former_size = asyncio.run(meet())
    assert [peer for peer, _ in found] == named(asked)
    assert all(before < first < second for (_, first), (_, second) in itertools.pairwise(found))
    assert size == len(MEMBERS) - len(late) and former_size is None
    assert (seconds == retry_seconds(2.0)) == (not asked), "followers look longer than their leader"
    assert found_in_the_next_round == []


@pytest.mark.parametrize(("own", "asked"), [(0, []), (1, [0]), (2, [0, 1])])
def test_two_trainers_that_waited_for_each_other_meet_again_and_their_listener_with_them(dht, own, asked):
    listener, trainers = MEMBERS[2], MEMBERS[:2]

    async def meet():
        _, search = await make_own_search(dht, own)
        late = [trainer for trainer in trainers if trainer != MEMBERS[own]]
        search.meet_again(MEMBERS[:3], followers=[listener], listeners=[listener], late=late)
        return search, await look(search._key_manager)

    search, found = asyncio.run(meet())
    assert not search.avoided
    assert [peer for peer, _ in found] == [MEMBERS[number] for number in asked]


def test_members_that_did_not_begin_a_round_together_look_for_each_other_in_the_dht(dht):
    async def meet():
        matchmaking, search = await make_own_search(dht, own=2, rounds_begin_together=False)
        search.meet_again(MEMBERS, late=MEMBERS[:1])
        seconds, size = matchmaking.potential_leaders.min_matchmaking_time, matchmaking.target_group_size
        return await look(matchmaking.group_key_manager), set(search.avoided), seconds, size

    assert asyncio.run(meet()) == ([], set(), retry_seconds(2.0), None)


def test_a_group_that_meets_again_does_not_wait_for_its_declaration(dht):
    async def declare():
        manager = make_manager(dht, pause_seconds=0.01)
        manager.meet_again((), seconds=60.0)
        until = get_dht_time() + 60.0
        assert await manager.declare_averager(manager.current_key, dht.peer_id, until)
        manager.meet_again((), seconds=0.0)
        while not (found := await look(manager)):
            pass  # the declaration goes on by itself
        return found == [(dht.peer_id, until)]

    assert asyncio.run(asyncio.wait_for(declare(), 30))


def test_what_waits_for_a_search_ends_with_it_and_not_with_an_earlier_one(dht):
    async def wait_and_end():
        matchmaking, search = await make_own_search(dht)
        waiting = asyncio.create_task(matchmaking.was_accepted_to_group.wait())  # hivemind's, for each follower
        async with matchmaking.looking_for_group(None):
            await asyncio.sleep(0)
            search.end()
            await asyncio.sleep(0)
            ended_early = waiting.done()
        search.end()
        await asyncio.wait_for(waiting, 5)
        return ended_early, matchmaking.was_accepted_to_group.is_set()

    assert asyncio.run(wait_and_end()) == (False, False)


def test_the_second_search_of_a_round_is_shorter_than_the_first(dht):
    async def search_seconds(**options):
        matchmaking, search = await make_own_search(dht)
        search.begin()
        first = matchmaking.potential_leaders.min_matchmaking_time
        search.meet_again(MEMBERS, **options)
        second = matchmaking.potential_leaders.min_matchmaking_time
        search.begin()
        return first, second, matchmaking.potential_leaders.min_matchmaking_time

    assert asyncio.run(search_seconds()) == (2.0, retry_seconds(2.0), 2.0)
    assert retry_seconds(2.0) < 2.0
    _, after_a_long_round, _ = asyncio.run(search_seconds(apart_seconds=25.0))
    assert after_a_long_round == retry_seconds(2.0, 25.0) > 20.0


def test_of_a_crowd_of_strangers_those_who_are_known_are_asked_first_and_otherwise_a_few():
    strangers = {PeerID(bytes([1, number])): 100.0 - number for number in range(90)}
    known = {PeerID(b"known"): 200.0}
    few = dict(list(strangers.items())[:MOST_STRANGERS])
    assert dict(chosen(few | known, known)) == few | known
    assert dict(chosen(strangers | known, known)) == known
    drawn = chosen(strangers, known)
    assert len(drawn) == MOST_STRANGERS and all(strangers[peer] == until for peer, until in drawn)


def test_what_another_key_says_of_a_peer_whose_key_is_known_does_not_count(dht):
    async def declare_twice():
        honest = PacedKeyManager(GroupKeyManager(dht, "spoken_for", "", None), 0.0)
        await honest.declare_averager(honest.current_key, dht.peer_id, get_dht_time() + 60.0)
        owner = honest._owner
        honest._owner = b"another"
        await honest.declare_averager(honest.current_key, dht.peer_id, get_dht_time() + 90.0)
        reader = PacedKeyManager(GroupKeyManager(dht, "spoken_for", "", None), 0.0, may_sign=lambda _, by: by == owner)
        return await honest.get_averagers("", True), await reader.get_averagers("", True)

    ((_, believed),), ((_, checked),) = asyncio.run(declare_twice())
    assert believed - checked > 20.0
