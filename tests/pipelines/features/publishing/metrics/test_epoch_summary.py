"""What a swarm's records say of an epoch, and when it is to be published."""

import pytest

from pipelines.core.swarm.peer_records import SuspectRecord
from pipelines.features.publishing.metrics.epoch_summary import (
    EpochSummary,
    credible_epoch,
    should_publish,
    summarise_epoch,
)


class Peer:
    """The figures of one peer."""

    def __init__(self, epoch, loss, speed=1.0, share=1.0):
        self.epoch, self.loss, self.samples_per_second, self.share_averaged = epoch, loss, speed, share
        self.num_samples, self.bytes_sent, self.num_rounds, self.round_seconds = 10, 100, epoch, 0.5 * epoch
        self.num_refused_gradients = 1
        self.suspects = []


def test_an_epochs_loss_is_weighted_by_speed_over_the_peers_that_report_it():
    peers = [Peer(5, 1.0, speed=3.0), Peer(5, 2.0, speed=1.0, share=0.7), Peer(4, 100.0, speed=6.0), Peer(0, 9.0)]
    summary = summarise_epoch(peers, time=12.0)
    assert summary == EpochSummary(
        epoch=5, loss=1.25, num_peers=3, samples_per_second=10.0, share_averaged=0.7, bytes_sent=300, num_rounds=5,
        round_seconds=2.5, time=12.0, epoch_seconds=0.0, num_refused_gradients=3, suspects={},
    )  # fmt: skip
    assert summarise_epoch([Peer(0, 9.0)], time=1.0) is None and summarise_epoch([], time=1.0) is None
    assert summarise_epoch([Peer(1, 3.0, speed=0.0)], time=1.0)["loss"] == 3.0


def test_a_summary_counts_by_how_many_peers_each_suspect_is_named():
    peers = [Peer(5, 1.0) for _ in range(3)]
    for peer, names in zip(peers, (["Qm1", "Qm1", "Qm2"], ["Qm1"], []), strict=True):
        peer.suspects = [
            SuspectRecord(peer_id=name, offence=offence, num_rounds=1)
            for name, offence in zip(names, ("CLIPPED", "NOT_FINITE", "CLIPPED"), strict=False)
        ]
    assert summarise_epoch(peers, time=1.0)["suspects"] == {"Qm1": 2, "Qm2": 1}


@pytest.mark.parametrize(
    ("claimed", "held", "epoch"),
    [
        ([], 7, None),
        ([5, 5, 4], 0, 5),
        ([5, 10**9], 0, 5),
        ([5, 6, 10**9, 10**9], 5, 6),
        ([10**9], 5, 10**9),
        ([7, 9], 0, 9),
        ([4, 4], 9, 4),
    ],
)
def test_an_epoch_counts_when_half_of_the_peers_or_the_own_state_have_come_near_it(claimed, held, epoch):
    assert credible_epoch(claimed, held) == epoch


def test_a_liar_among_three_moves_neither_loss_nor_speed_far():
    honest = [Peer(5, 1.0, speed=2.0), Peer(5, 1.1, speed=2.0)]
    for liar in (Peer(10**6, 1e30), Peer(5, 1e30, speed=1.0), Peer(5, 1.0, speed=1e12)):
        summary = summarise_epoch([*honest, liar], time=1.0)
        assert summary["epoch"] == 5 and summary["loss"] < 1.2 and summary["samples_per_second"] <= 4 + 40


@pytest.mark.parametrize(
    ("held", "published", "is_due"), [(0, 0, False), (9, 0, False), (10, 0, True), (15, 10, False), (20, 10, True),
                                      (99, 98, False), (100, 98, True), (100, 100, False), (50, 60, False)]
)  # fmt: skip
def test_a_checkpoint_is_due_every_interval_and_at_the_end(held, published, is_due):
    assert should_publish(held_epoch=held, published_epoch=published, interval=10, last_epoch=100) is is_due
