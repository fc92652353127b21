"""Reads the published image tokenizers of LlamaGen (`vq_ds16_t2i.pt` and others) without running any code in them.

Their layers are taming's under other names (github.com/FoundationVision/LlamaGen, tokenizer_image/vq_model.py), with
self-attention at the coarsest level. The codebook is normalised there whenever it is used; here it is when it is read.
All sizes but the pictures' follow from the tensors.
"""

import os
import re
from collections.abc import Mapping
from itertools import count, takewhile

import torch
import torch.nn.functional as F

from pipelines.tasks.text_to_image.image_codes.checkpoints.foreign_checkpoint import read_checkpoint, weights_with
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import CodecLoadError, VQGANConfig

NOT_USED = frozenset({"quantize.codebook_used"})
"""The codes that the last batches of training had: says nothing about pictures."""

MARK = "encoder.conv_in.weight"
CODEBOOK = "quantize.embedding.weight"
MIDDLE = {"block_1": "0", "attn_1": "1", "block_2": "2"}


def read_llamagen_codec(checkpoint_path: str | os.PathLike, image_size: int) -> VQGANCodec:
    """The codec in a checkpoint of LlamaGen's VQ-16 or VQ-8, for pictures of image_size x image_size pixels.

    CodecLoadError as `read_checkpoint`, and when a tensor is absent, of another shape or unknown; ValueError for a size
    that cannot be cut into codes.
    """
    origin = os.fspath(checkpoint_path)
    tensors = weights_with(read_checkpoint(checkpoint_path), MARK, origin)
    config = _config(tensors, image_size, origin)
    with torch.device("meta"):  # shapes are compared before memory is taken for what a stranger's file names
        expected = {name: tensor.shape for name, tensor in VQGANCodec(config).state_dict().items()}
    names = {name: _llamagen_name(name, len(config.channel_multipliers)) for name in expected}
    _check_shapes(tensors, {names[name]: shape for name, shape in expected.items()}, origin)
    state = {name: tensors[theirs] for name, theirs in names.items()}
    state[CODEBOOK] = F.normalize(state[CODEBOOK].float(), dim=-1)
    codec = VQGANCodec(config)
    codec.load_tensors(state, origin)
    return codec


def _config(tensors: Mapping[str, torch.Tensor], image_size: int, origin: str) -> VQGANConfig:
    def size(name: str, axis: int = 0) -> int:
        shape = tensors[name].shape if name in tensors else ()
        if len(shape) <= axis or not shape[axis]:
            seen = f"of shape {tuple(shape)}" if name in tensors else "absent"
            raise CodecLoadError(
                f"{origin} is no image tokenizer of LlamaGen: {name} is {seen}. "
                "Convert its vq_ds16_t2i.pt or vq_ds16_c2i.pt; a taming checkpoint is converted with its .yaml."
            )
        return shape[axis]

    def number_of(pattern: str) -> int:
        return sum(1 for _ in takewhile(lambda index: pattern.format(index) in tensors, count()))

    channels = size(MARK)
    levels = range(max(1, number_of("encoder.conv_blocks.{}.res.0.conv2.weight")))
    widths = [size(f"encoder.conv_blocks.{level}.res.0.conv2.weight") for level in levels]
    return VQGANConfig(
        image_size=image_size,
        codebook_size=size(CODEBOOK),
        embedding_dim=size("quant_conv.weight"),
        z_channels=size("quant_conv.weight", 1),
        channels=channels,
        channel_multipliers=tuple(width // channels for width in widths),
        num_residual_blocks=number_of("encoder.conv_blocks.0.res.{}.conv2.weight"),
        attention_resolutions=(image_size >> (len(levels) - 1),),
        quantizer="cosine",
    )


def _llamagen_name(name: str, num_levels: int) -> str:
    """Their name of one of our tensors; their decoder counts its levels from the coarsest one on."""
    if middle := re.fullmatch(r"(encoder|decoder)\.mid\.(\w+)\.(.+)", name):
        return f"{middle[1]}.mid.{MIDDLE[middle[2]]}.{middle[3]}"
    if found := re.fullmatch(r"(encoder|decoder)\.(?:down|up)\.(\d+)\.(\w+)\.(.+)", name):
        level = int(found[2]) if found[1] == "encoder" else num_levels - 1 - int(found[2])
        return f"{found[1]}.conv_blocks.{level}.{found[3].replace('block', 'res')}.{found[4]}"
    return name


def _check_shapes(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size], origin: str) -> None:
    wrong = [name for name, shape in expected.items() if name not in tensors or tensors[name].shape != shape]
    if wrong:
        seen = f"of shape {tuple(tensors[wrong[0]].shape)}" if wrong[0] in tensors else "absent"
        raise CodecLoadError(
            f"{origin} is no whole image tokenizer of LlamaGen: {wrong[0]} is {seen}, expected "
            f"{tuple(expected[wrong[0]])} ({len(wrong)} such). Download it again."
        )
    if unknown := sorted(tensors.keys() - expected.keys() - NOT_USED):
        raise CodecLoadError(
            f"{origin} has {unknown[0]}, which LlamaGen's image tokenizers do not have ({len(unknown)} such): "
            "without it the codes would be others. Convert its vq_ds16_t2i.pt or vq_ds16_c2i.pt."
        )
