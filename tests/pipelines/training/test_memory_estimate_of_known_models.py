"""The estimates for GPT-2, BERT, GPT-J and T5 against what transformers' models really hold, tensor by tensor.

Dropout is off: on a CPU its masks take four bytes a value, on a GPU, which is what the estimate describes, one.
"""

import pytest
import torch
from bitsandbytes.optim import Adam8bit
from memory_measurement import measure_step, storage_bytes
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.optimization import Adafactor

from pipelines.training.memory_estimate.estimate import estimate_training_memory
from pipelines.training.memory_estimate.hub_config import sizes_from_config
from pipelines.training.memory_estimate.settings import MemorySettings

pytestmark = pytest.mark.slow

TOLERANCE = 0.05
BATCH, SEQUENCE, VOCABULARY = 3, 96, 500


def build(family, layers=3):
    sizes = dict(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0)
    gpt = dict(sizes, n_embd=128, n_layer=layers, n_head=4, n_positions=128)
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**gpt, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))
    if family == "gptj":
        return GPTJForCausalLM(GPTJConfig(**gpt, rotary_dim=16, tie_word_embeddings=False))
    if family == "bert":
        heads = dict(num_hidden_layers=layers, num_attention_heads=4, hidden_size=128, intermediate_size=512)
        dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **heads, **dropout))
    heads = dict(d_model=128, d_kv=32, num_heads=4, d_ff=512, num_layers=layers)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, **heads, dropout_rate=0.0, decoder_start_token_id=0)
    )


def measured(model, *, autocast=False):
    ids = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    options = {} if isinstance(model, BertForMaskedLM) else dict(use_cache=False)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids, **options).loss

    return measure_step(model, loss)


def estimated(model, **settings):
    settings = dict(micro_batch_size=BATCH, sequence_length=SEQUENCE, optimizer="sgd") | settings
    return estimate_training_memory(sizes_from_config(model.config.to_dict()), MemorySettings(**settings)).gpu


def assert_close(split, step):
    assert split.weights == step.weights
    assert split.gradients == step.gradients
    assert split.activations == pytest.approx(step.activations, rel=TOLERANCE)
    assert split.total >= (1 - TOLERANCE) * step.total


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj", "t5"])
def test_a_float32_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model), measured(model))


@pytest.mark.parametrize("family", ["gpt2", "bert", "gptj"])
def test_an_autocast_step_holds_what_was_estimated(family):
    model = build(family)
    assert_close(estimated(model, precision="bf16"), measured(model, autocast=True))


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
