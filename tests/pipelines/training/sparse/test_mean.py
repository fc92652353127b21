"""The mean of sparse progress: by the plain formula, and equal in every bit whoever computes it."""

import itertools
import math
import statistics

import pytest
import torch
from sparse_progress import CHUNK, SHAPES, K, decoded, made_up

from pipelines.training.sparse.codec import SparseCodec
from pipelines.training.sparse.mean import mean, norm_scales


@pytest.fixture
def codec():
    return SparseCodec(SHAPES, CHUNK, K)


def payloads_of(codec, scales):
    return [codec.encode(made_up(seed, scale=scale)) for seed, scale in enumerate(scales)]


def norm_of(tensors):
    return torch.cat([tensor.double().reshape(-1) for tensor in tensors]).norm().item()


def test_it_is_the_mean_of_contributions_of_at_most_the_median_norm(codec):
    payloads = payloads_of(codec, (1e-3, 2e-3, 3e-3, 50.0, 2.5e-3))
    dense = [decoded(codec, payload) for payload in payloads]
    median = statistics.median([norm_of(tensors) for tensors in dense])
    found = mean(codec, [codec.decode(payload) for payload in payloads])
    for number, shape in enumerate(SHAPES):
        scaled = [own[number].double() * min(1, median / norm_of(own)) for own in dense]
        assert found[number].shape == shape
        torch.testing.assert_close(found[number].double(), sum(scaled) / 5, atol=1e-9, rtol=1e-5)


def test_norms_are_those_of_what_was_sent(codec):
    for payload in payloads_of(codec, (1e-3, 7.0)):
        assert codec.decode(payload).norm == pytest.approx(norm_of(decoded(codec, payload)), rel=1e-6)


def test_the_lower_of_two_medians_holds_and_zeros_stay_zeros():
    assert norm_scales([1.0, 4.0]) == [1.0, 0.25]
    assert norm_scales([0.0, 0.0, 5.0]) == [1.0, 1.0, 0.0]


def test_every_order_of_arrival_and_number_of_threads_gives_equal_bits():
    shapes = ((700, 700), (700,))
    codec = SparseCodec(shapes)
    payloads = [codec.encode(made_up(seed, shapes, 10.0**-seed)) for seed in range(4)]
    found = set()
    for threads, order in itertools.product((1, 2), itertools.permutations(payloads)):
        torch.set_num_threads(threads)
        averaged = mean(codec, [codec.decode(payload) for payload in order])
        found.add(b"".join(tensor.numpy().tobytes() for tensor in averaged))
    torch.set_num_threads(1)
    assert len(found) == 1


def test_the_sum_is_that_of_float32_in_the_order_of_the_digests(codec):
    """One value after another, as the documents say it: what another program has to do for equal bits."""
    updates = [codec.decode(payload) for payload in payloads_of(codec, (1e-3, 2e-3, 5e-3))]
    scales = norm_scales([update.norm for update in updates])
    total = torch.zeros(codec.layout.num_values)
    for update, scale in sorted(zip(updates, scales, strict=True), key=lambda pair: pair[0].digest):
        level_pairs = zip(update.levels.tolist(), codec.layout.of_tensors(update.codes), strict=True)
        values = [(-1) ** (code & 1) * pair[code >> 1] for pair, codes in level_pairs for code in codes.tolist()]
        for place, value in zip(codec.layout.positions(update.indices), values, strict=True):
            total[place] += torch.tensor(value * scale, dtype=torch.float64).float()
    expected = [tensor / torch.tensor(3.0) for tensor in codec.views(total)]
    assert all(map(torch.equal, mean(codec, updates), expected))


def test_a_huge_contribution_moves_nobody(codec):
    honest = payloads_of(codec, (1e-3, 1e-3))
    hostile = codec.encode(made_up(9, scale=1e8))
    found = mean(codec, [codec.decode(payload) for payload in (*honest, hostile)])
    assert norm_of(found) <= 1.01 * max(codec.decode(payload).norm for payload in honest)
    assert all(math.isfinite(tensor.abs().max()) for tensor in found)


def test_no_update_has_no_mean(codec):
    with pytest.raises(ValueError, match="no sparse updates to average"):
        mean(codec, [])
