"""Consecutive layers, run one span after another on the two streams, compute what the whole model computes."""

import itertools

import pytest
import torch

from modeling_dalle_collab.cache_dalle_collab import GenerationCache, read_prefix, read_streams

CUTS = [(0, 6), (0, 3, 6), (0, 1, 5, 6)]


def spans(cuts):
    return [range(start, end) for start, end in itertools.pairwise(cuts)]


def embedded(model, text, codes):
    ids = torch.cat([model.model.text_block_ids(text), codes + model.config.num_text_ids], dim=1)
    return model.model.token_embedding(ids)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("recompute", ["reversible", "partial", "none"])
def test_spans_compute_the_whole_forward_pass_bit_for_bit_and_its_gradients(tiny_model, tiny_batch, cuts, recompute):
    model = tiny_model(recompute=recompute)
    stack, x = model.model.stack, embedded(model, *tiny_batch()).detach().requires_grad_()
    expected = stack(x)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    first = second = x
    for layers in spans(cuts):
        first, second = stack.run_layers(first, second, layers)
    (grad,) = torch.autograd.grad(((first + second) * 0.5).square().sum(), x)
    assert torch.equal((first + second) * 0.5, expected)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-5 * expected_grad.abs().max().item())


@pytest.mark.parametrize("cuts", CUTS)
@torch.no_grad()
def test_spans_read_prompts_and_codes_as_the_whole_bit_for_bit(tiny_model, tiny_batch, cuts):
    model = tiny_model()
    stack, (text, codes) = model.model.stack, tiny_batch(batch=2)
    x = embedded(model, text, codes[:, :8])
    prefix = read_prefix(stack, x, 5)
    whole = GenerationCache(stack, prefix, 2, window=2)
    first, second, caches = x, x, []
    for layers in spans(cuts):
        part, first, second = read_streams(stack, first, second, 5, layers)
        caches.append(GenerationCache(stack, part, 2, window=2, layers=layers))
    assert torch.equal(part.hidden, prefix.hidden)
    assert sum(cache.num_bytes() for cache in caches) == whole.num_bytes()
    for start in range(5, 15):
        places = torch.arange(start, start + 2).expand(4, 2)
        x = model.embed_codes(codes.repeat_interleave(2, dim=0).gather(1, places))
        first = second = x
        for cache in caches:
            first, second = cache.step_streams(first, second, places)
        assert torch.equal((first + second) * 0.5, whole.step(x, places))


@pytest.mark.parametrize("num_read", [[6, 6, 6, 6], [9, 6, 13, 7]])
@torch.no_grad()
def test_codes_read_in_large_passes_are_as_if_read_one_by_one(tiny_model, tiny_batch, num_read):
    model = tiny_model()
    stack, (text, codes) = model.model.stack, tiny_batch(batch=2)
    prefix = read_prefix(stack, embedded(model, text, codes[:, :8]), 5)
    samples, num_read = codes.repeat_interleave(2, dim=0), torch.tensor(num_read)

    def reading(cache, places):
        return cache.step(model.embed_codes(samples.gather(1, places.clamp(max=15))), places.clamp(max=15))

    slow, fast = (GenerationCache(stack, prefix, 2, window=window) for window in (1, 4))
    for place in range(5, 15):
        reading(slow, torch.minimum(torch.tensor(place), num_read - 1)[:, None])
    for start in range(5, 15, 4):
        begin = torch.minimum(torch.tensor(start), 5 + (num_read - 6) // 4 * 4)
        reading(fast, begin[:, None] + torch.arange(4))
    small = fast.with_window(1, num_read)
    torch.testing.assert_close(reading(small, num_read[:, None]), reading(slow, num_read[:, None]), atol=1e-5, rtol=0)
