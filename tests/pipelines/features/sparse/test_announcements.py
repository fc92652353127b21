"""What is announced before a round of contributions, and what a cache holds of them, and for how long."""

import asyncio
import hashlib
import math
from dataclasses import replace

import pytest
from contribution_material import EPOCH, SIZES, content, gathered, peer
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.group.group_data import mode_of
from pipelines.features.sparse.announcement import (
    MOST_RECORDED,
    Announcement,
    announced_in,
    drawn_order,
)
from pipelines.features.sparse.contribution_cache import MOST_GIFTS, MOST_TAKEN, ContributionCache


@pytest.mark.parametrize("fan_out", [None, peer(9)])
def test_an_announcement_is_read_as_it_was_made(fan_out):
    announcement = replace(Announcement.of(content(1), {peer(2): 7.5}), fan_out=fan_out)
    assert announced_in(gathered(announcement.encode()), SIZES) == announcement
    assert announcement.digest == hashlib.sha256(content(1)).digest()


def test_who_contributes_nothing_announces_nothing():
    assert announced_in(gathered(MSGPackSerializer.dumps(None)), SIZES) is None


@pytest.mark.parametrize(
    "fields",
    [
        b"x",
        [b"0" * 32, SIZES.start],
        [b"0" * 32, SIZES.start, b""],
        [b"0" * 31, SIZES.start, b"", []],
        ["0" * 32, SIZES.start, b"", []],
        [b"0" * 32, SIZES.stop, b"", []],
        [b"0" * 32, SIZES.start - 1, b"", []],
        [b"0" * 32, float(SIZES.start), b"", []],
        [b"0" * 32, True, b"", []],
        [b"0" * 32, SIZES.start, b"0" * 65, []],
        [b"0" * 32, SIZES.start, None, []],
        [b"0" * 32, SIZES.start, b"", None],
        [b"0" * 32, SIZES.start, b"", [[b"0" * 7, 1.0]]],
        [b"0" * 32, SIZES.start, b"", [[b"0" * 8, -1.0]]],
        [b"0" * 32, SIZES.start, b"", [[b"0" * 8, math.inf]]],
        [b"0" * 32, SIZES.start, b"", [[b"0" * 8, 1.0]] * (MOST_RECORDED + 1)],
    ],
)
def test_what_no_honest_member_announces_is_refused(fields):
    with pytest.raises(ValueError, match="announced"):
        announced_in(gathered(MSGPackSerializer.dumps(fields)), SIZES)


def test_everybody_draws_the_same_order_and_other_contributions_another_one():
    peers = [peer(number) for number in range(8)]
    orders = {tuple(drawn_order(bytes([digest]), peers)) for digest in range(20)}
    assert len(orders) > 10
    assert drawn_order(b"0", peers) == drawn_order(b"0", peers[::-1])


def test_a_cache_holds_the_last_two_rounds_and_takes_one_gift_of_each_giver_and_round():
    cache = ContributionCache(SIZES)
    assert not cache.accept(peer(1), SIZES.start, 0), "it has begun no round"
    cache.begin_round(EPOCH)
    cache.put(b"a", b"old", EPOCH)
    assert cache.accept(peer(1), SIZES.start, EPOCH)
    assert not cache.accept(peer(1), SIZES.start, EPOCH)
    assert cache.accept(peer(1), SIZES.start, EPOCH + 1), "it may have begun the next round before this peer"
    assert not cache.accept(peer(2), SIZES.stop, EPOCH)
    assert not any(cache.accept(peer(2), SIZES.start, epoch) for epoch in (EPOCH - 2, EPOCH + 2, 10**9))
    cache.begin_round(EPOCH + 1)
    assert cache.get(b"a") == b"old"
    cache.begin_round(EPOCH + 2)
    assert cache.get(b"a") is None


def test_a_cache_is_bounded_in_gifts_and_in_how_often_a_peer_takes_one():
    cache = ContributionCache(SIZES)
    cache.begin_round(EPOCH)
    givers = [PeerID(b"\x12\x20" + bytes([1, number]) * 16) for number in range(MOST_GIFTS + 1)]
    assert [cache.accept(giver, SIZES.start, EPOCH) for giver in givers] == [True] * MOST_GIFTS + [False]
    cache.put(b"a", b"content", EPOCH)
    assert [cache.may_take(peer(1), b"a") for _ in range(MOST_TAKEN + 1)] == [True] * MOST_TAKEN + [False]
    assert cache.may_take(peer(2), b"a")


def test_a_cache_waits_for_what_is_coming_and_for_nothing_else():
    async def wait():
        cache = ContributionCache(SIZES)
        cache.begin_round(EPOCH)
        assert await cache.find(b"a", 0.0) is None
        with cache.coming(b"a"):
            waiting = asyncio.create_task(cache.find(b"a", 60.0))
            failing = asyncio.create_task(cache.find(b"b", 60.0))
            with cache.coming(b"b"):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            cache.put(b"a", b"content", EPOCH)
        assert await waiting == b"content"
        assert await failing is None

    asyncio.run(asyncio.wait_for(wait(), 30))


def test_a_member_tells_of_as_many_records_as_are_read():
    many = {PeerID(b"\x12\x20" + number.to_bytes(32, "big")): 1.0 for number in range(MOST_RECORDED + 1)}
    message = Announcement.of(content(1), many).encode()
    assert len(announced_in(gathered(message), SIZES).recorded) == MOST_RECORDED
    mode_of(gathered(message))  # small enough
