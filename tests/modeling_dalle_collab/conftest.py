"""A tiny model, and the ancestor's golden model: weights, inputs and outputs of the real dalle-pytorch.

`golden/` holds what dalle-pytorch 1.6.6 and 1.4.2 computed for one small configuration with random weights (float32,
one thread): logits, losses, gradients and greedily generated tokens.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration

GOLDEN = Path(__file__).parent / "golden"
ANCESTOR_BLOCKS = "transformer.layers.blocks"
# The first layer that uses each of the shared groups of the golden model.
FIRST_LAYERS = (0, 1, 2, 3, 7)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def tiny_config():
    def make(**changes):
        sizes = {"text_vocab_size": 40, "codebook_size": 24, "text_sequence_length": 6, "image_grid_size": 4}
        sizes |= {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2, "head_dim": 14}
        return DalleCollabConfig(**(sizes | changes))

    return make


@pytest.fixture
def tiny_model(tiny_config):
    def make(**changes):
        model = DalleCollabForConditionalGeneration(tiny_config(**changes))
        spread_parameters(model)
        return model

    return make


@pytest.fixture
def tiny_batch(tiny_config):
    def make(batch=3, seed=0):
        config, generator = tiny_config(), torch.Generator().manual_seed(seed)
        text = torch.randint(0, config.text_vocab_size, (batch, config.text_sequence_length), generator=generator)
        codes = torch.randint(0, config.codebook_size, (batch, config.num_image_codes), generator=generator)
        return text, codes

    return make


def spread_parameters(model):
    """Give every parameter values that matter: scales of 0.1 and zero biases hide errors."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm.weight" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)


@pytest.fixture(scope="session")
def golden():
    settings = json.loads((GOLDEN / "golden_config.json").read_text())
    return settings, load_file(GOLDEN / "golden_io.safetensors")


@pytest.fixture(scope="session")
def golden_weights():
    return {name: tensor.float() for name, tensor in load_file(GOLDEN / "golden_weights.safetensors").items()}


@pytest.fixture
def golden_model(golden, golden_weights):
    sizes = golden[0]["config"]

    def make(conv_window="corner", recompute="reversible"):
        config = DalleCollabConfig(
            text_vocab_size=sizes["vocab_text"],
            codebook_size=sizes["vocab_image"],
            text_sequence_length=sizes["text_seq_len"],
            image_grid_size=sizes["fmap"],
            hidden_size=sizes["dim"],
            num_hidden_layers=sizes["depth"],
            num_attention_heads=sizes["heads"],
            head_dim=sizes["dim_head"],
            conv_window=conv_window,
            recompute=recompute,
        )
        model = DalleCollabForConditionalGeneration(config)
        model.load_state_dict(
            {
                ours: golden_weights[theirs].flatten() if ours.endswith(".scale") else golden_weights[theirs]
                for ours, theirs in ancestor_names(sizes["depth"]).items()
            }
        )
        return model

    return make


def ancestor_names(depth):
    """Return for each of our parameters the name it has in dalle-pytorch 1.6.6."""
    names = {"model.token_embedding.weight": "image_emb.linear.weight", "output_bias": "image_emb.linear.bias"}
    for part in ("weight", "bias"):
        names[f"model.norm.{part}"] = f"to_logits.0.{part}"
    for layer in range(depth):
        for ours, theirs in (("attention", "f"), ("feed_forward", "g")):
            branch = f"model.stack.layers.{layer}.{ours}"
            names[f"{branch}.scale"] = f"{ANCESTOR_BLOCKS}.{layer}.{theirs}.net.scale"
            for part in ("weight", "bias"):
                names[f"{branch}.norm.{part}"] = f"{ANCESTOR_BLOCKS}.{layer}.{theirs}.net.fn.norm.{part}"
    for group, layer in enumerate(FIRST_LAYERS):
        ours, theirs = f"model.stack.groups.{group}", f"{ANCESTOR_BLOCKS}.{layer}"
        names[f"{ours}.attention.qkv.weight"] = f"{theirs}.f.net.fn.fn.fn.fn.fn.to_qkv.weight"
        for part in ("weight", "bias"):
            names[f"{ours}.attention.output.{part}"] = f"{theirs}.f.net.fn.fn.fn.fn.fn.to_out.0.{part}"
            names[f"{ours}.feed_forward.input.{part}"] = f"{theirs}.g.net.fn.fn.fn.fn.net.0.{part}"
            names[f"{ours}.feed_forward.output.{part}"] = f"{theirs}.g.net.fn.fn.fn.fn.net.3.{part}"
    return names
