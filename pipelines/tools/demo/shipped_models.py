"""Paths of the demo's small pretrained codec and CLIP."""

from pathlib import Path

PRETRAINED_CODEC = Path(__file__).parent / "pretrained" / "codec"
"""A folder for `VQGANCodec.from_pretrained`: 128 x 128 pixels as 8 x 8 image codes."""

PRETRAINED_CLIP = Path(__file__).parent / "pretrained" / "clip"
"""A folder for `ClipReranker.from_pretrained`."""
