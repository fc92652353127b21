"""The mean of sparse progress: by the plain formula, and equal in every bit whoever computes it."""

import itertools
import math
import statistics

import pytest
import torch
from sparse_progress import CHUNK, SHAPES, K, decoded, made_up

from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.mean import mean, norm_scales, share_to_send_again


@pytest.fixture
def codec():
    return SparseCodec(SHAPES, CHUNK, K)


def payloads_of(codec, scales, num_samples=1):
    return [codec.encode(made_up(seed, scale=scale), num_samples) for seed, scale in enumerate(scales)]


def norm_of(tensors):
    return torch.cat([tensor.double().reshape(-1) for tensor in tensors]).norm().item()


def uneven(codec, num_samples, per_sample=1e-3):
    """Return updates whose progress is as long as their samples say."""
    scales = [per_sample * number for number in num_samples]
    contents = [
        codec.encode(made_up(s, scale=scale), n) for s, (scale, n) in enumerate(zip(scales, num_samples, strict=True))
    ]
    return [codec.decode(content) for content in contents]


def weighted(codec, updates, weights, scales=None):
    """Return the weighted mean of vectors, by the plain formula in float64."""
    total = torch.zeros(codec.layout.num_values, dtype=torch.float64)
    for update, weight, scale in zip(updates, weights, scales or [1.0] * len(updates), strict=True):
        own = torch.zeros(codec.layout.num_values)
        codec.add_to(own, update)
        total += own.double() * scale * weight / sum(weights)
    return total


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).double()


@pytest.mark.parametrize("steps", [[15, 1], [15, 15, 1], [30, 30, 1, 1], [8, 1, 1], [7, 7, 7, 7], [3]])
def test_uneven_peers_come_to_the_mean_by_their_samples(codec, steps):
    updates = uneven(codec, [16 * number for number in steps])
    found = flat(mean(codec, updates, [16.0 * number for number in steps]))
    torch.testing.assert_close(found, weighted(codec, updates, steps), atol=1e-7, rtol=1e-5)


def test_progress_of_few_samples_may_be_as_long_as_its_noise(codec):
    """True progress grows with the samples, noise with their root."""
    lengths, steps = [1e-3 * math.sqrt(n**2 + 9 * n) for n in (16, 16, 1)], [16, 16, 1]
    updates = [codec.decode(codec.encode(made_up(s, scale=scale), 1)) for s, scale in enumerate(lengths)]
    torch.testing.assert_close(flat(mean(codec, updates, steps)), weighted(codec, updates, steps), atol=1e-7, rtol=1e-5)


def test_a_contribution_is_shortened_to_what_the_median_norm_per_sample_allows(codec):
    weights = [1.0, 2.0, 3.0, 1.0, 2.0]
    updates = [codec.decode(own) for own in payloads_of(codec, (1e-3, 2e-3, 3e-3, 50.0, 2.5e-3))]
    per_sample = 1.1 * statistics.median(own.norm / weight for own, weight in zip(updates, weights, strict=True))
    limits = [per_sample * max(weight, math.sqrt(2.0 * weight)) for weight in weights]
    scales = [min(1, limit / own.norm) for limit, own in zip(limits, updates, strict=True)]
    assert [scale < 1 for scale in scales] == [False, False, False, True, True]
    found = flat(mean(codec, updates, weights))
    torch.testing.assert_close(found, weighted(codec, updates, weights, scales), atol=1e-7, rtol=1e-5)


def test_what_was_cut_is_sent_again_but_never_more_than_has_counted():
    assert [share_to_send_again(scale) for scale in (1.0, 0.75, 0.5, 0.25, 0.0)] == [0.0, 0.25, 0.5, 0.25, 0.0]


def test_progress_that_is_always_too_long_does_not_pile_up():
    """A peer three times as long as the others, for ever: what it has in store stays of the length of a round."""
    sent, longest = 0.0, 0.0
    for _ in range(1000):
        sent += 3.0
        scale = norm_scales([1.0, 1.0, sent], [1.0] * 3)[-1]
        sent *= share_to_send_again(scale)
        longest = max(longest, sent)
    assert longest <= 1.1 * 1.0001


def test_norms_are_those_of_what_was_sent(codec):
    for payload in payloads_of(codec, (1e-3, 7.0)):
        assert codec.decode(payload).norm == pytest.approx(norm_of(decoded(codec, payload)), rel=1e-6)


def test_the_lower_of_two_medians_holds_and_zeros_stay_zeros():
    assert norm_scales([1.0, 4.0], [1.0, 1.0]) == [1.0, pytest.approx(1.1 / 4)]
    assert norm_scales([0.0, 0.0, 5.0], [1.0] * 3) == [1.0, 1.0, 0.0]


def test_who_claims_fewer_samples_moves_the_mean_less_and_more_only_as_who_has_made_them():
    def influence(claimed, norm):
        weights = [16.0] * 4 + [claimed]
        return norm_scales([16.0] * 4 + [norm], weights)[-1] * norm * claimed / sum(weights)

    moved = [influence(claimed, 1e6) for claimed in (0.1, 1, 4, 16, 32, 128)]
    assert moved == sorted(moved)
    for claimed in (16, 32, 128):
        honest = influence(claimed, float(claimed))
        assert influence(claimed, 1e6) == pytest.approx(1.1 * honest)


def test_every_order_of_arrival_and_number_of_threads_gives_equal_bits():
    shapes = ((700, 700), (700,))
    codec = SparseCodec(shapes)
    payloads = [codec.encode(made_up(seed, shapes, 10.0**-seed), 1) for seed in range(4)]
    found = set()
    for threads, order in itertools.product((1, 2), itertools.permutations(payloads)):
        torch.set_num_threads(threads)
        numbers = [float(1 + payloads.index(payload)) for payload in order]
        averaged = mean(codec, [codec.decode(payload) for payload in order], numbers)
        found.add(b"".join(tensor.numpy().tobytes() for tensor in averaged))
    torch.set_num_threads(1)
    assert len(found) == 1


def test_the_sum_is_that_of_float32_in_the_order_of_the_digests(codec):
    """One value after another, as the documents say it: what another program has to do for equal bits."""
    updates, weights = [codec.decode(payload) for payload in payloads_of(codec, (1e-3, 2e-3, 5e-3))], [3.0, 1.0, 2.0]
    scales = norm_scales([update.norm for update in updates], weights)
    total = torch.zeros(codec.layout.num_values)
    for update, weight, scale in sorted(zip(updates, weights, scales, strict=True), key=lambda own: own[0].digest):
        level_pairs = zip(update.levels.tolist(), codec.layout.of_tensors(update.codes), strict=True)
        values = [(-1) ** (code & 1) * pair[code >> 1] for pair, codes in level_pairs for code in codes.tolist()]
        for place, value in zip(codec.layout.positions(update.indices), values, strict=True):
            total[place] += torch.tensor(value * (scale * (weight / 6.0)), dtype=torch.float64).float()
    assert all(map(torch.equal, mean(codec, updates, weights), codec.views(total)))


def test_a_huge_contribution_moves_nobody(codec):
    honest = payloads_of(codec, (1e-3, 1e-3))
    hostile = codec.encode(made_up(9, scale=1e8), 1)
    found = mean(codec, [codec.decode(payload) for payload in (*honest, hostile)], [1.0] * 3)
    assert norm_of(found) <= 1.1 * max(codec.decode(payload).norm for payload in honest)
    assert all(math.isfinite(tensor.abs().max()) for tensor in found)


def test_no_update_has_no_mean(codec):
    with pytest.raises(ValueError, match="no sparse updates to average"):
        mean(codec, [], [])
