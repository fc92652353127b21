"""Encoder and decoder of a VQGAN after github.com/CompVis/taming-transformers, in torch alone.

Tensors have taming's names, and weights are drawn and computed with in its order: published state dicts fit, a seed
makes the same codec, and equal pictures have the same codes to the bit.

Axis names: batch, channel, height, width, position (= height * width).
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .vqgan_config import TAMING_NORM_GROUPS, VQGANConfig


class PositionNorm(nn.GroupNorm):
    """Normalises the channels of each position on its own; holds the parameters of the GroupNorm it replaces."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (batch, channel, height, width) -> the same shape."""
        normed = F.layer_norm(hidden.permute(0, 2, 3, 1), (self.num_channels,), self.weight, self.bias, self.eps)
        return normed.permute(0, 3, 1, 2)


class ResnetBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, config: VQGANConfig, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = _norm(config, in_channels)
        self.conv1 = _conv(in_channels, out_channels)
        self.norm2 = _norm(config, out_channels)
        self.conv2 = _conv(out_channels, out_channels)
        is_same = in_channels == out_channels
        self.nin_shortcut = nn.Identity() if is_same else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (batch, in_channels, height, width) -> (batch, out_channels, height, width)."""
        inner = self.conv1(_swish(self.norm1(hidden)))
        return self.nin_shortcut(hidden) + self.conv2(_swish(self.norm2(inner)))


class AttnBlock(nn.Module):
    """Attention of every position to all of them, with one head."""

    def __init__(self, config: VQGANConfig, channels: int) -> None:
        super().__init__()
        self.norm = _norm(config, channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (batch, channel, height, width) -> the same shape."""
        normed = self.norm(hidden)
        query, key, value = (layer(normed).flatten(2) for layer in (self.q, self.k, self.v))
        scores = torch.bmm(query.transpose(1, 2), key) * key.shape[1] ** -0.5  # (batch, position, position)
        mixed = torch.bmm(value, scores.softmax(dim=2).transpose(1, 2))  # (batch, channel, position)
        return hidden + self.proj_out(mixed.reshape(hidden.shape))


class Level(nn.Module):
    """The residual blocks of one resolution, each with attention behind it where the configuration says so."""

    def __init__(
        self, config: VQGANConfig, in_channels: int, out_channels: int, num_blocks: int, resolution: int
    ) -> None:
        super().__init__()
        self.block, self.attn = nn.ModuleList(), nn.ModuleList()
        for index in range(num_blocks):
            self.block.append(ResnetBlock(config, out_channels if index else in_channels, out_channels))
            if resolution in config.attention_resolutions:
                self.attn.append(AttnBlock(config, out_channels))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (batch, in_channels, height, width) -> (batch, out_channels, height, width)."""
        for index, block in enumerate(self.block):
            hidden = block(hidden)
            if self.attn:
                hidden = self.attn[index](hidden)
        return hidden


class Encoder(nn.Module):
    """From pixels to what the quantizer sees; every level but the last halves the resolution."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        channels, resolution = config.channels, config.image_size // config.patch_size
        self.conv_in = _conv(3 * config.patch_size**2, channels)
        self.down = nn.ModuleList()
        for index, multiplier in enumerate(config.channel_multipliers):
            width = config.channels * multiplier
            level = Level(config, channels, width, config.num_residual_blocks, resolution >> index)
            level.downsample = nn.Identity()
            if index < len(config.channel_multipliers) - 1:
                level.downsample = _named(pad=nn.ZeroPad2d((0, 1, 0, 1)), conv=nn.Conv2d(width, width, 3, stride=2))
            self.down.append(level)
            channels = width
        self.mid = _middle(config, channels)
        self.norm_out = _norm(config, channels)
        self.conv_out = _conv(channels, config.z_channels)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (batch, 3 * patch_size**2, height, width) in [-1, 1] -> (batch, z_channels, grid, grid)."""
        hidden = self.conv_in(pixels)
        for level in self.down:
            hidden = level.get_submodule("downsample")(level(hidden))
        return self.conv_out(_swish(self.norm_out(self.mid(hidden))))


class Decoder(nn.Module):
    """From the codebook's vectors to pixels; every level but the last doubles the resolution."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        channels, resolution = config.channels * config.channel_multipliers[-1], config.grid_size
        self.conv_in = _conv(config.z_channels, channels)
        self.mid = _middle(config, channels)
        self.up = nn.ModuleList()
        for index, multiplier in reversed([*enumerate(config.channel_multipliers)]):
            width = config.channels * multiplier
            level = Level(config, channels, width, config.num_residual_blocks + 1, resolution)
            level.upsample = nn.Identity()
            if index:
                level.upsample = _named(grow=nn.Upsample(scale_factor=2.0), conv=_conv(width, width))
            self.up.insert(0, level)
            channels, resolution = width, resolution * 2
        self.norm_out = _norm(config, channels)
        self.conv_out = _conv(channels, 3 * config.patch_size**2)

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors: (batch, z_channels, grid, grid) -> (batch, 3 * patch_size**2, height, width), about [-1, 1]."""
        hidden = self.mid(self.conv_in(vectors))
        for level in reversed(self.up):
            hidden = level.get_submodule("upsample")(level(hidden))
        return self.conv_out(_swish(self.norm_out(hidden)))


def _middle(config: VQGANConfig, channels: int) -> nn.Sequential:
    middle = _named(
        block_1=ResnetBlock(config, channels, channels),
        attn_1=AttnBlock(config, channels),
        block_2=ResnetBlock(config, channels, channels),
    )
    if not config.middle_attention:  # drawn all the same: a seed makes the codec that it made with taming
        middle.attn_1 = nn.Identity()
    return middle


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _norm(config: VQGANConfig, channels: int) -> nn.GroupNorm:
    kind = PositionNorm if config.normalisation == "position" else nn.GroupNorm
    return kind(TAMING_NORM_GROUPS, channels, eps=1e-6)


def _conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1)


def _swish(hidden: Tensor) -> Tensor:
    return hidden * torch.sigmoid(hidden)  # silu rounds otherwise
