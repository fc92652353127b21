"""What an entry tells strangers about servers is believed as far as the run's authority has signed it."""

import pytest
from admission_tokens import admission
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from pipelines.core.admission.tokens import TokenCheck, token_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.servers.server_list import MOST_BYTES, MOST_TOLD, believed

NOW = 1000.0
AUTHORITY, ANOTHER = (PublisherKey.generate() for _ in range(2))
CHECK = TokenCheck("run", AUTHORITY.public)


def entry(authority=AUTHORITY, changes=None, **claims):
    """Return owner, record and token of an admitted server, with changes of its record and of what is claimed."""
    held = admission(NOW, key=authority.public, **claims)
    owner = RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", held.record_key.encode())
    record = dict(
        peer_id=PeerID(bytes.fromhex(held.peer_id)).to_base58(), username="alice", state="online", revision="0" * 64,
        epoch=3, precision="float32", package_version="0", draw_rate=5.0,
    )  # fmt: skip
    return [owner, record | (changes or {}), token_of(held, authority)]


def told(*entries):
    return believed(MSGPackSerializer.dumps(list(entries)), CHECK, now=NOW)


def test_an_admitted_server_is_found_with_what_it_says():
    (record,) = told(entry()).values()
    assert (record.username, record.draw_rate, record.state) == ("alice", 5.0, "online")


@pytest.mark.parametrize(
    "lie",
    [
        entry(ANOTHER),
        entry(run_id="another"),
        entry(expires_at=NOW - 1),
        entry(changes=dict(username="bob")),
        entry(changes=dict(peer_id=PeerID(b"\x12\x20" + bytes(32)).to_base58())),
        entry(changes=dict(draw_rate=float("nan"))),
        entry(changes=dict(first_layer=2**40)),
        [b"x" * 5000, *entry()[1:]],
        [*entry()[:2], None],
        [*entry()[:2], "x" * 10_000],
        [None, None, None],
        [1],
        None,
        b"",
        {},
    ],
    ids=lambda lie: type(lie).__name__,
)
def test_what_no_admitted_server_says_of_itself_is_left_out_and_hides_nobody(lie):
    assert len(told(lie, entry(), lie)) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", MSGPackSerializer.dumps({}), MSGPackSerializer.dumps([[]] * (MOST_TOLD + 1)), bytes(MOST_BYTES + 1)],
    ids=["nothing", "no msgpack", "no list", "too many", "too long"],
)
def test_what_is_no_list_is_refused(data):
    with pytest.raises(ValueError, match=r"no list of servers|expected at most"):
        believed(data, CHECK, now=NOW)
