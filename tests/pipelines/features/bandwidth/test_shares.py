"""The shares that follow from links: as short a round as the linear programme's, and bounded for the unproven."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from pipelines.core.averaging.division import Link
from pipelines.features.bandwidth.shares import Member, divided, duration_of, shares_of


def node(rate: float, down: float | None = None, *, is_proven: bool = True) -> Member:
    return Member(sends=True, reduces=True, link=Link(up=rate, down=down or rate), is_proven=is_proven)


def helper(rate: float, *, is_proven: bool = True) -> Member:
    return Member(sends=False, reduces=True, link=Link(up=rate, down=rate), is_proven=is_proven)


CLIENT = Member(sends=True, reduces=False, link=Link(up=10, down=10))
LISTENER = Member(sends=False, reduces=False, link=Link(up=10, down=10))


def shortest_duration(members: list[Member]) -> float:
    """The duration by the linear programme as it is in the paper, with the loads written out once more."""
    n, s = len(members), sum(member.sends for member in members)
    rows, bounds = [], []
    for index, member in enumerate(members):
        if not (member.sends or member.reduces):
            continue
        up_of_own_vector, up_of_answers = (1 if member.sends else 0), n - 1
        down_of_answers, down_of_parts = 1, (s - 1 if member.sends else s)
        for own, each, rate in (
            (up_of_own_vector, up_of_answers - up_of_own_vector, member.link.up),
            (down_of_answers, down_of_parts - down_of_answers, member.link.down),
        ):
            row = np.zeros(n + 1)
            row[index], row[n] = each / rate, -1.0
            rows.append(row)
            bounds.append(-own / rate)
    limits = [(0, 1 if member.reduces else 0) for member in members] + [(0, None)]
    solved = linprog(
        [0] * n + [1], A_ub=np.array(rows), b_ub=bounds, A_eq=[[1] * n + [0]], b_eq=[1], bounds=limits, method="highs"
    )
    assert solved.success
    return float(solved.fun)


def test_rounds_are_as_short_as_those_of_the_linear_programme():
    generator = random.Random(7)
    for _ in range(200):
        members = [node(generator.uniform(5, 200), generator.uniform(5, 200)) for _ in range(generator.randint(2, 9))]
        members += [CLIENT] * generator.randint(0, 2)
        shares = shares_of(members)
        assert sum(shares) == pytest.approx(1)
        # What is too small to be worth the streams goes to the others, and costs them next to nothing.
        assert duration_of(members, shares) <= shortest_duration(members) * 1.05


def test_equal_links_reduce_equal_shares_and_clients_and_listeners_nothing():
    assert shares_of([node(10)] * 4) == (0.25,) * 4
    assert shares_of([node(10), CLIENT, node(10), LISTENER]) == (0.5, 0, 0.5, 0)
    assert shares_of([node(10), node(10)]) == (0.5, 0.5)


def test_a_slow_link_that_is_the_bottleneck_reduces_nothing_and_the_others_share_evenly():
    shares = shares_of([node(100), node(100), node(10), node(100)])
    assert shares[2] == 0
    assert shares[0] == shares[1] == shares[3] == pytest.approx(1 / 3)
    equal = duration_of([node(100)] * 3 + [node(10)], (0.25,) * 4)
    assert equal / duration_of([node(100)] * 3 + [node(10)], (*[1 / 3] * 3, 0)) == pytest.approx(1.5)


def test_a_fast_helper_reduces_everything_for_slow_uplinks():
    shares = shares_of([node(15)] * 4 + [helper(1000)])
    assert shares == (0, 0, 0, 0, 1)


def test_unproven_members_together_reduce_at_most_their_equal_share():
    members = [node(10), node(10), node(90_000, is_proven=False), helper(90_000, is_proven=False)]
    shares = shares_of(members)
    assert shares[2] + shares[3] == pytest.approx(0.5)
    assert shares[0] == shares[1] == pytest.approx(0.25)


def test_an_unproven_member_may_be_slow_at_once():
    assert shares_of([node(100), node(100), node(1, is_proven=False), node(100)])[2] == 0


@pytest.mark.parametrize("rate", [0.0, -5.0, 1e30, 1e-30, math.inf])
def test_no_link_can_break_the_division(rate):
    shares = shares_of([node(10), node(rate, 10), node(10)])
    assert sum(shares) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares)


def test_a_group_in_which_nobody_can_reduce_is_refused():
    with pytest.raises(ValueError, match="Nobody in the group can reduce"):
        shares_of([CLIENT, LISTENER])


def test_all_values_of_the_vector_are_divided_and_none_goes_to_a_share_of_zero():
    generator = random.Random(3)
    for _ in range(100):
        shares = shares_of([node(generator.uniform(1, 100)) for _ in range(generator.randint(2, 8))] + [CLIENT])
        size = generator.randint(1, 10_000_000)
        parts = divided(size, shares)
        assert sum(parts) == size
        assert all(part == pytest.approx(size * share, abs=2) for part, share in zip(parts, shares, strict=True))
        assert all(part == 0 for part, share in zip(parts, shares, strict=True) if not share)


def test_a_newcomer_reduces_nothing_beside_a_majority_that_was_seen_to_deliver():
    seen = [replace(node(10.0), seen_mbit=5.0)] * 3
    newcomer = node(100.0)
    assert shares_of([*seen, newcomer]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    crowd = shares_of([*seen, *[node(10.0)] * 3])
    assert crowd == pytest.approx([1 / 6] * 6), "too few were seen to do all of the work"
