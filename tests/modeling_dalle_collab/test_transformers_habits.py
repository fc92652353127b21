"""What people are used to pass to models of transformers: what changes nothing is taken, all else is refused."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, Trainer, TrainingArguments

NEUTRAL = dict(
    use_cache=True, num_beams=1, num_beam_groups=1, repetition_penalty=1.0, typical_p=1.0, min_p=0.0,
    length_penalty=2.0, early_stopping=True, pad_token_id=0, bos_token_id=0, eos_token_id=1, max_length=None,
    bad_words_ids=[],
    no_repeat_ngram_size=0, diversity_penalty=0.0, return_dict_in_generate=False, output_scores=False,
    renormalize_logits=True, min_length=0,
)  # fmt: skip
ARGUMENTS = dict(
    streamer=None, synced_gpus=False, assistant_model=None, negative_prompt_ids=None, logits_processor=None
)
REFUSED = dict(
    num_beams=4, repetition_penalty=1.5, penalty_alpha=0.6, min_p=0.1, typical_p=0.9, max_length=20,
    bad_words_ids=[[3]], suppress_tokens=[3], no_repeat_ngram_size=2, max_time=1.0, return_dict_in_generate=True,
    output_scores=True, min_new_tokens=3, forced_bos_token_id=0, stop_strings=["end"],
)  # fmt: skip


@pytest.mark.parametrize("name", [*NEUTRAL, *ARGUMENTS])
def test_arguments_of_generate_that_change_nothing_are_taken(tiny_model, tiny_batch, name):
    model, text = tiny_model(), tiny_batch()[0]
    plain, value = model.generate(text, seed=3), (NEUTRAL | ARGUMENTS)[name]
    assert torch.equal(model.generate(input_ids=text, seed=3, **{name: value}), plain)
    if name in NEUTRAL:
        settings = GenerationConfig(do_sample=True, top_k=256, **{name: value})
        assert torch.equal(model.generate(text, settings, seed=3), plain)


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_of_generate_that_would_change_something_are_refused(tiny_model, tiny_batch, name):
    model, text = tiny_model(), tiny_batch()[0]
    for options in ({name: REFUSED[name]}, {"generation_config": GenerationConfig(**{name: REFUSED[name]})}):
        with pytest.raises(ValueError, match=f"^generate got {name}=.*expected .*Leave it out"):
            model.generate(text, **options)
    with pytest.raises(ValueError, match="generate got streamer="):
        model.generate(text, streamer=print)


def test_counts_of_nothing_are_refused(tiny_model, tiny_batch):
    with pytest.raises(ValueError, match="num_image_codes is 0, expected at least 1"):
        tiny_model().generate(tiny_batch()[0], max_new_tokens=0)
    with pytest.raises(ValueError, match="num_candidates is 0, expected at least 1"):
        tiny_model().generate(tiny_batch()[0], num_return_sequences=0)
    with pytest.raises(ValueError, match=r"input_ids is \[\[1, 2\]\], expected a tensor of integers"):
        tiny_model().generate([[1, 2]])


def test_an_attention_mask_may_hide_padding_alone(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    text[:, 4:] = model.config.pad_token_id
    text[:, :4].clamp_(min=2)
    mask, plain = torch.ones_like(text), model(text, codes).loss
    mask[:, 4:] = 0
    for each in (torch.ones_like(text), mask, mask.bool()):
        assert model(input_ids=text, image_codes=codes, attention_mask=each).loss == plain
        assert torch.equal(model.generate(inputs=text, attention_mask=each, seed=1), model.generate(text, seed=1))
    mask[0, 3] = 0
    for attempt in (lambda: model(text, codes, attention_mask=mask), lambda: model.generate(text, attention_mask=mask)):
        with pytest.raises(ValueError, match="attention_mask hides 1 ids that are not padding, expected ones"):
            attempt()
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 5\), expected that of input_ids, \(3, 6\)"):
        model(text, codes, attention_mask=mask[:, 1:])


def test_usual_arguments_of_forward_are_taken_or_refused(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model().eval(), tiny_batch()
    plain = model(text, codes)
    assert model(text, codes, labels=codes, inputs_embeds=None, use_cache=True).loss == plain.loss
    assert model(input_ids=text, labels=codes, token_type_ids=torch.zeros_like(text)).loss == plain.loss
    assert model(text, codes, return_loss=False).loss is None
    with pytest.raises(ValueError, match="labels differ from image_codes, expected the same"):
        model(text, codes, labels=codes.roll(1, dims=1))
    with pytest.raises(ValueError, match=r"forward got position_ids=a tensor of shape \(3, 6\).*expected nothing"):
        model(text, codes, position_ids=text)
    with pytest.raises(ValueError, match="image_codes is None, expected a tensor"):
        model(text)


def test_outputs_are_tuples_on_demand(tiny_model, tiny_batch):
    model = tiny_model().eval()
    plain = model(*tiny_batch())
    loss, text_loss, _, logits = model(*tiny_batch(), return_dict=False)
    assert loss == plain.loss and text_loss == plain.text_loss and torch.equal(logits, plain.logits)
    (hidden,) = model.model(*tiny_batch(), return_dict=False)
    assert torch.equal(hidden, model.model(*tiny_batch()).last_hidden_state)
    model.config.return_dict = False
    assert torch.equal(model(*tiny_batch())[-1], plain.logits)


def test_the_configuration_asks_for_hidden_states(tiny_model, tiny_batch):
    model = tiny_model()
    model.config.output_hidden_states = True
    assert len(model(*tiny_batch()).hidden_states) == 7
    assert model(*tiny_batch(), output_hidden_states=False).hidden_states is None


def test_candidates_are_refused_with_the_two_calls_that_make_them_fit(tiny_model, tiny_batch):
    model, text = tiny_model(), tiny_batch()[0]
    candidates = model.generate_image_codes(text, num_candidates=2)
    with pytest.raises(ValueError, match=r"2 candidates of each caption.*flatten\(0, 1\).*repeat_interleave\(2, dim=0"):
        model(text, candidates)
    with pytest.raises(ValueError, match=r"image_prompt has shape \(3, 2, 4\).*image_prompt.flatten\(0, 1\)"):
        model.generate_image_codes(text, image_prompt=candidates[..., :4])
    assert model(text.repeat_interleave(2, dim=0), candidates.flatten(0, 1)).loss.isfinite()


@pytest.mark.parametrize("names", [None, ["image_codes"]])
def test_the_trainer_evaluates(tiny_model, tiny_batch, tmp_path, names):
    model, (text, codes) = tiny_model().eval(), tiny_batch(batch=4)
    data = [{"input_ids": ids, "image_codes": image} for ids, image in zip(text, codes, strict=True)]
    shapes = []

    def metrics(seen):
        shapes.append(np.shape(seen.predictions))
        return {}

    arguments = TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True, label_names=names
    )
    figures = Trainer(model, arguments, eval_dataset=data, compute_metrics=metrics).evaluate()
    assert figures["eval_loss"] == pytest.approx(model(text, codes).loss.item(), abs=1e-5)
    assert shapes == [(4, 22, 70)]


def test_the_trainer_divides_the_loss_of_accumulated_steps(tiny_model, tiny_batch, tmp_path):
    (text, codes), norms = tiny_batch(batch=4), []
    data = [{"input_ids": ids, "labels": image} for ids, image in zip(text, codes, strict=True)]
    for rows, steps in ((4, 1), (2, 2)):
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=rows, gradient_accumulation_steps=steps, max_steps=1,
            logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
            remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(tiny_model(), arguments, train_dataset=data)
        trainer.train()
        norms.append(trainer.state.log_history[0]["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
