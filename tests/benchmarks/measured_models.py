"""Training steps of known models and of ours, counted tensor by tensor; what the memory estimate is held against."""

import contextlib

import torch
from memory_measurement import MeasuredStep, measure_step
from torch._subclasses import FakeTensorMode
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes

TOKENS = dict(bos_token_id=0, eos_token_id=0)
NO_DROPOUT = {
    "gpt2": dict(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0),
    "gptj": dict(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0),
    "bert": dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "t5": dict(dropout_rate=0.0),
    "albert": dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "llama": {},
}
"""On a CPU the masks of dropout take four bytes a value, on a GPU, which is what the estimate describes, one."""


def build_known_model(sizes: TransformerSizes) -> PreTrainedModel:
    """Return transformers' model of these sizes, without dropout."""
    common = dict(vocab_size=sizes.vocab_size, **NO_DROPOUT[sizes.family])
    if sizes.family in ("gpt2", "gptj"):
        common |= dict(
            n_embd=sizes.hidden_size, n_layer=sizes.num_layers, n_head=sizes.num_heads, n_inner=sizes.wide_size,
            n_positions=sizes.max_sequence_length, **TOKENS,
        )  # fmt: skip
    if sizes.family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**common, activation_function=_gelu(sizes)))
    if sizes.family == "gptj":
        rotary = min(64, sizes.hidden_size // sizes.num_heads)
        return GPTJForCausalLM(GPTJConfig(**common, rotary_dim=rotary, tie_word_embeddings=sizes.has_tied_table))
    if sizes.family != "t5":
        common |= dict(
            hidden_size=sizes.hidden_size, num_hidden_layers=sizes.num_layers, num_attention_heads=sizes.num_heads,
            intermediate_size=sizes.wide_size,
        )  # fmt: skip
    if sizes.family == "bert":
        return BertForMaskedLM(BertConfig(**common))
    if sizes.family == "albert":
        return AlbertForMaskedLM(AlbertConfig(**common, embedding_size=sizes.embedding_size, hidden_act=_gelu(sizes)))
    if sizes.family == "llama":
        heads = dict(num_key_value_heads=sizes.num_key_value_heads, tie_word_embeddings=sizes.has_tied_table)
        return LlamaForCausalLM(LlamaConfig(**common, **heads))
    return T5ForConditionalGeneration(
        T5Config(
            **common, d_model=sizes.hidden_size, d_kv=sizes.head_size, num_heads=sizes.num_heads, d_ff=sizes.wide_size,
            num_layers=sizes.num_layers, decoder_start_token_id=0,
        )
    )  # fmt: skip


def measure_known_model(model: PreTrainedModel, *, batch: int, sequence: int, autocast: bool = False) -> MeasuredStep:
    """Count the tensors of a step; under `FakeTensorMode` a model of any size."""
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    options = {} if isinstance(model, (AlbertForMaskedLM, BertForMaskedLM)) else dict(use_cache=False)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids, **options).loss

    return measure_step(model, loss)


def measure_our_model(
    sizes: dict, *, batch: int, recompute: str, precision: str = "fp32", fake: bool = False
) -> MeasuredStep:
    """Count the tensors of our model's step; fake ones have no values, so that large models need no memory."""
    config = DalleCollabConfig(**sizes, recompute=recompute if recompute != "checkpoint" else "none")
    half = torch.bfloat16
    torch.set_default_dtype(half if precision.startswith("pure") else torch.float32)
    try:
        with FakeTensorMode() if fake else contextlib.nullcontext():
            model = DalleCollabForConditionalGeneration(config)
            if recompute == "checkpoint":
                model.activation_checkpointing_enable()
            text = torch.zeros(batch, config.text_sequence_length, dtype=torch.long)
            codes = torch.zeros(batch, config.num_image_codes, dtype=torch.long)

            def loss() -> torch.Tensor:
                with torch.autocast("cpu", dtype=half, enabled=precision == "bf16"):
                    return model(input_ids=text, image_codes=codes, return_logits=False).loss

            return measure_step(model, loss)
    finally:
        torch.set_default_dtype(torch.float32)


def _gelu(sizes: TransformerSizes) -> str:
    return "gelu_new" if sizes.has_slow_gelu else "gelu"
