"""A peer whose link was broken finds the others again: whom it asks, and two real nodes that had lost each other."""

import json

import pytest
from forked_processes import ForkedProcess, fork_server
from hivemind.p2p import PeerID
from support_files import SUPPORT

from pipelines.core.swarm.rejoining import MOST_ASKED_AT_ONCE, MOST_REMEMBERED, SECONDS_TO_REMEMBER, KnownNodes


def peers(number):
    return [PeerID(b"\x12\x20" + index.to_bytes(32, "big")) for index in range(number)]


def test_who_is_present_is_not_asked_and_who_was_present_is():
    entry, first, second = peers(3)
    nodes = KnownNodes([entry])
    assert nodes.whom_to_ask([entry, first, second], 0.0) == []
    assert nodes.whom_to_ask([entry, first], 2.0) == [second]


def test_a_node_without_others_asks_all_it_has_known_and_else_a_few_at_a_time_in_turn():
    everybody = peers(3 * MOST_ASKED_AT_ONCE)
    nodes = KnownNodes(everybody[:1])
    nodes.whom_to_ask(everybody, 0.0)
    assert set(nodes.whom_to_ask([], 2.0)) == set(everybody)
    present = everybody[-1:]
    asked = [nodes.whom_to_ask(present, 4.0 + number) for number in range(3)]
    assert [len(some) for some in asked] == [MOST_ASKED_AT_ONCE] * 3
    assert {peer for some in asked for peer in some} == set(everybody) - set(present)


def test_a_node_that_stays_away_is_forgotten_and_an_entry_peer_never():
    entry, other, third = peers(3)
    nodes = KnownNodes([entry])
    nodes.whom_to_ask([entry, other, third], 0.0)
    assert nodes.whom_to_ask([third], SECONDS_TO_REMEMBER + 1) == [entry]
    crowd = peers(2 * MOST_REMEMBERED)
    nodes.whom_to_ask(crowd, SECONDS_TO_REMEMBER + 2)
    assert len(nodes.whom_to_ask([], SECONDS_TO_REMEMBER + 3)) <= MOST_REMEMBERED + 1


@pytest.mark.slow
@pytest.mark.swarm
def test_two_nodes_that_have_forgotten_each_other_find_each_other_again(tmp_path):
    results, settings = tmp_path / "results.json", tmp_path / "settings.json"
    settings.write_text(json.dumps(dict(results=str(results))), encoding="utf-8")
    process = ForkedProcess(fork_server(), str(SUPPORT / "lost_nodes.py"), [str(settings)], tmp_path / "nodes.log")
    assert process.wait(150) == 0, (tmp_path / "nodes.log").read_text()
    assert json.loads(results.read_text()) == dict(before="before", lost=[0, 0], after="after")
