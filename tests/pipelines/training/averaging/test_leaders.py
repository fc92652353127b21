"""Which leaders a peer follows after one has accepted it and then said nothing."""

import json

import pytest
from forked_processes import ForkedProcess, fork_server
from support_files import SUPPORT

from pipelines.training.averaging.group import leaders
from pipelines.training.averaging.group.leaders import FIRST_SECONDS, LONGEST_SECONDS, LeaderMemory


def test_a_leader_that_stalls_is_left_alone_for_longer_each_time_until_it_leads():
    memory, now = LeaderMemory(), 100.0
    assert memory.may_be_followed("eve", now)
    assert memory.stalled("eve", now) == FIRST_SECONDS
    assert not memory.may_be_followed("eve", now + FIRST_SECONDS - 0.1) and memory.may_be_followed("ann", now)
    now += FIRST_SECONDS
    assert memory.may_be_followed("eve", now)
    assert memory.stalled("eve", now) == 2 * FIRST_SECONDS
    for _ in range(20):
        seconds = memory.stalled("eve", now)
    assert seconds == LONGEST_SECONDS
    memory.led("eve")
    assert memory.may_be_followed("eve", now) and memory.stalled("eve", now) == FIRST_SECONDS


def test_a_crowd_of_leaders_that_stall_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(leaders, "MOST_REMEMBERED", 10)
    memory = LeaderMemory()
    for number in range(100):
        memory.stalled(number, float(number))
    assert len(memory._stalls) == 10 and not memory.may_be_followed(99, 100.0)


@pytest.mark.slow
@pytest.mark.swarm
def test_two_peers_average_again_and_name_the_leader_that_accepts_them_and_never_begins(tmp_path):
    log = tmp_path / "stalled.log"
    process = ForkedProcess(fork_server(), str(SUPPORT / "stalling_leader.py"), [], log)
    assert process.wait(240) == 0, log.read_text()
    seen = json.loads(log.read_text().splitlines()[-1])
    assert seen["before"] == [1, 1]
    assert seen["named"], "who accepted them and never began is among the suspects"
    assert min(seen["during"]) >= 4 and seen["num_rounds_tried"] <= 6, seen
