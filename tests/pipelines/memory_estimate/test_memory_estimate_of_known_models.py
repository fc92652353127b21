"""The estimates for known models against what transformers' models really hold, tensor by tensor."""

import pytest
import torch
from bitsandbytes.optim import Adam8bit
from measured_models import build_known_model, measure_known_model
from memory_measurement import storage_bytes
from transformers.optimization import Adafactor

from pipelines.memory_estimate.estimate import estimate_training_memory
from pipelines.memory_estimate.hub_config import sizes_from_config
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes
from pipelines.memory_estimate.settings import MemorySettings

pytestmark = pytest.mark.slow

TOLERANCE = 0.05
BATCH, SEQUENCE, VOCABULARY = 3, 96, 500


def build(family, layers=3):
    sizes = TransformerSizes(
        family=family, vocab_size=VOCABULARY, hidden_size=128, num_layers=layers, num_decoder_layers=layers,
        num_heads=4, head_size=32, wide_size=512, max_sequence_length=128, has_slow_gelu=family.startswith("gpt"),
        has_tied_table=family != "gptj", embedding_size=48 if family == "albert" else None,
        num_key_value_heads=2 if family == "llama" else None,
    )  # fmt: skip
    return build_known_model(sizes)


def measured(model, **options):
    return measure_known_model(model, batch=BATCH, sequence=SEQUENCE, **options)


def estimated(model, **settings):
    settings = dict(micro_batch_size=BATCH, sequence_length=SEQUENCE, optimizer="sgd") | settings
    return estimate_training_memory(sizes_from_config(model.config.to_dict()), MemorySettings(**settings)).gpu


def assert_close(split, step):
    assert split.weights == step.weights
    assert split.gradients == step.gradients
    assert split.activations == pytest.approx(step.activations, rel=TOLERANCE)
    assert split.total >= (1 - TOLERANCE) * step.total


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj", "t5", "albert", "llama"])
def test_a_float32_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model), measured(model))


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj", "llama"])
def test_an_autocast_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model, precision="bf16"), measured(model, autocast=True))


def test_an_autocast_step_of_albert_holds_no_more_than_was_estimated():
    # Its layers share the half copies of their weights, and its head is narrower than BERT's: on the safe side.
    model = build("albert")
    split, step = estimated(model, precision="bf16"), measured(model, autocast=True)
    assert split.weights == step.weights
    assert step.activations <= split.activations <= 1.25 * step.activations


def test_a_checkpointed_step_holds_what_was_estimated():
    model = build("gpt2", layers=6)
    model.activation_checkpointing_enable()
    assert_close(estimated(model, recompute="checkpoint"), measured(model))


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
