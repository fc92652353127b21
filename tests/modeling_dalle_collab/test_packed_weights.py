"""Weights in other layouts and in 8 bits compute the same, up to rounding."""

import copy
import pickle

import pytest
import torch
from torch import nn

from modeling_dalle_collab.linear_dalle_collab import apply_linear, use_products
from modeling_dalle_collab.packed_dalle_collab import Int8Linear, packed_products


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (3, 5), (2, 33)])
@torch.no_grad()
def test_packed_products_are_those_of_the_layer(rows, has_bias):
    layer, x = nn.Linear(48, 80, bias=has_bias), torch.randn(*rows, 48)
    with use_products(packed_products([layer])):
        torch.testing.assert_close(apply_linear(layer, x), layer(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(apply_linear(layer, x), layer(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_changed_layers_and_other_types_are_not_packed():
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    assert not packed_products([hooked, nn.Linear(4, 4).bfloat16(), nn.LayerNorm(4)])


@pytest.mark.parametrize("has_bias", [True, False])
@torch.no_grad()
def test_an_int8_layer_computes_with_rounded_weights_and_hardly_rounds_its_input(has_bias):
    layer, x = nn.Linear(64, 96, bias=has_bias), 3 * torch.randn(7, 64)
    scales = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = nn.functional.linear(x, (layer.weight / scales).round() * scales, layer.bias)
    out = Int8Linear(layer)(x)
    assert (out - rounded).abs().max() < (rounded - layer(x)).abs().max() / 20


@torch.no_grad()
def test_a_row_of_an_int8_layer_does_not_depend_on_the_rows_beside_it():
    layer = Int8Linear(nn.Linear(64, 96))
    x = torch.randn(20, 64) * torch.logspace(-20, 3, 20)[:, None]
    x[3] = 0
    apart = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), apart) and torch.equal(layer(x.view(4, 5, 64)).flatten(0, 1), apart)
    assert apart.isfinite().all()


@torch.no_grad()
def test_a_model_draws_and_reads_with_int8_weights(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    exact = model(text, codes)
    model.use_int8_weights()
    rounded = model(text, codes)
    assert rounded.image_loss.item() == pytest.approx(exact.image_loss.item(), rel=0.01)
    assert model.generate_image_codes(text, num_candidates=2).shape == (3, 2, 16)


def test_int8_weights_need_float32_on_a_cpu(tiny_model):
    with pytest.raises(ValueError, match=r"Weights are torch\.bfloat16 on cpu, expected torch\.float32 on a CPU"):
        tiny_model().bfloat16().use_int8_weights()


@pytest.mark.parametrize(
    ("lose", "what"),
    [
        (lambda model, folder: model.save_pretrained(folder), "saved"),
        (lambda model, folder: torch.save(model.state_dict(), folder / "weights.pt"), "saved"),
        (lambda model, _: copy.deepcopy(model), "copied"),
        (lambda model, _: pickle.dumps(model), "copied"),
        (lambda model, _: model.bfloat16(), r"moved to cpu or changed to torch\.bfloat16"),
        (lambda model, _: model.to("meta"), r"moved to meta or changed to torch\.float32"),
        (lambda model, _: model.load_state_dict({}, strict=False), "given other weights"),
    ],
    ids=["save_pretrained", "state_dict", "deepcopy", "pickle", "dtype", "device", "load"],
)
def test_what_would_lose_int8_weights_is_refused(tiny_model, tmp_path, lose, what):
    model = tiny_model()
    model.use_int8_weights()
    with pytest.raises(ValueError, match=rf"A model with weights of 8 bits cannot be {what}"):
        lose(model, tmp_path)
    assert not any(path.suffix in (".safetensors", ".pt") for path in tmp_path.iterdir())


@pytest.mark.parametrize("recompute", ["reversible", "none"])
def test_int8_weights_are_not_trained_through(tiny_model, tiny_batch, recompute):
    model = tiny_model(recompute=recompute)
    model.use_int8_weights()
    with pytest.raises(ValueError, match="A model with weights of 8 bits cannot be trained"):
        model(*tiny_batch()).loss.backward()
