"""Training adds gradients of shared weights up by itself, with the result of autograd's own sums."""

import pytest
import torch


def gradients_of(model, loss, **options):
    return dict(
        zip(
            (name for name, _ in model.named_parameters()),
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, **options),
            strict=True,
        )
    )


def assert_equal(seen, expected):
    for name, gradient in expected.items():
        if gradient is None:
            assert seen[name] is None or not seen[name].any(), name
        else:
            torch.testing.assert_close(seen[name], gradient, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("recompute", ["none", "partial", "reversible"])
@pytest.mark.parametrize("part", ["loss", "text_loss", "image_loss"])
def test_gradients_are_those_of_the_whole_logits(tiny_model, tiny_batch, recompute, part):
    # Asked for logits, the model leaves everything to autograd.
    model = tiny_model(recompute=recompute).double()
    expected = gradients_of(model, model(*tiny_batch())[part])
    assert_equal(gradients_of(model, model(*tiny_batch(), return_logits=False)[part]), expected)


def test_a_graph_that_is_kept_can_be_used_twice_and_for_one_parameter(tiny_model, tiny_batch):
    model = tiny_model(recompute="none").double()
    loss = model(*tiny_batch(), return_logits=False).loss
    once, again = (gradients_of(model, loss, retain_graph=True) for _ in range(2))
    assert_equal(again, once)
    name = "model.stack.groups.0.attention.qkv.weight"
    (alone,) = torch.autograd.grad(loss, [model.get_parameter(name)])
    torch.testing.assert_close(alone, once[name])


def test_a_frozen_table_gets_no_gradient_and_the_others_keep_theirs(tiny_model, tiny_batch):
    model = tiny_model(recompute="none").double()
    expected = gradients_of(model, model(*tiny_batch(), return_logits=False).loss)
    model.model.token_embedding.weight.requires_grad_(False)
    model(*tiny_batch(), return_logits=False).loss.backward()
    seen = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert seen.pop("model.token_embedding.weight") is None
    del expected["model.token_embedding.weight"]
    assert_equal(seen, expected)


def test_logits_in_chunks_give_the_same_loss_and_gradients(tiny_model, tiny_batch, monkeypatch):
    model = tiny_model().double()
    whole = model(*tiny_batch(), return_logits=False).loss
    expected = gradients_of(model, whole)
    monkeypatch.setattr("modeling_dalle_collab.table_dalle_collab.CHUNK_ELEMENTS", 100)
    chunks = model(*tiny_batch(), return_logits=False).loss
    torch.testing.assert_close(chunks, whole)
    assert_equal(gradients_of(model, chunks), expected)
