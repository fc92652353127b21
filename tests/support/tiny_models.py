"""Tiny models in folders, with parameters that matter, for tests of serving."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration

_SIZES = dict(
    vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
LANGUAGE_MODELS = {
    "gpt2": lambda: GPT2Config(
        vocab_size=50, n_positions=64, n_embd=32, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=None, pad_token_id=0
    ),
    "llama": lambda: LlamaConfig(**_SIZES),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=8),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=8),
}


def tiny_dalle(folder: Path, seed: int = 0, **changes: object) -> DalleCollabForConditionalGeneration:
    """Save a DALL-E model of 6 layers and 64 codes into a folder, and return it."""
    sizes = dict(
        text_vocab_size=40, codebook_size=24, text_sequence_length=6, image_grid_size=8, hidden_size=64,
        num_hidden_layers=6, num_attention_heads=2, head_dim=14,
    )  # fmt: skip
    model = DalleCollabForConditionalGeneration(DalleCollabConfig(**(sizes | changes)))
    return _saved(model, folder, seed)


def tiny_language_model(folder: Path, kind: str, seed: int = 0) -> PreTrainedModel:
    """Save a causal language model of 4 layers into a folder, and return it."""
    return _saved(AutoModelForCausalLM.from_config(LANGUAGE_MODELS[kind]()), folder, seed)


def _saved(model: PreTrainedModel, folder: Path, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(values / parameter.shape[-1] ** 0.5)
            else:  # branches of a reversible layer are small, or recomputation loses digits
                parameter.copy_(0.2 * values if name.endswith(".scale") else 1 + 0.3 * values)
    model.save_pretrained(folder)
    return model.eval()
