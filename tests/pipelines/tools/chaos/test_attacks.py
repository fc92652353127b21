"""Each attack of the table, against a real trainer: the attacker keeps at it, and the trainer keeps training."""

import pytest
from swarm_of_processes import HOSTILE_PROCESS, Swarm, tiny_run

from pipelines.tools.chaos.attacks.table import ATTACKS
from pipelines.tools.chaos.faults.fault_script import DRAWN_KINDS, NO_PEER, attack_in_the_middle, draw_faults

AMONG_ALL_TESTS = ("bad_mode", "lying_epoch")
"""One of records and one of matchmaking; those who attack the averages are in `test_false_averages_in_a_swarm.py`, and
`make test-long` has them all."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    run = tiny_run(num_epochs=10_000, matchmaking_seconds=1.0)
    with Swarm(tmp_path_factory.mktemp("attacked"), run, num_peers=1) as swarm:
        swarm.start("trainer")
        yield swarm


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AMONG_ALL_TESTS else pytest.mark.long) for name in ATTACKS]
)
def test_an_attacker_goes_on_and_so_does_a_trainer(swarm, name):
    attacker = swarm.start(name, HOSTILE_PROCESS, attacks={name: 2})
    try:
        first = attacker.wait_for("lied", seconds=60)["time"]
        again = attacker.wait_for("lied", seconds=60, after=first)["time"]
        swarm.peers[0].wait_for("step", seconds=60, after=again, ended_epoch=True)
    finally:
        attacker.kill()


def test_an_attack_is_a_fault_of_nobody_and_is_never_drawn():
    fault = attack_in_the_middle("lying_epoch", 100.0)
    assert (fault.peer, fault.at_seconds, fault.ends_at_seconds) == (NO_PEER, 10.0, 85.0)
    drawn = draw_faults(seed=1, duration_seconds=600.0, num_faults=100, num_peers=3)
    assert {fault.kind for fault in drawn} == set(DRAWN_KINDS)


def test_every_attack_says_what_it_is():
    assert all(attack.__doc__ and "\n" not in attack.__doc__.strip() for attack in ATTACKS.values())
