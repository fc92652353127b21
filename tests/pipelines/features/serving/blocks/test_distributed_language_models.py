"""Causal language models with their layers elsewhere are the local ones."""

import pytest
import torch
from block_links import MortalSwarm
from tiny_models import LANGUAGE_MODELS, tiny_language_model

from pipelines.features.serving.blocks.client.distributed_model import DistributedModel, local_server
from pipelines.features.serving.blocks.spans import load_span
from pipelines.features.serving.blocks.weights import find_model

SPANS = {"a": range(0, 3), "b": range(1, 4), "c": range(0, 4)}
GENERATIONS = [
    dict(do_sample=False),
    dict(do_sample=True, top_k=10, temperature=0.8),
    dict(num_beams=3, do_sample=False),
    dict(do_sample=False, num_return_sequences=2, num_beams=2),
]


@pytest.fixture(params=LANGUAGE_MODELS)
def both(request, tmp_path):
    """Return the local model, the distributed one and its servers; the fastest two are in the chain."""
    torch.set_num_threads(1)
    local = tiny_language_model(tmp_path, request.param)
    published = find_model(str(tmp_path))
    swarm = MortalSwarm({name: local_server(published, layers) for name, layers in SPANS.items() if name != "c"})
    swarm.spare = local_server(published, SPANS["c"])
    return local, DistributedModel.from_pretrained(str(tmp_path), swarm=swarm, patience_seconds=0.0), swarm


def prompts():
    ids = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return ids, mask


def test_logits_and_gradients_are_the_local_ones(both):
    local, model, _ = both
    ids, mask = prompts()
    assert isinstance(model, type(local))
    with torch.no_grad():
        assert torch.equal(model(ids).logits, local(ids).logits)
        assert torch.equal(model(ids, attention_mask=mask).logits[1:], local(ids, attention_mask=mask).logits[1:])
    for one in (model, local):
        one.zero_grad()
        one(ids, labels=ids).loss.backward()
    found, expected = (one.get_input_embeddings().weight.grad for one in (model, local))
    assert (found - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("options", GENERATIONS, ids=str)
def test_generated_tokens_are_the_local_ones(both, options):
    local, model, swarm = both
    ids, mask = prompts()
    texts = []
    for one in (model, local):
        torch.manual_seed(3)
        texts.append(one.generate(ids, attention_mask=mask, max_new_tokens=20, **options))
    assert torch.equal(*texts)
    assert [server.memory.taken for server in swarm._servers.values()] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "lost", "step"),
    [(GENERATIONS[0], "a", 0), (GENERATIONS[1], "b", 1), (GENERATIONS[2], "a", 12)],
    ids=str,
)
def test_after_a_loss_the_tokens_are_the_same(both, options, lost, step):
    local, model, swarm = both
    ids, mask = prompts()
    swarm._servers["c"], swarm.slow = swarm.spare, {"c"}
    seen = []

    def lose(peer, what):
        seen.extend([peer] if what == "step" else [])
        if len(seen) > 2 * step and not swarm.lost:
            swarm.lose(lost)

    swarm.before = lose
    texts = []
    for one in (model, local):
        torch.manual_seed(3)
        texts.append(one.generate(ids, attention_mask=mask, max_new_tokens=20, **options))
    assert torch.equal(*texts)
    assert swarm.lost


def test_layers_of_a_language_model_are_a_module(both):
    local, model, _ = both
    ids, _ = prompts()
    with torch.no_grad():
        states = local(ids, output_hidden_states=True).hidden_states
        out = model.layers[1:3](states[1])
    torch.testing.assert_close(out, states[3])


def test_other_kinds_of_models_are_refused_with_what_to_do(tmp_path):
    tiny_language_model(tmp_path, "gpt2")
    model = find_model(str(tmp_path))
    for change in (dict(model_type="bert"), dict(scale_attn_by_inverse_layer_idx=True)):
        other = type(model)(**{**vars(model), "config": {**model.config, **change}})
        with pytest.raises(ValueError, match=r"cannot be served.*leave out --blocks"):
            load_span(other, range(0, 1))
