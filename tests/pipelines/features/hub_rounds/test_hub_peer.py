"""What a peer over the Hub does with its gradients around a round."""

import time
from types import SimpleNamespace

import torch
from swarm_of_processes import tiny_run

from pipelines.core.run.compute_options import ComputeOptions
from pipelines.features.hub_rounds.peer import HubPeer
from pipelines.features.hub_rounds.stepping import ReplayedState

RUN = tiny_run(
    local_steps=4, synchronisation="sparse", aggregation_rule="mean", outer_momentum=0, sparse_error_decay=1.0
)


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def add(peer, value, num_samples):
    for parameter in peer.state.model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    peer._gathering.add(num_samples, peer.epoch)
    peer._samples_of_round += num_samples


def test_what_was_offered_to_a_round_is_no_part_of_the_next_gradient():
    offers = []
    peer = HubPeer(
        RUN, ReplayedState(RUN, torch.nn.Linear(64, 32)), None,
        SimpleNamespace(files=SimpleNamespace(clock=time.time)),
        SimpleNamespace(begin=lambda terms, deadline, offer, on_closed: offers.append(offer)),
        user="alice", device="cpu", package_version="0", limits=ComputeOptions(), fetch_checkpoint=lambda: None,
    )  # fmt: skip
    try:
        for _ in range(RUN.local_steps):
            add(peer, 1.0, RUN.inner_batch_size)
        peer._offer(deadline=0.0)
        assert offers[0].pointer.samples == RUN.local_steps * RUN.inner_batch_size
        before = values(peer.state.model)
        add(peer, 0.0, 1)  # far fewer samples than an inner step takes
        assert all(map(torch.equal, values(peer.state.model), before))
    finally:
        peer.state.close()
