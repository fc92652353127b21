"""Hidden states and attention weights are there when asked for, and both attention implementations agree."""

import pytest
import torch

from modeling_dalle_collab.attention_dalle_collab import visible_mask
from modeling_dalle_collab.linear_dalle_collab import apply_linear


def test_plain_and_fused_attention_give_the_same_logits(tiny_model, tiny_batch):
    model = tiny_model()
    fused = model(*tiny_batch()).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(*tiny_batch()).logits, fused, atol=1e-5, rtol=0)


def test_hidden_states_are_the_streams_mean_at_every_layer(tiny_model, tiny_batch):
    model = tiny_model().eval()
    output = model(*tiny_batch(), output_hidden_states=True)
    config = model.config
    assert len(output.hidden_states) == config.num_hidden_layers + 1 and output.attentions is None
    shape = (3, config.sequence_length, config.hidden_size)
    assert all(state.shape == shape for state in output.hidden_states)
    assert torch.equal(output.hidden_states[-1], model.model(*tiny_batch()).last_hidden_state)
    text, codes = tiny_batch()
    ids = torch.cat([model.model.text_block_ids(text), codes + config.num_text_ids], dim=1)[:, :-1]
    assert torch.equal(output.hidden_states[0], model.model.token_embedding(ids))
    assert torch.equal(output.logits, model(*tiny_batch()).logits)


def test_attention_weights_are_those_of_visible_positions(tiny_model, tiny_batch):
    model = tiny_model(final_attention="convolutional").eval()
    model.set_attn_implementation("eager")
    output = model(*tiny_batch(), output_attentions=True)
    config = model.config
    assert len(output.attentions) == config.num_hidden_layers and output.hidden_states is None
    for kind, weights in zip(config.layer_kinds, output.attentions, strict=True):
        assert weights.shape == (3, config.num_attention_heads, config.sequence_length, config.sequence_length)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
        visible = visible_mask(config, kind)[:-1, :-1]
        assert not weights[..., ~visible].any() and (weights[..., visible] > 0).all()


def test_attention_weights_of_fused_products_are_refused(tiny_model, tiny_batch):
    with pytest.raises(ValueError, match=r'"sdpa".*expected "eager".*set_attn_implementation'):
        tiny_model()(*tiny_batch(), output_attentions=True)


def test_a_sample_does_not_depend_on_its_batch(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model().eval(), tiny_batch()
    together = model(text, codes).logits
    for row in range(3):
        torch.testing.assert_close(model(text[row : row + 1], codes[row : row + 1]).logits[0], together[row])


def test_the_same_input_gives_the_same_output(tiny_model, tiny_batch):
    model = tiny_model().train()
    assert torch.equal(model(*tiny_batch()).logits, model(*tiny_batch()).logits)


@pytest.mark.parametrize("rows", [1, 2, 8, 32, 33])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_few_rows_are_multiplied_to_the_same_result(rows, bias):
    layer, x = torch.nn.Linear(512, 2048, bias=bias), torch.randn(rows, 1, 512)
    out = apply_linear(layer, x)
    torch.testing.assert_close(out, layer(x))
    assert out.is_contiguous()


def test_a_changed_linear_layer_is_called_as_it_is():
    layer, seen = torch.nn.Linear(16, 24), []
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        assert apply_linear(layer, torch.randn(4, 16)) is seen[0]


def test_the_configuration_may_ask_for_hidden_states_and_attentions(tiny_model, tiny_batch):
    model = tiny_model().eval()
    model.set_attn_implementation("eager")
    model.config.output_hidden_states = model.config.output_attentions = True
    asked, refused = model(*tiny_batch()), model(*tiny_batch(), output_hidden_states=False, output_attentions=False)
    assert len(asked.hidden_states) == 7 and len(asked.attentions) == 6
    assert refused.hidden_states is None and refused.attentions is None
