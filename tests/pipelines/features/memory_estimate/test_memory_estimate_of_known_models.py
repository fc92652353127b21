"""The estimates for known models against what transformers' models really hold, tensor by tensor."""

import pytest
import torch
from bitsandbytes.optim import Adam8bit
from measured_models import build_known_model, measure_known_model
from memory_measurement import storage_bytes
from transformers.optimization import Adafactor

from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.model_presets import ModelSizes
from pipelines.features.memory_estimate.settings import MemorySettings

pytestmark = pytest.mark.slow

TOLERANCE = 0.05
BATCH, SEQUENCE, VOCABULARY = 3, 96, 500


SIZES = {
    "gpt2": dict(n_embd=128, n_head=4, n_positions=128),
    "gptj": dict(n_embd=128, n_head=4, n_positions=128, rotary_dim=16),
    "t5": dict(d_model=128, num_heads=4, d_kv=32, d_ff=512),
    "bart": dict(d_model=128, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512)
    | dict(decoder_ffn_dim=512, encoder_layers=6, decoder_layers=3),
    "albert": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512, embedding_size=48),
    "bert": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512),
    "llama": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512, num_key_value_heads=2),
    "opt": dict(hidden_size=128, num_attention_heads=4, ffn_dim=512, word_embed_proj_dim=128),
    "mistral": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512, num_key_value_heads=2),
    "qwen2": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512, num_key_value_heads=2),
    "gpt_neox": dict(hidden_size=128, num_attention_heads=4, intermediate_size=512),
    "bloom": dict(hidden_size=128, n_head=4),
}
"""Families with and without tables, and six that no stored table has."""

IN_SHORT = ("gpt2", "t5", "bart", "bert", "llama")
FAMILIES = [family if family in IN_SHORT else pytest.param(family, marks=pytest.mark.long) for family in SIZES]
IN_AUTOCAST = ["t5", *(pytest.param(family, marks=pytest.mark.long) for family in SIZES if family != "t5")]


def build(family, layers=5):
    names = {"gpt2": "n_layer", "gptj": "n_layer", "bloom": "n_layer", "t5": "num_layers", "bart": "encoder_layers"}
    tokens = dict(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    values = dict(model_type=family, **SIZES[family], **tokens) | {names.get(family, "num_hidden_layers"): layers}
    return build_known_model(ModelSizes.of(values))


def measured(model, **options):
    return measure_known_model(model, batch=BATCH, sequence=SEQUENCE, **options)


def estimated(model, **settings):
    settings = dict(micro_batch_size=BATCH, sequence_length=SEQUENCE, optimizer="sgd") | settings
    return estimate_training_memory(ModelSizes.of(model.config.to_dict()), MemorySettings(**settings)).gpu


def assert_close(split, step):
    assert split.weights == step.weights
    assert split.gradients == step.gradients
    assert split.activations == pytest.approx(step.activations, rel=TOLERANCE)
    assert split.total >= (1 - TOLERANCE) * step.total


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float32_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model), measured(model))


@pytest.mark.parametrize("family", IN_AUTOCAST)
def test_an_autocast_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model, precision="bf16"), measured(model, autocast=True))


@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(name, marks=pytest.mark.long) for name in ("t5", "bart", "llama"))]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpointed_step_holds_what_was_estimated(family, precision):
    model = build(family, layers=8)
    model.activation_checkpointing_enable()
    step = measured(model, autocast=precision == "bf16")
    assert_close(estimated(model, recompute="checkpoint", precision=precision), step)


def test_the_statistics_of_8_bit_adam_are_counted():
    model = build("gpt2")
    optimizer = Adam8bit(model.parameters())
    assert_state_is_estimated(model, optimizer, optimizer="adam", optimizer_bits=8)


def test_the_statistics_of_adam_are_counted():
    model = build("gpt2")
    assert_state_is_estimated(model, torch.optim.Adam(model.parameters()), optimizer="adam")


def test_the_factored_statistics_of_adafactor_are_counted():
    model = build("gpt2")
    assert_state_is_estimated(model, Adafactor(model.parameters()), optimizer="adafactor")


def assert_state_is_estimated(model, stepped, **settings):
    measured(model)
    stepped.step()
    states = [
        value
        for state in stepped.state.values()
        for name, value in state.items()
        # The quantiser's table of 256 values is one tensor for all parameters.
        if isinstance(value, torch.Tensor) and value.dim() and not name.startswith("qmap")
    ]
    assert estimated(model, **settings).optimizer == pytest.approx(storage_bytes(states), rel=0.01)
