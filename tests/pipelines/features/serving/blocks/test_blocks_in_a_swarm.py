"""Block servers in processes of their own: exact codes, and a server that is killed or stopped costs little."""

import os
import signal
import time

import pytest
import torch
from block_swarm import client_of, cuttable_link, serving_peers
from hostile_messages import hostile_sessions, is_refused
from published_runs import family_of, still_alive
from tiny_models import tiny_dalle, tiny_language_model

from pipelines.features.serving.blocks.client.distributed_model import DistributedModel

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(400)]

SPANS = {"a": range(0, 2), "b": range(2, 4), "c": range(4, 6), "spare": range(0, 6), "other": range(0, 6)}
RATES = {"spare": 2.0, "other": 1.0}


@pytest.fixture
def swarm(tmp_path):
    """Yield a local model, the same across servers, and these; the spares are too slow to be chosen first.

    At last what cuts the link of the first spare.
    """
    torch.set_num_threads(1)
    local = tiny_dalle(tmp_path / "model")
    with (
        serving_peers(tmp_path, tmp_path / "model", SPANS, rates=RATES) as peers,
        cuttable_link(peers["spare"]) as cut,
        client_of(peers) as found,
    ):
        yield local, DistributedModel.from_pretrained(str(tmp_path / "model"), swarm=found), peers, found, cut


def test_codes_are_exact_whatever_happens_to_servers(swarm):
    local, model, peers, _, cut = swarm
    text = torch.randint(0, 40, (2, 6), generator=torch.Generator().manual_seed(0))
    options = dict(num_candidates=2, seed=3)
    for more in (dict(window=1), dict(temperature=0.0, window=4), dict(guidance_scale=2.0, window=1)):
        found = model.generate_image_codes(text, **options, **more)
        assert torch.equal(found, local.generate_image_codes(text, **options, **more))
    assert model.layers.route.num_failures == 0
    expected = local.generate_image_codes(text, **options, window=1)
    blows = (
        ("b", 30, lambda: peers["b"].signal(signal.SIGKILL)),
        ("c", 62, lambda: peers["c"].signal(signal.SIGSTOP)),
        ("a", 1, lambda: peers["a"].signal(signal.SIGKILL)),
        ("spare", 20, cut),
    )
    for name, place, strike in blows:
        for codes in model.stream_image_codes(text, every=1, window=1, **options):
            if codes.shape[-1] == place:
                strike()
        assert torch.equal(codes, expected), name
    assert model.layers.route.num_failures >= 4


def free_bytes(found, peer):
    link = found.connect(peer.peer)
    try:
        return link.about["free_cache_bytes"]
    finally:
        link.close()


def test_a_killed_server_leaves_no_process_and_a_client_that_vanishes_no_memory(swarm):
    _, model, peers, found, _ = swarm
    whole = free_bytes(found, peers["a"])
    session = model.layers.session(dict(num_prompts=1, num_places=0))
    session.prefill(torch.zeros(2, 1, 7, 64), {})
    assert free_bytes(found, peers["a"]) < whole
    session.close()
    deadline = time.monotonic() + 60
    while free_bytes(found, peers["a"]) != whole:
        assert time.monotonic() < deadline
    family = family_of(peers["a"].process.pid)
    assert len(family) > 2
    os.kill(peers["a"].process.pid, signal.SIGKILL)
    peers["a"].process.wait(60)
    assert still_alive(family, 60) == []


@pytest.mark.long
def test_hostile_messages_over_streams_leave_the_server_as_it_was(swarm):
    local, model, peers, found, _ = swarm
    text = torch.randint(0, 40, (1, 6), generator=torch.Generator().manual_seed(1))
    expected = local.generate_image_codes(text, seed=4, window=1)
    codes = model.stream_image_codes(text, seed=4, window=1, every=1)
    refused = 0
    for messages in hostile_sessions(5, 40, peers["a"].revision, SPANS["a"]):
        refused += is_refused(found.connect(peers["a"].peer), messages)
        next(codes)
    *_, last = codes
    assert refused > 30 and torch.equal(last, expected)
    assert model.layers.route.num_failures == 0


@pytest.mark.long
def test_a_language_model_generates_across_servers(tmp_path):
    torch.set_num_threads(1)
    local = tiny_language_model(tmp_path / "model", "gpt2")
    ids = torch.arange(1, 9)[None]
    with (
        serving_peers(tmp_path, tmp_path / "model", {"a": range(0, 2), "b": range(2, 4)}) as peers,
        client_of(peers) as found,
    ):
        model = DistributedModel.from_pretrained(str(tmp_path / "model"), swarm=found)
        options = dict(max_new_tokens=30, do_sample=False)
        assert torch.equal(model.generate(ids, **options), local.generate(ids, **options))
