"""Peers that are simulated all at once send what the codec makes of each one's progress, and move along its mean."""

import pytest
import torch
from many_sparse_peers import LAYOUT, Design, Problem, Swarm, selected

from pipelines.features.sparse.codec import SparseCodec


def test_what_all_peers_send_at_once_is_what_the_codec_makes_of_each():
    codec = SparseCodec(LAYOUT.shapes, LAYOUT.chunk, LAYOUT.k)
    progress = torch.randn(3, LAYOUT.num_values, generator=torch.Generator().manual_seed(0))
    for own, found in zip(progress, selected(progress), strict=True):
        sent = torch.zeros(LAYOUT.num_values)
        codec.add_to(sent, codec.decode(codec.encode(codec.views(own.clone()), 1)))
        torch.testing.assert_close(found, sent)


@pytest.mark.parametrize("left_out", ["takes back", "half", "discards", "less mean"])
def test_what_becomes_of_contributions_that_are_not_drawn_makes_no_difference_where_all_are(left_out):
    ends = []
    for own in ("takes back", left_out):
        swarm = Swarm(Problem(0), Design(peers=3, drawn=3, left_out=own, rate=0.01))
        for _ in range(2):
            swarm.round(1.0)
        ends.append(swarm.shared)
    assert torch.equal(*ends)
