"""The layers are taming's: names, weights that a seed draws, outputs and gradients."""

import contextlib
import dataclasses
import io
from typing import Any

import pytest
import torch
from taming.modules.diffusionmodules import model as taming
from torch import nn

from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig
from pipelines.tasks.text_to_image.image_codes.vqgan_layers import Decoder, Encoder, PositionNorm

CONFIGS = dict(
    deep=VQGANConfig(
        image_size=32, embedding_dim=8, z_channels=8, channels=32, channel_multipliers=(1, 1, 2), num_residual_blocks=2,
        attention_resolutions=(8, 16),
    ),
    flat=VQGANConfig(
        image_size=32, embedding_dim=8, z_channels=8, channels=32, channel_multipliers=(2,), num_residual_blocks=1,
        attention_resolutions=(), patch_size=4, normalisation="position", middle_attention=False,
    ),
)  # fmt: skip


def tamings_arguments(config: VQGANConfig) -> dict[str, Any]:
    return dict(
        double_z=False,
        z_channels=config.z_channels,
        resolution=config.image_size // config.patch_size,
        in_channels=3 * config.patch_size**2,
        out_ch=3 * config.patch_size**2,
        ch=config.channels,
        ch_mult=config.channel_multipliers,
        num_res_blocks=config.num_residual_blocks,
        attn_resolutions=config.attention_resolutions,
    )


def both(half: str, config: VQGANConfig) -> tuple[nn.Module, nn.Module]:
    """Return ours and taming's half, each drawn with the same seed."""
    torch.manual_seed(0)
    ours = dict(encoder=Encoder, decoder=Decoder)[half](config)
    after_ours = torch.rand(1)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):  # the decoder prints its sizes
        theirs = dict(encoder=taming.Encoder, decoder=taming.Decoder)[half](**tamings_arguments(config))
    assert torch.equal(torch.rand(1), after_ours)  # also what is drawn next is the same
    if not config.middle_attention:
        theirs.mid.attn_1 = nn.Identity()
    if config.normalisation == "position":
        for module in theirs.modules():
            if type(module) is nn.GroupNorm:
                module.__class__ = PositionNorm
    layout = dict(memory_format=torch.channels_last)
    return ours.to(**layout), theirs.to(**layout)


def some_input(half: str, config: VQGANConfig) -> torch.Tensor:
    channels, side = (3, config.image_size) if half == "encoder" else (config.z_channels, config.grid_size)
    values = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return nn.functional.pixel_unshuffle(values, config.patch_size) if half == "encoder" else values


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_weights_outputs_and_gradients_are_tamings(half, config):
    ours, theirs = both(half, config)
    weights = theirs.state_dict()
    assert [*ours.state_dict()] == [*weights]
    assert all(torch.equal(weight, weights[name]) for name, weight in ours.state_dict().items())
    outputs = [module(some_input(half, config)) for module in (ours, theirs)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
    assert outputs[0].std() > 0.01
    for output in outputs:
        output.pow(2).mean().backward()
    for (name, parameter), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_the_comparison_sees_a_level_without_its_attention():
    ours, theirs = both("decoder", CONFIGS["deep"])
    less = Decoder(dataclasses.replace(CONFIGS["deep"], attention_resolutions=(8,)))
    less.load_state_dict(ours.state_dict(), strict=False)
    values = some_input("decoder", CONFIGS["deep"])
    assert (less(values) - theirs(values)).abs().max() > 1e-3
