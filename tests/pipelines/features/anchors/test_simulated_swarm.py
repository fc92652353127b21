"""Many peers and attackers at the level of records and decisions; `tests/long/simulation.py` is the long form."""

import pytest
from simulated_swarm import SimulatedSwarm

NUM_EPOCHS = 60


@pytest.mark.parametrize(
    ("has_anchor", "num_keys"),
    [(True, 30), (False, 3)],
    ids=["with an anchor any number of keys", "without anchors fewer keys than peers"],
)
def test_peers_that_miss_rounds_split_and_change_keep_one_state_among_attackers(has_anchor, num_keys):
    away = range(20, 28)
    swarm = SimulatedSwarm(
        seed=3, num_peers=12, num_attackers=2, keys_of_an_attacker=num_keys, has_anchor=has_anchor, anchor_away=away,
        miss_share=0.1, split_share=0.2, joins_and_leaves=0.2,
    )  # fmt: skip
    for _ in range(NUM_EPOCHS):
        swarm.epoch()
    assert swarm.now == NUM_EPOCHS and swarm.number > 12, "it goes on, and peers have come and gone"
    assert swarm.num_in_step >= 9
    assert swarm.longest_fork <= 4 and swarm.num_false == 0
    assert swarm.num_remembered < 2 * (12 + 2 * num_keys)


def test_attackers_that_are_most_of_those_in_the_rounds_can_set_peers_apart():
    """The simulation can fail: this is what patient keys that outnumber the honest ones do where there is no anchor."""
    swarm = SimulatedSwarm(seed=3, num_peers=4, num_attackers=9, has_anchor=False, joins_and_leaves=1.0)
    for _ in range(NUM_EPOCHS):
        swarm.epoch()
    assert swarm.num_false > 0


def test_an_anchor_holds_the_run_against_them():
    swarm = SimulatedSwarm(seed=3, num_peers=4, num_attackers=9, has_anchor=True, joins_and_leaves=1.0)
    for _ in range(NUM_EPOCHS):
        swarm.epoch()
    assert swarm.longest_fork <= 4 and swarm.num_false == 0 and swarm.now == NUM_EPOCHS


def test_an_anchor_that_comes_back_to_strangers_goes_on_from_where_it_was():
    """While it is away, nobody new is let in; attackers can outnumber the few who stay, which is then undone."""
    swarm = SimulatedSwarm(seed=3, num_peers=12, num_attackers=2, joins_and_leaves=1.0, anchor_away=range(20, 60))
    for _ in range(80):
        swarm.epoch()
    assert swarm.num_lost_epochs > 0 and swarm.now < 79 and swarm.num_in_step >= 9
    assert {peer.digest for peer in swarm.peers if peer.epoch == swarm.now} == {swarm.truth[swarm.now]}
