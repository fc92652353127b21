"""Complaints are small, few, and nobody's more than one voice."""

import pytest
from hivemind.utils import MSGPackSerializer

from pipelines.core.swarm.record_limits import MOST_BYTES
from pipelines.features.servers.complaints import (
    MOST_COMPLAINTS,
    MOST_SHOWN,
    ComplaintsRecord,
    accused_servers,
)

SIGNATURE_BYTES = 1024


def complaint(server="Qmserver", **changes):
    values = dict(
        server=server, revision="a" * 64, precision="float32", num_audited=4, mean_excess=0.25, limit=1e-5,
        seed=-(2**63), prompt=2**16, candidate=2**31, excess=0.5,
    )  # fmt: skip
    return values | changes


def record(name, *complaints):
    return ComplaintsRecord(peer_id=f"Qm{name}", username=name, complaints=list(complaints))


def test_the_largest_record_fits_into_the_swarm():
    longest = complaint("x" * 96, num_audited=2**53, mean_excess=1e15, limit=1e15, excess=1e15)
    largest = ComplaintsRecord(peer_id="y" * 96, username="z" * 96, complaints=[longest] * MOST_COMPLAINTS)
    assert len(MSGPackSerializer.dumps(largest.dict())) + SIGNATURE_BYTES < MOST_BYTES


@pytest.mark.parametrize(
    "values",
    [
        dict(complaints=[complaint()] * (MOST_COMPLAINTS + 1)),
        dict(complaints=[complaint("x" * 97)]),
        dict(complaints=[complaint(mean_excess=float("nan"))]),
        dict(complaints=[complaint(limit=float("inf"))]),
        dict(complaints=[complaint(num_audited=-1)]),
        dict(complaints=[complaint(num_audited=2.5)]),
        dict(complaints=[complaint(seed=2**63)]),
        dict(complaints=[complaint(revision="newest")]),
        dict(complaints=[complaint(precision="exact")]),
        dict(complaints="all of them"),
        dict(username="x" * 97),
        dict(peer_id=b"bytes \xff"),
        {},
    ],
    ids=str,
)
def test_a_record_of_another_form_is_refused(values):
    usual = dict(peer_id="Qmauditor", username="ann")
    with pytest.raises(ValueError):
        ComplaintsRecord.parse_obj(usual | values if values else usual)


def test_a_user_is_one_voice_about_a_server_and_a_peer_is_one_in_an_open_run():
    records = {
        b"1": record("ann", complaint("A"), complaint("A"), complaint("B")),
        b"2": record("ann", complaint("A", num_audited=64, mean_excess=0.5)),
        b"3": record("bob", complaint("A")),
    }
    first, second = accused_servers(records, names_users=True)
    assert (first.server, first.accusers, second.server, second.accusers) == ("A", ("ann", "bob"), "B", ("ann",))
    assert (first.num_audited, first.mean_excess) == (64, 0.5)
    records[b"2"].peer_id = "Qmanother"
    assert accused_servers(records, names_users=False)[0].accusers == ("Qmann", "Qmanother", "Qmbob")


def test_of_a_flood_the_most_accused_are_shown():
    flood = {bytes([n]): record(f"u{n}", *(complaint(f"s{n}-{m}") for m in range(MOST_COMPLAINTS))) for n in range(200)}
    flood |= {b"x": record("ann", complaint("liar")), b"y": record("bob", complaint("liar"))}
    shown = accused_servers(flood, names_users=True)
    assert len(shown) == MOST_SHOWN and shown[0].server == "liar"
