"""The ancestor, small, with weights that show every error."""

import pytest
import torch
from ancestor import build_ancestor

TINY = {
    **{"text_vocab_size": 40, "codebook_size": 24, "text_sequence_length": 7, "image_grid_size": 4},
    **{"hidden_size": 32, "num_hidden_layers": 7, "num_attention_heads": 2, "head_dim": 18},
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def ancestor():
    """Return a function that builds an ancestor, tiny but for what it is told, whose every parameter matters."""

    def build(**changes):
        model = build_ancestor(**(TINY | changes)).eval()
        spread_parameters(model)
        return model

    return build


def spread_parameters(model):
    """Give every parameter values that matter: scales of 0.1 and zero biases hide errors."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm.weight" in name or name == "to_logits.0.weight":
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 2:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(0.3 * noise)
