"""Cached generation equals full passes; candidates are exact, and the sampling options mean what they say."""

import re

import pytest
import torch
from transformers import GenerationConfig

from modeling_dalle_collab import DalleCollabConfig, DalleCollabModel
from modeling_dalle_collab.cache_dalle_collab import GenerationCache, Prefix
from modeling_dalle_collab.guessing_dalle_collab import Guesses, WindowChoice
from modeling_dalle_collab.sampling_dalle_collab import (
    candidate_batches,
    candidate_numbers,
)


def cached_logits(model, text, codes, num_candidates, *, num_given=0, static=False, step=None, window=1):
    """Return the logits of all image places behind the given ones: (sample, place, code)."""
    given = codes[::num_candidates, :num_given] if num_given else None
    prefix = model.read_text(text, given)
    cache = GenerationCache(model.model.stack, prefix, num_candidates, window=window, static=static)
    step = step or (lambda cache, codes, places: cache.step(model.embed_codes(codes), places))
    logits = [model.next_code_logits(cache.first_hidden())[:, None]]
    for start in range(num_given, codes.shape[1] - 1, window):
        places = torch.arange(start, min(start + window, codes.shape[1] - 1)).expand(len(codes), -1)
        logits.append(model.next_code_logits(step(cache, codes[:, places[0]], places)))
    return torch.cat(logits, dim=1)


def full_logits(model, text, codes, num_candidates):
    logits = model(text.repeat_interleave(num_candidates, dim=0), codes).logits
    return logits[:, model.config.text_sequence_length :, model.config.num_text_ids :]


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("conv_window", ["centred", "corner"])
@pytest.mark.parametrize(("kernel", "window"), [(3, 1), (5, 1), (3, 16), (5, 5)])
@torch.no_grad()
def test_cached_logits_equal_those_of_a_full_pass_at_every_position(
    tiny_model, tiny_batch, conv_window, kernel, window, static
):
    model = tiny_model(conv_window=conv_window, conv_kernel_size=kernel, image_grid_size=7)
    text, _ = tiny_batch(batch=2)
    codes = torch.randint(0, model.config.codebook_size, (2 * 3, 49))  # three candidates for each caption
    cached = cached_logits(model, text, codes, 3, static=static, window=window)
    torch.testing.assert_close(cached, full_logits(model, text, codes, 3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("num_given", [1, 6, 7, 8, 21, 30, 48])
@torch.no_grad()
def test_logits_behind_an_image_prompt_equal_those_of_a_full_pass(tiny_model, tiny_batch, num_given, static):
    model = tiny_model(image_grid_size=7)
    text, _ = tiny_batch(batch=2)
    codes = torch.randint(0, model.config.codebook_size, (2 * 3, 49))
    codes[:, :num_given] = codes[::3, :num_given].repeat_interleave(3, dim=0)
    cached = cached_logits(model, text, codes, 3, num_given=num_given, static=static)
    torch.testing.assert_close(cached, full_logits(model, text, codes, 3)[:, num_given:], atol=1e-4, rtol=0)


@torch.no_grad()
def test_logits_behind_an_image_prompt_do_not_depend_on_how_attention_is_computed(tiny_model, tiny_batch):
    # Large enough for rows and columns to be computed in bands.
    model = tiny_model(image_grid_size=14)
    text, _ = tiny_batch(batch=1)
    codes = torch.randint(0, model.config.codebook_size, (1, 196))
    fused = cached_logits(model, text, codes, 1, num_given=100)
    torch.testing.assert_close(fused, full_logits(model, text, codes, 1)[:, 100:], atol=1e-4, rtol=0)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(cached_logits(model, text, codes, 1, num_given=100), fused, atol=1e-4, rtol=0)


@torch.no_grad()
def test_cached_logits_in_bfloat16_are_those_of_a_full_pass_up_to_rounding(tiny_model, tiny_batch):
    model = tiny_model().to(torch.bfloat16)
    text, codes = tiny_batch(batch=2)
    full = full_logits(model, text, codes, 1).float()
    # bfloat16 keeps 8 bits: the same error as between bfloat16 and float32.
    exact = full_logits(tiny_model(), text, codes, 1)
    for static in (False, True):
        cached = cached_logits(model, text, codes, 1, static=static).float()
        assert (cached - full).abs().max() < 2 * (full - exact).abs().max()


@torch.no_grad()
def test_a_static_step_is_one_graph_for_all_places(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(), tiny_batch(batch=1)
    codes = torch.randint(0, model.config.codebook_size, (2, 16))
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(
        lambda cache, codes, places: cache.step(model.embed_codes(codes), places), backend=count, fullgraph=True
    )
    compiled = cached_logits(model, text, codes, 2, static=True, step=step)
    assert len(graphs) == 1
    torch.testing.assert_close(compiled, full_logits(model, text, codes, 2), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_compiled_step_draws_the_same(tiny_model, tiny_batch):
    torch._dynamo.reset()
    model, (text, _) = tiny_model(num_hidden_layers=2, attention_pattern=["row"]), tiny_batch(batch=1)
    expected = model.generate_image_codes(text, num_candidates=2)
    assert torch.equal(model.generate_image_codes(text, num_candidates=2, compile_step=True), expected)


def test_guided_codes_are_those_of_the_guided_formula(golden_model, golden):
    _, expected = golden
    codes = golden_model("corner").generate_image_codes(
        expected["text"], temperature=0, guidance_scale=3.0, null_input_ids=torch.zeros_like(expected["text"][:1])
    )
    assert torch.equal(codes[:, 0], expected["cfg3_greedy_tokens"])


@torch.no_grad()
def test_guidance_moves_away_from_padding_unless_told_otherwise(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(), tiny_batch(batch=2)
    empty = torch.full((1, 6), model.config.pad_token_id)
    guided = model.generate_image_codes(text, guidance_scale=2.5, temperature=0)
    assert torch.equal(
        model.generate_image_codes(text, guidance_scale=2.5, temperature=0, null_input_ids=empty), guided
    )
    assert not torch.equal(model.generate_image_codes(text, temperature=0), guided)
    captioned, null = (full_logits(model, ids, guided[:, 0], 1) for ids in (text, empty.expand(2, -1)))
    assert torch.equal((null + (captioned - null) * 2.5).argmax(dim=-1), guided[:, 0])


def test_an_image_prompt_is_kept_and_completed(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(), tiny_batch(batch=2)
    whole = model.generate_image_codes(text, num_candidates=1, seed=5)
    for num_given in (1, 4, 7, 15):
        completed = model.generate_image_codes(text, num_candidates=1, seed=5, image_prompt=whole[:, 0, :num_given])
        assert torch.equal(completed, whole)
    other = (whole[:, 0, :6] + 1) % model.config.codebook_size
    several = model.generate_image_codes(text, num_candidates=3, image_prompt=other, guidance_scale=2.0)
    assert torch.equal(several[:, :, :6], other[:, None].expand(-1, 3, -1))
    nothing = model.generate_image_codes(text, seed=5, image_prompt=whole[:, 0, :0])
    assert torch.equal(nothing, whole)


def test_codes_can_be_watched_while_they_are_drawn(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(), tiny_batch(batch=2)
    whole = model.generate_image_codes(text, num_candidates=3, seed=7)
    previews = list(model.stream_image_codes(text, every=5, num_candidates=3, seed=7))
    numbers = [codes.shape[2] for codes in previews]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 16 and all(number % 5 == 0 for number in numbers[:-1])
    one_by_one = list(model.stream_image_codes(text, every=5, num_candidates=3, seed=7, window=1))
    assert [codes.shape[2] for codes in one_by_one] == [5, 10, 15, 16]
    assert all(torch.equal(codes, whole[:, :, : codes.shape[2]]) for codes in previews)
    first = next(model.stream_image_codes(text, every=4, num_candidates=3, seed=7, window=1))
    assert torch.equal(first, whole[:, :, :4])


def test_generation_can_stop_early(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(), tiny_batch(batch=2)
    whole, seen = model.generate_image_codes(text, seed=7), []
    upper = model.generate_image_codes(text, seed=7, num_image_codes=6, on_progress=lambda *c: seen.append(c))
    assert torch.equal(upper, whole[:, :, :6]) and seen[-1] == (12, 12)
    assert model.generate(text, max_new_tokens=6).shape == (2, 6)
    given = model.generate_image_codes(text, image_prompt=whole[:, 0, :9], num_image_codes=6)
    assert torch.equal(given, whole[:, :, :6])


def test_a_candidate_does_not_depend_on_its_batch(tiny_model, tiny_batch):
    model = tiny_model()
    text, _ = tiny_batch(batch=3)
    together = model.generate_image_codes(text, num_candidates=5, seed=11)
    for size in (2, 7):
        apart = model.generate_image_codes(text, num_candidates=5, seed=11, candidate_batch_size=size)
        assert torch.equal(apart, together)
    fewer = model.generate_image_codes(text[:2], num_candidates=2, seed=11)
    assert torch.equal(fewer, together[:2, :2])


def differing_codes(expected, drawn, model, text, seed):
    """Return how far numbers were from the boundary of two codes where two drawings of (prompt, candidate) part."""
    distances = []
    numbers = candidate_numbers(seed, range(len(text)), range(expected.shape[1]), expected.shape[2])
    logits = full_logits(model, text, expected.flatten(0, 1), expected.shape[1])
    for sample in (expected != drawn).flatten(0, 1).any(dim=1).nonzero()[:, 0].tolist():
        place = (expected.flatten(0, 1)[sample] != drawn.flatten(0, 1)[sample]).nonzero()[0, 0]
        sums = logits[sample, place].softmax(dim=-1).double().cumsum(dim=-1)
        distances.append((sums - numbers[sample, place] * sums[-1]).abs().min().item())
    return distances


@pytest.mark.parametrize(
    "options",
    [{}, {"guidance_scale": 2.5}, {"top_k": 5}, {"top_p": 0.8}, {"cache_implementation": "static"}],
    ids=lambda options: "-".join(options) or "default",
)
@torch.no_grad()
def test_codes_are_those_of_the_sequential_sampler_whatever_windows_and_batches(tiny_model, tiny_batch, options):
    model, (text, _) = tiny_model(image_grid_size=7), tiny_batch(batch=2)
    ways = [{"window": 16}, {}, {"window": 4, "candidate_batch_size": 5}]
    expected = model.generate_image_codes(text, num_candidates=4, seed=2, window=1, **options)
    parted = []
    for way in ways:
        drawn = model.generate_image_codes(text, num_candidates=4, seed=2, **options, **way)
        parted += differing_codes(expected, drawn, model, text, seed=2)
    # Only rounding can part them: at most one code in 10,000, and there the number lies on a boundary.
    assert len(parted) <= 1e-4 * len(ways) * expected.numel(), parted


@torch.no_grad()
def test_a_completed_picture_is_that_of_the_sequential_sampler(tiny_model, tiny_batch):
    model, (text, _) = tiny_model(image_grid_size=7), tiny_batch(batch=2)
    given = torch.randint(0, model.config.codebook_size, (2, 17))
    expected, *others = (
        model.generate_image_codes(text, num_candidates=3, image_prompt=given, window=window) for window in (1, 4, 16)
    )
    assert all(torch.equal(other, expected) for other in others)


def test_right_guesses_are_final_and_the_first_wrong_one_is_replaced():
    guesses = Guesses([[5, 6], [7, 8]], size=2)
    assert guesses.ahead(3, length=5) == [[6, 5, 6], [8, 7, 8]]  # the codes above
    assert guesses.learn([[5, 9, 1], [4, 4, 4]], length=5) == [2, 1]
    assert guesses.rows == [[5, 6, 5, 9, 1], [7, 8, 4, 4, 4]] and guesses.known == [4, 3]
    assert guesses.ahead(3, length=5) == [[9, 1, 0], [4, 4, 4]]
    assert guesses.learn([[2, 3, 3], [4, 4, 4]], length=5) == [1, 2]
    assert guesses.known == [5, 5] and guesses.rows == [[5, 6, 5, 9, 2], [7, 8, 4, 4, 4]]


def windows_chosen(seconds, share_right, passes=60):
    """Return the windows that are chosen where passes take such seconds, and so many of the guesses are right."""
    choice, chosen, generator = WindowChoice(), [], torch.Generator().manual_seed(0)
    for _ in range(passes):
        window = choice.next()
        right = torch.rand(window - 1, generator=generator) < share_right
        choice.learn(window, seconds(window), [1 + int(right.long().cumprod(0).sum())])
        chosen.append(window)
    return chosen


def test_the_window_is_the_one_that_gives_most_codes_a_second():
    assert windows_chosen(lambda window: 1.0, share_right=0.9)[-1] == 16
    assert windows_chosen(lambda window: 1 + 0.5 * window, share_right=0.3)[-1] <= 2
    # No guess is worth anything where passes take as long as their codes: larger windows are not even tried.
    assert max(windows_chosen(lambda window: window**1.5, share_right=1.0)) <= 2


def test_candidates_captions_and_seeds_differ(tiny_model, tiny_batch):
    model = tiny_model()
    text = tiny_batch(batch=1)[0].expand(2, -1)
    codes = model.generate_image_codes(text, num_candidates=2, seed=1).flatten(0, 1)
    other = model.generate_image_codes(text, num_candidates=2, seed=2).flatten(0, 1)
    assert len({tuple(row.tolist()) for row in (*codes, *other)}) == 8
    assert codes.shape == (4, 16) and codes.dtype == torch.int64
    assert codes.min() >= 0 and codes.max() < model.config.codebook_size


def test_sampling_one_likeliest_code_is_greedy(tiny_model, tiny_batch):
    model = tiny_model()
    text, _ = tiny_batch()
    assert torch.equal(
        model.generate_image_codes(text, top_k=1), model.generate_image_codes(text, temperature=0, seed=5)
    )


def test_progress_counts_every_code_once(tiny_model, tiny_batch):
    seen = []
    tiny_model().generate_image_codes(
        tiny_batch()[0], num_candidates=2, candidate_batch_size=4, on_progress=lambda *counts: seen.append(counts)
    )
    assert seen[-1] == (3 * 2 * 16, 3 * 2 * 16)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize(("prompts", "candidates", "size"), [(1, 128, 64), (5, 3, 7), (4, 1, 64), (2, 9, 4), (0, 3, 4)])
def test_batches_hold_every_candidate_once_and_none_is_too_large(prompts, candidates, size):
    seen = []
    for part, ranges in candidate_batches(prompts, candidates, size):
        assert all(len(part) * len(numbers) <= size for numbers in ranges)
        seen += [(prompt, number) for numbers in ranges for prompt in part for number in numbers]
    assert sorted(seen) == [(prompt, number) for prompt in range(prompts) for number in range(candidates)]


def test_generate_follows_the_generation_config(tiny_model, tiny_batch):
    model = tiny_model()
    text, _ = tiny_batch(batch=2)
    model.generation_config.top_k, model.generation_config.temperature = 3, 0.5
    codes = model.generate(text, num_return_sequences=2, seed=4)
    expected = model.generate_image_codes(text, num_candidates=2, top_k=3, top_p=1.0, temperature=0.5, seed=4)
    assert torch.equal(codes, expected.flatten(0, 1))
    greedy = model.generate(text, do_sample=False)
    assert torch.equal(greedy, model.generate_image_codes(text, temperature=0)[:, 0])


@pytest.mark.parametrize(
    "asked",
    [
        *(dict(num_beams=4), dict(repetition_penalty=1.2), dict(forced_eos_token_id=3)),
        *(dict(return_dict_in_generate=True), dict(top_h=0.5)),
        *(dict(max_length=8), dict(min_new_tokens=2), dict(typical_p=0.9), dict(seed=3), dict(suppress_tokens=[0])),
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_generation_config_that_asks_for_more_is_refused(tiny_model, tiny_batch, asked):
    model, (name, value) = tiny_model(), next(iter(asked.items()))
    with pytest.raises(ValueError, match=rf"generate got {name}={re.escape(repr(value))}.*Leave it out"):
        model.generate(tiny_batch()[0], GenerationConfig(do_sample=True, **asked))
    setattr(model.generation_config, name, value)  # as generation_config.json of a repository may say
    with pytest.raises(ValueError, match=f"{name}="):
        model.generate(tiny_batch()[0])


def test_neutral_settings_of_a_generation_config_change_nothing(tiny_model, tiny_batch):
    model, text = tiny_model(), tiny_batch()[0]
    neutral = dict(num_beams=1, repetition_penalty=1.0, min_length=0, use_cache=True, eos_token_id=1)
    neutral |= dict(early_stopping=False, length_penalty=1.0, output_scores=False)
    settings = GenerationConfig(do_sample=True, top_k=256, **neutral)
    assert torch.equal(model.generate(text, settings, seed=1), model.generate(text, seed=1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.int64])
def test_codes_and_captions_of_any_whole_numbers_mean_the_same(tiny_model, tiny_batch, dtype):
    model, (text, codes) = tiny_model().eval(), tiny_batch()
    drawn = model.generate_image_codes(text, image_prompt=codes[:, :5])
    assert torch.equal(model(text.to(dtype), codes.to(dtype)).loss, model(text, codes).loss)
    assert torch.equal(model.generate_image_codes(text.to(dtype), image_prompt=codes[:, :5].to(dtype)), drawn)
    wrong = codes.index_fill(0, torch.tensor([1]), 100).to(dtype)
    with pytest.raises(ValueError, match=r"image_codes has values from \d to 100, expected \[0, 24\)"):
        model(text, wrong)


def test_generation_leaves_the_model_in_training_mode(tiny_model, tiny_batch):
    model = tiny_model(feed_forward_dropout=0.5).train()
    codes = model.generate_image_codes(tiny_batch()[0])
    assert model.training
    assert torch.equal(codes, model.eval().generate_image_codes(tiny_batch()[0]))


def test_the_cache_holds_what_the_masks_can_still_see_at_the_papers_size():
    config = DalleCollabConfig()
    with torch.device("meta"):
        stack = DalleCollabModel(config).stack
        text = [torch.empty(1, 16, 257, 64) for _ in config.layer_kinds]
        rest = dict(image_keys=[], image_values=[], shifted=[], hidden=torch.empty(1, 1024))
        cache = GenerationCache(stack, Prefix(text_keys=text, text_values=text, **rest), 1)
    pair = 2 * 1024 * 4  # bytes of a key and a value of one position
    expected = pair * (64 * 257 + 47 * 32 + 16 * 1024 + 3 * 32)
    assert cache.num_bytes() == expected == pytest.approx(282e6, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": -1}, "top_k is -1, expected a count"),
        ({"top_p": 0.0}, "top_p is 0.0, expected a probability above 0"),
        ({"top_p": 1.5}, "top_p is 1.5, expected a probability above 0"),
        ({"temperature": -0.5}, "temperature is -0.5, expected a number of at least 0"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan, expected a finite number"),
        ({"num_image_codes": 0}, "num_image_codes is 0, expected at least 1"),
        ({"window": 0}, "window is 0, expected at least 1, or None"),
        ({"cache_implementation": "paged"}, "cache_implementation is 'paged', expected one of dynamic, static"),
        ({"image_prompt": torch.zeros(3, 16, dtype=torch.int64)}, "image_prompt gives 16 codes, expected at most 15"),
        ({"image_prompt": torch.full((3, 2), 24)}, r"image_prompt has values from 24 to 24, expected \[0, 24\)"),
        ({"image_prompt": torch.zeros(2, 2, dtype=torch.int64)}, "input_ids has 3 rows and image_prompt 2"),
        ({"null_input_ids": torch.zeros(1, 5, dtype=torch.int64)}, r"input_ids has shape \(1, 5\)"),
        ({"num_candidates": 0}, "num_candidates is 0, expected at least 1"),
        ({"candidate_batch_size": 0}, "candidate_batch_size is 0, expected at least 1"),
    ],
)
def test_sampling_options_that_mean_nothing_are_refused(tiny_model, tiny_batch, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().generate_image_codes(tiny_batch()[0], **options)


def test_damaged_weights_are_named(tiny_model, tiny_batch):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="logits are not finite, expected numbers: its weights are damaged"):
        model.generate_image_codes(tiny_batch()[0])
