"""The same contributions lead to the same state over either wire, in every bit."""

import asyncio
import contextlib
import hashlib
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hub_round_parts import tiny_model
from swarm_of_processes import tiny_run

from pipelines.core.admission.averaging_gate import GroupSignatures
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.epoch.assembly import step_along_averaged_gradients
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.state.training_state import TrainingState
from pipelines.features.hub_rounds.closing import drawn_order
from pipelines.features.hub_rounds.stepping import ReplayedState
from pipelines.features.sparse.announcement import Announcement
from pipelines.features.sparse.contribution_cache import ContributionCache
from pipelines.features.sparse.round import ContributionRound, ContributionTerms

RUN = tiny_run(
    local_steps=4, synchronisation="sparse", aggregation_rule="mean", outer_momentum=0, outer_learning_rate=0.7
)
SAMPLES = (64, 48, 64, 20_000, 8)
SCALES = (1e-3, 2e-3, 5e-2, 1e-3, 1e-3)
"""One is far too long, and one of far too many samples."""


def contributions(codec, number):
    found = []
    for member, (samples, scale) in enumerate(zip(SAMPLES, SCALES, strict=True)):
        generator = torch.Generator().manual_seed(100 * number + member)
        found.append(codec.encode([scale * torch.randn(s, generator=generator) for s in codec.layout.shapes], samples))
    return found


def peer_to_peer_mean(codec, contents):
    """Write into new tensors what a member of a group takes from its round, every contribution being there."""
    cache = ContributionCache(range(codec.least_bytes, codec.most_bytes + 1))
    cache.begin_round(1)
    announced = {f"peer{number}": Announcement.of(content, {}) for number, content in enumerate(contents)}
    for announcement, content in zip(announced.values(), contents, strict=True):
        cache.put(announcement.digest, content, 1)
    terms = ContributionTerms(
        peer_id="peer0", epoch=1, modes=dict.fromkeys(announced, AveragingMode.NODE), announced=announced, seconds=9.0,
        max_weight_ratio=RUN.max_weight_ratio, recorded={}, is_last_attempt=False,
    )  # fmt: skip
    signatures, scales = GroupSignatures(gate=None, tokens={}), []
    round_ = ContributionRound(
        terms, codec, SimpleNamespace(cache=cache), signatures, Blocklist(5.0, 60.0), lambda *own: scales.append(own)
    )
    asyncio.run(round_.collect())
    tensors = [torch.empty(shape) for shape in codec.layout.shapes]
    round_.write(tensors)
    return tensors, scales[0][1]


def pointer(user, content, samples):
    """Return of a pointer what a step asks for."""
    digest = hashlib.sha256(content).hexdigest()
    return SimpleNamespace(user=user, round=1, size=len(content), digest=digest, samples=samples)


@pytest.fixture
def states():
    """Return a state over the Hub, and a peer's with its gradients of the other wire."""
    over_hub = ReplayedState(RUN, tiny_model())
    state = TrainingState(RUN.swarm_id, **optimizer_parts(RUN, tiny_model()))
    yield over_hub, state
    over_hub.close()
    state.close()


def test_rounds_over_the_hub_step_as_rounds_of_peers_that_talk_to_each_other(states):
    over_hub, state = states
    first = over_hub.digest
    for number in range(1, 5):
        contents = contributions(over_hub.codec, number)
        averages, own_scale = peer_to_peer_mean(over_hub.codec, contents)
        step_along_averaged_gradients(
            state, SimpleNamespace(get_tensors=lambda found=averages: contextlib.nullcontext(found))
        )
        state.step()
        pointed = {f"peer{member}": content for member, content in enumerate(contents)}
        order = drawn_order(over_hub.digest, pointed)
        pointers = [pointer(user, pointed[user], SAMPLES[int(user[4:])]) for user in order]
        scales = over_hub.step(pointers, [pointed[user] for user in order])
        assert scales["peer0"] == own_scale and scales["peer2"] < 0.1
        assert over_hub.digest == state.take_snapshot().digest != first
