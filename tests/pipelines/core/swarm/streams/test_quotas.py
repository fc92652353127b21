"""What others may take: of one peer, of one address, and in all, however many peers somebody makes himself."""

import random

import pytest

from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import UNKNOWN, StreamClient, stream_client_of

HERE, THERE = "203.0.113.7", "2001:db8:1::/48"


def test_a_quota_is_kept_by_each_peer_and_by_all_and_forgets_who_has_given_back():
    quota = Quota("bytes", per_peer=10, in_all=15)
    a, b, c = (StreamClient(name, f"203.0.113.{number}") for number, name in enumerate("abc"))
    quota.take(a, 10)
    with pytest.raises(Refusal, match="1 more bytes would be above 10 for one peer"):
        quota.take(a, 1)
    with quota.taken_during(b, 5), pytest.raises(Refusal, match="above 15 for all together"):
        quota.take(c, 1)
    assert (quota.taken, quota.free, quota._taken["b"], quota.num_peers) == (10, 5, 0, 1)
    quota.give_back(a, 10)
    assert (quota.taken, len(quota._taken), len(quota._taken_at)) == (0, 0, 0)


def test_a_thousand_peers_at_one_address_get_no_more_than_an_address_may_have():
    quota = Quota("places", per_peer=4, per_address=8, in_all=100, code="busy")
    granted = 0
    for number in range(1000):
        try:
            quota.take(StreamClient(f"peer {number}", HERE), 1)
            granted += 1
        except Refusal as refusal:
            assert refusal.code == "busy" and "above 8 for one address" in refusal.text
    assert granted == 8
    quota.take(StreamClient("a neighbour", THERE), 4)
    assert len(quota._taken) == 9, "nothing is kept of those who were refused"


def test_a_peer_at_two_addresses_is_one_peer():
    quota = Quota("places", per_peer=4, per_address=8, in_all=100)
    quota.take(StreamClient("a", HERE), 3)
    with pytest.raises(Refusal, match="above 4 for one peer"):
        quota.take(StreamClient("a", THERE), 2)
    quota.take(StreamClient("a", UNKNOWN), 1)
    quota.give_back(StreamClient("a", UNKNOWN), 1)
    quota.give_back(StreamClient("a", HERE), 3)
    assert (quota.taken, len(quota._taken), len(quota._taken_at)) == (0, 0, 0)


def test_all_who_come_through_relays_share_a_half_and_leave_the_rest_to_others():
    quota = Quota("places", per_peer=4, per_address=8, in_all=100)
    for number in range(12):
        quota.take(StreamClient(f"relayed {number}"), 4)
    with pytest.raises(Refusal, match="above 50 for all who come through relays"):
        quota.take(StreamClient("one more"), 4)
    quota.take(StreamClient("direct", HERE), 4)


def test_whatever_is_taken_and_given_back_the_counts_return_to_nothing():
    draw, quota = random.Random(0), Quota("places", per_peer=5, per_address=9, in_all=20)
    clients = [StreamClient(peer, address) for peer in range(5) for address in (HERE, THERE, UNKNOWN)]
    held = []
    for _ in range(2000):
        if held and draw.random() < 0.5:
            quota.give_back(*held.pop(draw.randrange(len(held))))
            continue
        wanted = (draw.choice(clients), draw.randrange(7))
        try:
            quota.take(*wanted)
            held.append(wanted)
        except Refusal:
            pass
        for key, most, name in ((lambda a: a.peer, 5, "peer"), (lambda a: a.address, 10, "address")):
            sums = {key(client): 0 for client, _ in held}
            for client, number in held:
                sums[key(client)] += number
            assert max(sums.values(), default=0) <= most, name
    for one in held:
        quota.give_back(*one)
    assert (quota.taken, quota._taken, quota._taken_at) == (0, {}, {})


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("/ip4/203.0.113.7/tcp/4001", HERE),
        ("/ip4/203.0.113.7/udp/4001/quic", HERE),
        ("/ip6/2001:db8:1:2:3:4:5:6/tcp/1", THERE),
        ("/ip6/2001:db8:1:2:ffff::1/tcp/9", THERE),
        ("/ip6/::ffff:203.0.113.7/tcp/4001", HERE),
        ("/ip4/203.0.113.7/tcp/4001/p2p/QmRelay/p2p-circuit", UNKNOWN),
        ("/p2p/QmRelay/p2p-circuit", UNKNOWN),
        ("/unix/tmp/socket", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_who_asks_is_known_by_the_address_that_one_customer_has(remote, address):
    assert stream_client_of("a", remote) == StreamClient("a", address)
