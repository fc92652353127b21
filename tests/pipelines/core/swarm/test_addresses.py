"""Addresses of peers, taken apart."""

import pytest

from pipelines.core.swarm.dialling import parse_address
from pipelines.core.swarm.network_options import NetworkOptions

PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


@pytest.mark.parametrize(
    ("text", "place", "private"),
    [
        (f"/ip4/8.8.4.7/tcp/31337/p2p/{PEER}", "8.8.4.0/24", False),
        (f"/ip6/2001:4860:1:2::7/tcp/31337/p2p/{PEER}", "2001:4860:1::/48", False),
        (f"/dns4/Birds.example.org/tcp/31337/p2p/{PEER}", "birds.example.org", False),
        ("/ip4/192.168.1.7/tcp/0", "192.168.1.0/24", True),
    ],
)
def test_an_address_is_taken_apart(text, place, private):
    address = parse_address(text)
    assert (address.place, address.is_private) == (place, private)
    assert address.peer_id == (PEER if "p2p" in text else "")
    assert text.startswith(address.without_peer)


@pytest.mark.parametrize("text", ["", "127.0.0.1:80", "/ip4/300.1.1.1/tcp/1", "/ip4/1.1.1.1/tcp/x", "/ip4/::1/tcp/1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)


def test_without_a_choice_a_peer_listens_on_both_kinds_of_addresses():
    addresses = [parse_address(text) for text in NetworkOptions().host_addresses]
    assert [(address.kind, address.port) for address in addresses] == [("ip4", 0), ("ip6", 0)]
