"""Real peers as OS processes on uplinks of different rates, which nobody is told; and one that helps, and is killed."""

import pytest
from averager_peers import events_of
from swarm_of_processes import Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

HELPER = "helper"


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
    members = [*upload_mbit, HELPER] if settings.pop("has_helper", False) else list(upload_mbit)
    run = tiny_run(averaging_compression="none", matchmaking_seconds=3.0)
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
