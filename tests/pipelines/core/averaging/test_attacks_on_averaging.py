"""Real peers as OS processes, one of them hostile: what the honest average is, how long it takes, who is named."""

import pytest
import torch
from averager_peers import SHAPES, events_of, signal_and_noise
from safetensors.torch import load_file
from swarm_of_processes import Swarm, tiny_run

from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.tools.chaos.faults.hostile_peers import Attack

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.long]

HONEST = ("first", "second", "third", "client")
MEMBERS = (*HONEST, "helper", "hostile")
CLEAN_ROUNDS = 3
ATTACKS = [Attack.NONE] * CLEAN_ROUNDS + [attack for attack in Attack if attack != Attack.NONE]

NAMED_FOR = {
    Attack.NAN: Misbehaviour.NOT_FINITE,
    Attack.INFINITY: Misbehaviour.NOT_FINITE,
    Attack.HUGE_WEIGHT: Misbehaviour.EXCESS_WEIGHT,
    Attack.NO_WEIGHT: Misbehaviour.NO_WEIGHT,
    Attack.LIAR: Misbehaviour.FAR_OFF,
    Attack.CONSTANT: Misbehaviour.FAR_OFF,
    Attack.DELAYED: Misbehaviour.FAR_OFF,
    Attack.WRONG_SHAPE: Misbehaviour.WRONG_SHAPE,
    Attack.REPLAYED: Misbehaviour.REPLAYED,
    Attack.LYING_REDUCER: Misbehaviour.BAD_ANSWER,
    Attack.UNEVEN_REDUCER: Misbehaviour.NO_ANSWER,
}

SLACK_SECONDS = 7.0
"""Another job on the machine can hold a round up; a peer that is waited for in vain costs 15 s, twice as much."""

PATIENCE_SECONDS = 2 * 15.0 / 3
"""A reducer that is silent for so long is late, and once more if it has given everything to others."""


class Rounds:
    """The rounds that the swarm went through, as the honest peers saw them."""

    def __init__(self, folder):
        self._folder = folder
        self.peer_ids = {name: events_of(folder, name, "ready")[0]["peer_id"] for name in MEMBERS}
        averaged = {name: events_of(folder, name, "averaged") for name in MEMBERS}
        last_attempt = {event["number"]: event["attempt"] for event in averaged["first"]}
        self._outcomes = {
            name: {e["number"]: e for e in found if e["attempt"] == last_attempt[e["number"]]}
            for name, found in averaged.items()
        }

    def outcome(self, attack, name):
        return self._outcomes[name][ATTACKS.index(attack)]

    def clean_seconds(self):
        return max(self._outcomes[name][number]["seconds"] for name in HONEST for number in range(CLEAN_ROUNDS))

    def averages(self, number):
        """The averaged gradient of each honest peer and what it should be, as flat vectors."""
        attempt = self._outcomes["first"][number]["attempt"]
        results = [load_file(self._folder / f"{name}-{number}-{attempt}.safetensors") for name in HONEST]
        flat = [torch.cat([result[str(i)].flatten() for i in range(len(SHAPES))]) for result in results]
        own = [signal_and_noise(number, attempt, MEMBERS.index(name)) for name in HONEST]
        return flat, torch.stack([torch.cat([tensor.flatten() for tensor in tensors]) for tensors in own]).mean(0)

    def newly_named(self, attack, name):
        """What the peer has named whom for in this round: the difference to the round before."""
        number = ATTACKS.index(attack)
        before, after = (
            {tuple(entry[:2]): entry[2] for entry in self._outcomes[name][n]["suspects"]} for n in (number - 1, number)
        )
        return {entry for entry, count in after.items() if count > before.get(entry, 0)}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Four honest peers, one of them behind a firewall, a helper without a gradient, and a hostile peer."""
    folder = tmp_path_factory.mktemp("attacked")
    run = tiny_run(averaging_compression="none", matchmaking_seconds=3.0)
    with Swarm(folder, run, num_peers=len(MEMBERS)) as swarm:
        starter = swarm.start("starter", program="averager_peers.py", attacks=ATTACKS, members=MEMBERS)
        starter.wait_for("finished", seconds=400)
    return Rounds(folder)


def test_without_an_attack_all_honest_peers_and_the_fifth_end_with_the_same_mean(rounds):
    for number in range(CLEAN_ROUNDS):
        results, _ = rounds.averages(number)
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("attack", NAMED_FOR)
def test_an_attack_costs_little_of_the_average_and_no_time_and_its_author_is_named(rounds, attack):
    number = ATTACKS.index(attack)
    results, honest_mean = rounds.averages(number)
    for result in results:
        assert torch.isfinite(result).all()
        if attack == Attack.LYING_REDUCER:  # its share has no average; all count that as zero, and go on with the rest
            assert torch.equal(result, results[0])
            honest_mean = torch.where(result == 0, 0.0, honest_mean)
            assert (result == 0).float().mean() < 0.25
        assert (result - honest_mean).norm() < 0.2 * honest_mean.norm()
    waited = PATIENCE_SECONDS if attack == Attack.UNEVEN_REDUCER else 0.0
    for name in HONEST:
        assert rounds.outcome(attack, name)["seconds"] < waited + 2 * rounds.clean_seconds() + SLACK_SECONDS
        assert rounds.outcome(attack, name)["failure"] == ""
    named = set().union(*(rounds.newly_named(attack, name) for name in HONEST))
    assert (rounds.peer_ids["hostile"], NAMED_FOR[attack].name) in named
    assert {peer for peer, _ in named} == {rounds.peer_ids["hostile"]}, "nobody else is named"


def test_what_a_reducer_gives_to_one_member_only_all_the_others_take_from_that_one(rounds):
    results, honest_mean = rounds.averages(ATTACKS.index(Attack.UNEVEN_REDUCER))
    assert all(torch.equal(result, results[0]) for result in results)
    assert (results[0] - honest_mean).norm() < 0.2 * honest_mean.norm()
    for name in HONEST:
        assert rounds.outcome(Attack.UNEVEN_REDUCER, name)["share_averaged"] == 1.0


def test_honest_peers_are_never_named_and_a_helper_that_reduces_has_the_average_too(rounds):
    for name in HONEST:
        suspects = rounds.outcome(ATTACKS[-1], name)["suspects"]
        assert {peer for peer, _, _ in suspects} == {rounds.peer_ids["hostile"]}
    for number in range(CLEAN_ROUNDS):
        (average, *_), _ = rounds.averages(number)
        attempt = rounds._outcomes["helper"][number]["attempt"]
        taken = load_file(rounds._folder / f"helper-{number}-{attempt}.safetensors")
        assert torch.equal(torch.cat([taken[str(i)].flatten() for i in range(len(SHAPES))]), average)
