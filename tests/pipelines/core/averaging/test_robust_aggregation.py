"""What a group of vectors comes to: exact for honest peers, steered by no minority, never nan."""

import math

import numpy
import pytest
import torch

from pipelines.core.averaging.reduce.robust_aggregation import (
    MIN_FOR_A_MAJORITY,
    AggregationRule,
    aggregate,
    bounded_weights,
    coordinate_median,
    excess_weights,
)

NUM_ELEMENTS = 3000
CENTERED_CLIP, MEAN, MEDIAN = (AggregationRule(name=name) for name in ("centered_clip", "mean", "coordinate_median"))
RULES = [CENTERED_CLIP, MEAN, MEDIAN]


def honest(num_peers, noise=0.3, seed=0, samples=None):
    """Vectors of one direction with every peer's sampling noise, which falls with the root of its samples."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.ones(num_peers) if samples is None else torch.tensor(samples)
    signal = torch.randn(NUM_ELEMENTS, generator=generator)
    return signal + noise * torch.randn(num_peers, NUM_ELEMENTS, generator=generator) / samples.sqrt()[:, None]


def weighted_mean(inputs, weights):
    return sum(weight * row for weight, row in zip(weights, inputs, strict=True)) / sum(weights)


def distance(values, expected):
    return float((values - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_peers", [1, 2, 3, 4, 9, 16])
def test_the_median_of_every_coordinate_is_numpys(num_peers):
    inputs = honest(num_peers)
    expected = torch.from_numpy(numpy.median(inputs.numpy(), axis=0))
    torch.testing.assert_close(coordinate_median(inputs), expected)


@pytest.mark.parametrize("rule", [CENTERED_CLIP, MEAN], ids=lambda rule: rule.name)
@pytest.mark.parametrize("weights", [[1.0], [7.0, 3.0], [999.0, 1.0], [4.0] * 5, [64.0, 32.0, 8.0, 16.0], [1.0, 0, 2]])
def test_honest_peers_come_to_their_weighted_mean_however_uneven_they_are(rule, weights):
    inputs = honest(len(weights), noise=1.0, samples=[max(weight, 1.0) for weight in weights])
    result = aggregate(inputs, weights, rule)
    torch.testing.assert_close(result.values, weighted_mean(inputs, weights), rtol=1e-5, atol=1e-5)
    assert max(result.excess) <= 1


ATTACKS = {
    "sign flip": lambda rows: -1000 * rows.mean(0),
    "constant direction": lambda rows: torch.full((NUM_ELEMENTS,), 50.0),
    "another gradient": lambda rows: torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(99)),
    "huge": lambda rows: torch.full((NUM_ELEMENTS,), 3e38),
}


@pytest.mark.parametrize("rule", [CENTERED_CLIP, MEDIAN], ids=lambda rule: rule.name)
@pytest.mark.parametrize("attack", ATTACKS)
def test_one_attacker_of_five_moves_the_result_by_less_than_a_fifth_and_stands_out(rule, attack):
    rows = honest(4, noise=0.2)
    result = aggregate(torch.cat([rows, ATTACKS[attack](rows)[None]]), [1.0] * 5, rule)
    assert distance(result.values, rows.mean(0)) < 0.2
    assert result.excess[4] > 2 > max(result.excess[:4])


def test_the_plain_mean_would_not_survive_what_centered_clip_survives():
    rows = honest(4)
    inputs = torch.cat([rows, ATTACKS["sign flip"](rows)[None]])
    assert distance(inputs.mean(0), rows.mean(0)) > 100
    limited = aggregate(inputs, [1.0] * 5, MEAN)
    assert distance(limited.values, rows.mean(0)) < 1 + MEAN.max_norm_ratio / 5
    assert limited.excess[4] > 2


def test_seven_of_sixteen_who_are_far_off_have_no_say_at_all():
    rows = honest(9)
    result = aggregate(torch.cat([rows, -3 * rows[:7]]), [1.0] * 16, CENTERED_CLIP)
    torch.testing.assert_close(result.values, rows.mean(0), rtol=1e-4, atol=1e-4)
    assert min(result.excess[9:]) > 2 > max(result.excess[:9])


def test_seven_of_sixteen_who_draw_the_median_towards_them_stay_far_from_most_and_are_left_out():
    """Where gradients are all noise, the honest are hardly nearer to the median than those who send -10 their mean."""
    rows = honest(9) - honest(1, noise=0.0)
    result = aggregate(torch.cat([rows, -10 * rows.mean(0).repeat(7, 1)]), [1.0] * 16, AggregationRule(tau_ratio=1.0))
    torch.testing.assert_close(result.values, rows.mean(0), rtol=1e-4, atol=1e-4)
    assert min(result.excess[9:]) > 2 > max(result.excess[:9])


def near_attack():
    """Nine honest peers and seven that stand together just beyond tau, so that they are clipped and not left out."""
    rows = honest(9)
    typical_distance = (rows - coordinate_median(rows)).norm(dim=1).median()
    direction = rows.mean(0) / rows.mean(0).norm()
    return rows, torch.cat([rows, (rows.mean(0) - 5 * typical_distance * direction).repeat(7, 1)])


def test_seven_of_sixteen_who_stand_near_pull_by_no_more_than_their_share_times_tau():
    rows, inputs = near_attack()
    result = aggregate(inputs, [1.0] * 16, CENTERED_CLIP)
    tau = CENTERED_CLIP.tau_ratio * (inputs - coordinate_median(inputs)).norm(dim=1).sort().values[7:9].mean()
    assert 1 < result.excess[9] < 2, "the attack is of the kind that this test is about"
    assert (result.values - rows.mean(0)).norm() <= 1.01 * 7 / 9 * tau


def test_centered_clip_ends_where_the_plain_formula_does():
    _, inputs = near_attack()
    centre = coordinate_median(inputs)
    tau = CENTERED_CLIP.tau_ratio * (inputs - centre).norm(dim=1).sort().values[7:9].mean()
    for _ in range(200):
        offsets = inputs - centre
        centre = centre + (offsets * (tau / offsets.norm(dim=1)).clamp(max=1)[:, None]).mean(0)
    result = aggregate(inputs, [1.0] * 16, CENTERED_CLIP)
    assert distance(result.values, centre) < 1e-4


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("num_peers", range(1, 5))
def test_weights_that_are_all_zero_count_alike_and_never_give_nan(rule, num_peers):
    inputs = honest(num_peers)
    result = aggregate(inputs, [0.0] * num_peers, rule)
    expected = coordinate_median(inputs) if rule is MEDIAN and num_peers >= MIN_FOR_A_MAJORITY else inputs.mean(0)
    torch.testing.assert_close(result.values, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_vectors_of_zeros_stay_zeros(rule):
    result = aggregate(torch.zeros(4, NUM_ELEMENTS), [1.0] * 4, rule)
    assert not result.values.any()
    assert max(result.excess) <= 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_peer_without_weight_is_judged_but_has_no_say(rule):
    rows = honest(4)
    expected = aggregate(rows, [1.0] * 4, rule).values
    result = aggregate(torch.cat([rows, -1000 * rows[:1]]), [1.0, 1.0, 1.0, 1.0, 0.0], rule)
    torch.testing.assert_close(result.values, expected)
    assert result.excess[4] > 2


@pytest.mark.parametrize("weights", [[1, 1, 4], [4, 4, 1000]])
def test_three_that_share_neither_length_nor_direction_have_an_average_all_the_same(weights):
    """Seen in a swarm: a newcomer's gradient was much longer, all three were left out, and the round broke off."""
    inputs = torch.tensor([[4.716, -2.125, 2.712, 3.235], [0.008, -0.002, 0.013, -0.006], [120.1, 55.3, -283.8, 26.0]])
    result = aggregate(inputs, weights, CENTERED_CLIP)
    assert torch.isfinite(result.values).all() and result.values.norm() < 2 * inputs.norm(dim=1).max()


def test_a_tiny_declared_weight_buys_no_influence():
    rows = honest(4, noise=0.2)
    attack = -1000 * rows.mean(0)[None]
    for weight in (1e-30, 1e-6, 1e-3, 0.1, 1.0):
        result = aggregate(torch.cat([rows, attack]), [1.0] * 4 + [weight], CENTERED_CLIP)
        assert distance(result.values, rows.mean(0)) < 0.2


def test_parameters_that_most_peers_hold_in_every_bit_stay_what_they_are():
    parameters = honest(1)[0]
    strayed = parameters + 0.01 * honest(1, seed=5)[0]
    result = aggregate(torch.stack([parameters, strayed, parameters, parameters]), [1.0] * 4, CENTERED_CLIP)
    torch.testing.assert_close(result.values, parameters, rtol=0, atol=1e-5)
    rounded = aggregate(torch.stack([parameters, parameters * (1 + 1e-7), parameters]), [1.0] * 3, CENTERED_CLIP)
    assert max(rounded.excess) <= 1, "rounding is no offence"


def test_inputs_are_left_alone():
    inputs = torch.cat([honest(4), 1000 * honest(1)])
    before = inputs.clone()
    for rule in RULES:
        aggregate(inputs, [1.0] * 5, rule)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize(
    ("declared", "recorded", "expected"),
    [
        (dict(a=7.0, b=3.0), {}, dict(a=7.0, b=3.0)),
        (dict(a=7.0, b=3.0), dict(a=16.0, b=8.0), dict(a=7.0, b=3.0)),
        (dict(a=10.0, b=10.0, c=1e9), dict(a=12.0, b=12.0, c=12.0), dict(a=10.0, b=10.0, c=12.0)),
        (dict(a=10.0, b=10.0, c=1e9), dict(a=12.0, b=12.0), dict(a=10.0, b=10.0, c=10.0)),
        (dict(a=10.0, b=10.0, c=1e9), dict(a=12.0, b=12.0, c=1e9), dict(a=10.0, b=10.0, c=80.0)),
        (dict(a=10.0, b=10.0, c=1e9), {}, dict(a=10.0, b=10.0, c=80.0)),
        (dict(a=10.0, b=10.0, c=10.0), dict(a=0.0), dict(a=10.0, b=10.0, c=10.0)),
        (dict(a=0.0, b=0.0), dict(a=5.0), dict(a=0.0, b=0.0)),
        (dict(a=0.0, b=4.0), {}, dict(a=0.0, b=4.0)),
    ],
    ids=[
        "no records", "honest", "lie", "lie without a record", "lie with a lying record", "lie and no records",
        "an outdated record does no harm below the median", "no weights", "one weight",
    ],
)  # fmt: skip
def test_declared_weights_are_bounded_by_records_and_by_the_others(declared, recorded, expected):
    assert bounded_weights(declared, recorded, max_ratio=8.0) == expected


def test_a_stranger_with_many_samples_weighs_as_the_median_peer_and_is_not_named_for_it():
    declared, recorded = dict(a=10.0, b=10.0, stranger=60.0), dict(a=12.0, b=12.0)
    weights = bounded_weights(declared, recorded, max_ratio=8.0)
    assert weights["stranger"] == 10.0
    assert not excess_weights(declared, weights, recorded)
    assert excess_weights(declared, weights, recorded | dict(stranger=12.0)) == {"stranger"}
    assert excess_weights(dict(a=1.0, b=1.0, c=20.0), dict(a=1.0, b=1.0, c=8.0), {}) == {"c"}, (
        "of nobody is there a record"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="best"), "aggregation_rule is 'best'; expected one of centered_clip, mean, coordinate_median"),
        (dict(tau_ratio=0.5), "tau_ratio is 0.5; expected a number of at least 1"),
        (dict(max_norm_ratio=math.nan), "max_norm_ratio is nan"),
        (dict(max_weight_ratio=math.inf), "max_weight_ratio is inf"),
        (dict(num_iterations=0), "num_iterations is 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AggregationRule(**settings)
