"""Whom a peer avoids by experience, and which leaders it follows after one has accepted it and then said nothing."""

import pytest
from forked_processes import ForkedProcess, fork_server, printed_json
from support_files import SUPPORT

from pipelines.core.averaging.group import blocklist
from pipelines.core.averaging.group.blocklist import Blocklist

FIRST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0


def test_a_leader_that_stalls_is_left_alone_for_longer_each_time_until_it_leads():
    memory, now = Blocklist(FIRST_SECONDS, LONGEST_SECONDS), 100.0
    assert not memory.avoids("eve", now)
    assert memory.avoid("eve", now) == FIRST_SECONDS
    assert memory.avoids("eve", now + FIRST_SECONDS - 0.1) and not memory.avoids("ann", now)
    now += FIRST_SECONDS
    assert not memory.avoids("eve", now)
    assert memory.avoid("eve", now) == 2 * FIRST_SECONDS
    for _ in range(20):
        seconds = memory.avoid("eve", now)
    assert seconds == LONGEST_SECONDS
    memory.forgive("eve")
    assert not memory.avoids("eve", now) and memory.avoid("eve", now) == FIRST_SECONDS


def test_a_crowd_of_leaders_that_stall_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(blocklist, "MOST_REMEMBERED", 10)
    memory = Blocklist(FIRST_SECONDS, LONGEST_SECONDS)
    for number in range(100):
        memory.avoid(number, float(number))
    assert len(memory.entries) == 10 and memory.avoids(99, 100.0)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.swarm
def test_two_peers_average_again_and_name_the_leader_that_accepts_them_and_never_begins(tmp_path):
    log = tmp_path / "stalled.log"
    process = ForkedProcess(fork_server(), str(SUPPORT / "stalling_leader.py"), [], log)
    assert process.wait(240) == 0, log.read_text()
    seen = printed_json(log)
    assert seen["before"] == [1, 1]
    assert seen["named"], "who accepted them and never began is among the suspects"
    assert min(seen["during"]) >= 4 and seen["num_rounds_tried"] <= 6, seen
