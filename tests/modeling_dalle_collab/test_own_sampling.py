"""Sampling of one's own: processors of logits, criteria to stop, and loops over a cache."""

import copy

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
)


def image_logits(model, text, codes):
    """The plain pass over whole images: (batch, image, codebook)."""
    config = model.config
    return model(text, codes).logits[:, config.text_sequence_length :, config.num_text_ids :]


@pytest.mark.parametrize("given", [0, 1, 5])
@pytest.mark.parametrize("number", [1, 3, 10])
@pytest.mark.parametrize("final_attention", ["convolutional", "row"])
def test_passes_with_a_cache_give_the_logits_of_the_whole(tiny_model, tiny_batch, given, number, final_attention):
    model, (text, codes) = tiny_model(final_attention=final_attention).train(), tiny_batch()
    expected, first = image_logits(model, text, codes), model.config.num_text_ids
    output = model(text, codes[:, :given], use_cache=True)
    seen, past = [output.logits], output.past_key_values
    assert output.loss is None and past.get_seq_length() == given
    for part in codes[:, given : given + number].split(2, dim=1):
        output = model(image_codes=part.to(torch.int16), past_key_values=past, input_ids=text)
        seen.append(output.logits)
    logits = torch.cat(seen, dim=1)
    assert (logits[..., :first] == torch.finfo(logits.dtype).min).all() and model.training
    torch.testing.assert_close(logits[..., first:], expected[:, given : given + number + 1], atol=1e-5, rtol=1e-5)
    assert output.past_key_values is past and past.get_seq_length() == given + number


def test_a_loop_of_ones_own_draws_what_generate_draws(tiny_model, tiny_batch):
    model, text = tiny_model(), tiny_batch()[0]
    output, codes = model(text, use_cache=True), []
    while True:
        codes.append(output.logits[:, -1:].argmax(dim=-1) - model.config.num_text_ids)
        if len(codes) == model.config.num_image_codes:
            break
        output = model(image_codes=codes[-1], past_key_values=output.past_key_values)
    assert torch.equal(torch.cat(codes, dim=1), model.generate(text, do_sample=False))


def test_continuations_are_tried_on_copies(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    past = model(text, codes[:, :6], use_cache=True).past_key_values
    rows = torch.tensor([2, 0, 2, 1])
    chosen, copied = past.select(rows), copy.deepcopy(past)
    model(image_codes=codes[:, 6:9], past_key_values=past)
    for each, of in ((chosen, rows), (copied, torch.arange(3))):
        logits = model(image_codes=codes[of, 6:8], past_key_values=each).logits[..., model.config.num_text_ids :]
        torch.testing.assert_close(logits, image_logits(model, text[of], codes[of])[:, 7:9], atol=1e-5, rtol=1e-5)
    assert past.get_seq_length() == 9 and copied.get_seq_length() == 8


def test_passes_with_a_cache_say_what_does_not_fit(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    past = model(text, codes[:, :6], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="6 codes have been read and 10 more are given, expected 1 to 9"):
        model(image_codes=codes[:, 6:], past_key_values=past)
    with pytest.raises(ValueError, match="input_ids differ from those that past_key_values has read"):
        model(text.roll(1, dims=0), codes[:, 6:7], past_key_values=past)
    with pytest.raises(ValueError, match="A pass with a cache got output_hidden_states=True"):
        model(image_codes=codes[:, 6:7], past_key_values=past, output_hidden_states=True)
    with pytest.raises(ValueError, match="past_key_values is a dict, expected what a pass with use_cache=True"):
        model(image_codes=codes[:, 6:7], past_key_values={})
    with pytest.raises(ValueError, match="input_ids has 3 rows and image_prompt 2"):
        model(image_codes=codes[:2, 6:7], past_key_values=past)


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_processors_change_the_logits_of_every_code(tiny_model, tiny_batch, guidance_scale):
    model, (text, codes), seen = tiny_model(), tiny_batch(), []

    def even_codes_only(codes, logits):
        seen.append(codes)
        logits[:, 1::2] = -torch.inf
        return logits

    options = dict(image_prompt=codes[:, :3], guidance_scale=guidance_scale, num_return_sequences=2)
    drawn = model.generate(text, logits_processor=even_codes_only, **options)
    assert drawn.shape == (6, 16) and not (drawn[:, 3:] % 2).any()
    assert [tuple(part.shape) for part in seen] == [(6, number) for number in range(3, 16)]
    assert all(torch.equal(part, drawn[:, : part.shape[1]]) for part in seen)
    processors = LogitsProcessorList([even_codes_only, SuppressTokensLogitsProcessor(range(2, 24))])
    assert not model.generate(text, None, processors, **options)[:, 3:].any()


def test_a_processor_that_changes_nothing_draws_the_same(tiny_model, tiny_batch):
    model, text = tiny_model(), tiny_batch()[0]
    plain = model.generate_image_codes(text, num_candidates=3, seed=2, window=1)
    options = dict(num_candidates=3, seed=2, logits_processor=[RepetitionPenaltyLogitsProcessor(1.0)])
    assert torch.equal(model.generate_image_codes(text, **options), plain)
    *_, streamed = model.stream_image_codes(text, **options)
    assert torch.equal(streamed, plain)


def test_drawing_ends_when_every_sample_may_end(tiny_model, tiny_batch):
    model, text = tiny_model(), tiny_batch()[0]
    whole = model.generate(text, seed=4)
    ends = torch.tensor([2, 7, 5])

    def criterion(codes, scores):
        return codes.shape[1] == ends

    assert torch.equal(model.generate(text, stopping_criteria=StoppingCriteriaList([criterion]), seed=4), whole[:, :7])
    parts = list(model.stream_image_codes(text, stopping_criteria=criterion, seed=4, every=3))
    assert [part.shape[2] for part in parts] == [3, 6, 7] and torch.equal(parts[-1][:, 0], whole[:, :7])
    with pytest.raises(ValueError, match="candidate_batch_size is 2, expected at least the 3 samples"):
        model.generate(text, stopping_criteria=criterion, candidate_batch_size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(logits_processor=lambda codes, logits: logits * torch.nan), "left nothing to choose after 0 codes"),
        (dict(logits_processor=lambda codes, logits: logits - torch.inf), "with a finite largest number"),
        (dict(logits_processor=lambda codes, logits: logits[:, :3]), r"shape \(3, 3\), expected \(3, 24\)"),
        (dict(logits_processor="top"), "logits_processor holds .*top.*expected functions"),
        (dict(logits_processor=print, window=4), "window is 4, expected 1: logits_processor is called code by code"),
        (dict(topk=5), "Sampling has no option topk; it has cache_implementation, .*, top_k, "),
    ],
)
def test_options_that_do_not_fit_are_refused(tiny_model, tiny_batch, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tiny_model().generate_image_codes(tiny_batch()[0], **options)


def test_a_stream_is_cut_like_all_codes_where_a_prompt_is_longer(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    options = dict(image_prompt=codes[:, :9], num_image_codes=6)
    *_, streamed = model.stream_image_codes(text, **options)
    assert torch.equal(streamed, model.generate_image_codes(text, **options)) and streamed.shape == (3, 1, 6)
