"""Exponential means of gradients: what a peer would send, and with which weight, epoch after epoch."""

import pytest
import torch

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.epoch.gathering import GradientSum

MOMENTUM = 0.8


class Peer:
    """A peer's gradients; what it has loaded is what it would send."""

    def __init__(self, momentum=MOMENTUM):
        self.parameter = torch.nn.Parameter(torch.zeros(3))
        self.sum = GradientSum([self.parameter], momentum)

    def gather(self, value, num_samples):
        self.parameter.grad = torch.full((3,), float(value))
        self.sum.add(num_samples)

    def load(self):
        sent = torch.full((3,), 7.0)  # of an earlier round
        self.sum.load([sent])
        return sent[0].item()

    def end_epoch(self):
        sent = self.load()
        self.sum.end_epoch()
        return sent


def test_a_constant_gradient_is_sent_as_it_is_from_the_first_epoch_on():
    peer = Peer()
    for num_samples in (4, 1, 7):
        peer.gather(2.5, num_samples)
        assert peer.end_epoch() == pytest.approx(2.5)


def test_earlier_gradients_count_by_their_samples_and_their_age():
    """Micro-batches of other sizes, too: whatever the first one's was, samples count alike."""
    peer = Peer()
    peer.gather(1.0, 4)
    assert peer.end_epoch() == pytest.approx(1.0)
    peer.gather(3.0, 2)
    peer.gather(6.0, 1)
    sums, samples = MOMENTUM * 4 * 1.0 + 2 * 3.0 + 6.0, MOMENTUM * 4 + 3
    assert peer.sum.weight == pytest.approx((1 - MOMENTUM) * samples)
    assert peer.end_epoch() == pytest.approx(sums / samples)
    peer.gather(-1.0, 5)
    assert peer.end_epoch() == pytest.approx((MOMENTUM * sums - 5.0) / (MOMENTUM * samples + 5))


def test_micro_batches_of_unlike_weights_count_by_their_weights_without_momentum_too():
    peer = Peer(momentum=0.0)
    for gradient, weight in ((1.0, 4), (3.0, 2), (6.0, 1)):
        peer.gather(gradient, weight)
    assert peer.sum.weight == 7
    assert peer.end_epoch() == pytest.approx((4 * 1.0 + 2 * 3.0 + 1 * 6.0) / 7)


def test_a_round_that_was_not_had_leaves_no_trace():
    peer, undisturbed = Peer(), Peer()
    for one in (peer, undisturbed):
        one.gather(1.0, 4)
        one.end_epoch()
        one.gather(3.0, 2)
    peer.load()
    for one in (peer, undisturbed):
        one.gather(5.0, 1)
    assert peer.end_epoch() == undisturbed.end_epoch()


def test_a_peer_without_a_new_gradient_has_no_say_and_keeps_what_it_had():
    peer = Peer()
    peer.gather(1.0, 4)
    peer.end_epoch()
    assert peer.sum.weight == 0
    assert peer.end_epoch() == 0
    peer.gather(3.0, 2)
    assert peer.end_epoch() == pytest.approx((MOMENTUM**2 * 4 * 1.0 + 2 * 3.0) / (MOMENTUM**2 * 4 + 2))


def test_a_state_from_outside_begins_without_momentum():
    peer = Peer()
    peer.gather(1.0, 4)
    peer.end_epoch()
    peer.sum.reset()
    peer.gather(3.0, 2)
    assert peer.sum.weight == pytest.approx((1 - MOMENTUM) * 2)
    assert peer.end_epoch() == pytest.approx(3.0)


def test_without_momentum_nothing_is_left_of_an_epoch():
    peer = Peer(momentum=0.0)
    peer.gather(1.0, 4)
    peer.end_epoch()
    peer.gather(3.0, 4)
    assert peer.end_epoch() == pytest.approx(3.0)


def test_a_parameter_without_a_gradient_counts_as_one_of_zeros():
    used, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    total, sent = GradientSum([used, unused]), [torch.ones(2), torch.ones(2)]
    used.grad = torch.full((2,), 3.0)
    total.add(4)
    total.load(sent)
    assert [tensor.tolist() for tensor in sent] == [[3.0, 3.0], [0.0, 0.0]]


def test_weights_that_records_make_plausible_change_as_slowly_as_the_weights_do(dht):
    """A fast peer that has computed little in this epoch still weighs by its mean, and is no suspect for it."""
    averager = SwarmAverager(
        [torch.zeros(3)], dht=dht, admission=None, prefix="momentum", start=False, min_matchmaking_time=1.0,
        weight_momentum=MOMENTUM,
    )  # fmt: skip
    averager.expect_samples({b"fast": 100.0, b"slow": 10.0})
    averager.expect_samples({b"fast": 10.0, b"new": 5.0})
    assert averager._expected_weights == pytest.approx({b"fast": MOMENTUM * 100 + (1 - MOMENTUM) * 10, b"new": 5.0})
