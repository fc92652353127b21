"""Real peers as OS processes on uplinks of different rates, which nobody is told; some come late, some are killed."""

import pytest
from averager_peers import events_of
from swarm_of_processes import Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

HELPER, ANCHOR = "helper", "anchor"


class LinkRounds:
    """What the members of a group have written down, by round."""

    def __init__(self, folder, members):
        self.ids = {name: events_of(folder, name, "ready")[0]["peer_id"] for name in members}
        self.averaged = {name: events_of(folder, name, "averaged") for name in members}
        self._divisions = {name: events_of(folder, name, "shares") for name in members}

    def shares(self, name):
        """How much each member has reduced in the rounds of one of them, in order, as parts of the vector."""
        rounds = self._divisions[name]
        return [
            {other: one["shares"].get(peer, 0) / sum(one["shares"].values()) for other, peer in self.ids.items()}
            for one in rounds
        ]

    def by_group(self):
        """Each group's division as its members have seen it."""
        groups = {}
        for events in self._divisions.values():
            for event in events:
                groups.setdefault(event["group"], []).append(event["shares"])
        return groups


def run_swarm(folder, upload_mbit, *, num_rounds, **settings):
    members = [*upload_mbit, *[name for name in (HELPER, ANCHOR) if settings.pop(f"has_{name}", False)]]
    run = tiny_run(averaging_compression="none", matchmaking_seconds=settings.pop("matchmaking_seconds", 3.0))
    with Swarm(folder, run, num_peers=len(members)) as swarm:
        starter = swarm.start(
            "starter", program="link_peers.py", members=members, upload_mbit=upload_mbit, num_rounds=num_rounds,
            **settings,
        )  # fmt: skip
        starter.wait_for("finished", seconds=500)
    return LinkRounds(folder, members)


def test_a_slow_uplink_is_measured_and_given_less_to_reduce(tmp_path):
    rounds = run_swarm(tmp_path, dict(first=200, second=200, third=200, slow=5), num_rounds=4)
    shares = rounds.shares("first")
    assert shares[0] == pytest.approx(dict(first=0.25, second=0.25, third=0.25, slow=0.25), abs=0.05)
    measured = [share["slow"] for share in shares[1:]]
    assert sum(measured) / len(measured) < 0.75 * 0.25, "a busy machine disturbs single rounds"
    for name in rounds.ids:
        last = rounds.averaged[name][-1]
        assert last["multiple"] == pytest.approx(2.5, rel=1e-4)
        assert last["share_averaged"] == 1.0
        assert [one["digest"] for one in rounds.averaged[name]] == [one["digest"] for one in rounds.averaged["first"]]
    assert rounds.averaged["slow"][-1]["up_mbit"] < 50
    assert all(division == divisions[0] for divisions in rounds.by_group().values() for division in divisions)


@pytest.mark.long
def test_a_helper_offers_its_link_and_when_it_is_killed_the_group_averages_without_it(tmp_path):
    rounds = run_swarm(tmp_path, dict(first=5, second=5, third=5), num_rounds=6, has_helper=True, dies=True)
    helped = [share[HELPER] for share in rounds.shares("first")]
    assert helped[0] == 0
    assert max(helped) > 0.1
    assert helped[-1] == 0
    for name in ("first", "second", "third"):
        assert [one["multiple"] for one in rounds.averaged[name]] == pytest.approx([2.0] * 6, rel=1e-4)
        assert [one["digest"] for one in rounds.averaged[name]] == [one["digest"] for one in rounds.averaged["first"]]
        assert sum(one["num_incomplete"] for one in rounds.averaged[name]) <= 1


@pytest.mark.long
def test_a_slow_newcomer_is_in_every_round_from_the_second_on_also_after_a_break(
    tmp_path,
):
    rounds_of = dict(slow=[1, 2, 4])
    rounds = run_swarm(
        tmp_path, dict(first=40, slow=3), num_rounds=5, has_anchor=True, rounds_of=rounds_of, matchmaking_seconds=1.0,
        step_seconds=25.0,
    )  # fmt: skip
    vector_mbit = 2**19 * 4 * 8 / 1e6
    for name in ("first", "slow", "anchor"):
        by_number = {one["number"]: one for one in rounds.averaged[name]}
        for number in (2, 4):
            assert by_number[number]["failure"] == ""
            assert by_number[number]["multiple"] == pytest.approx(1.5, rel=1e-5), (name, number)
            assert by_number[number]["num_attempts"] == 1
        assert by_number[2]["seconds"] < 3 * vector_mbit / 3


@pytest.mark.long
def test_who_is_too_slow_for_any_round_does_not_stall_the_others(tmp_path):
    rounds = run_swarm(
        tmp_path, dict(first=40, second=40, third=40, slow=0.1), num_rounds=5, rounds_of=dict(slow=[2, 3]),
        step_seconds=15.0,
    )  # fmt: skip
    for name in ("first", "second", "third"):
        assert [one["multiple"] for one in rounds.averaged[name]] == pytest.approx([2.0] * 5, rel=1e-5)
        assert sum(one["num_attempts"] for one in rounds.averaged[name]) <= 5 + 2, "it is left out of later rounds"
