"""A tiny model, and the ancestor's golden model: weights, inputs and outputs of the real dalle-pytorch."""

import pytest
import torch
from golden_files import golden_settings, golden_state_dict, golden_tensors

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.tasks.text_to_image.conversion.checkpoint_sizes import UnseenSettings, infer_config
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, convert_tensors


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
    return golden_settings(), golden_tensors()


@pytest.fixture(scope="session")
def golden_checkpoint():
    return DallePytorchCheckpoint.from_tensors(golden_state_dict())


@pytest.fixture
def golden_model(golden, golden_checkpoint):
    codebook_size = golden[0]["config"]["vocab_image"]

    def make(conv_window="corner", recompute="reversible"):
        unseen = UnseenSettings(codebook_size=codebook_size, conv_window=conv_window)
        config = infer_config(golden_checkpoint, unseen)
        config.recompute = recompute
        model = DalleCollabForConditionalGeneration(config)
        model.load_state_dict(convert_tensors(golden_checkpoint, config))
        return model

    return make
