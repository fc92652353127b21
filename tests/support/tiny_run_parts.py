"""The parts of a tiny, untrained run that several tests draw with."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from pipelines.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.clip.clip_reranking import new_clip
from pipelines.clip.clip_training import PREPROCESS, ClipTrainingConfig
from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.image_codes.vqgan_config import VQGANConfig


def write_tiny_clip_and_codec(folder: Path) -> tuple[PreTrainedTokenizerBase, VQGANCodec]:
    """Write `clip` and `codec` into a folder, always the same ones; return the CLIP's tokenizer and the codec."""
    torch.manual_seed(0)
    tokenizer = train_clip_tokenizer(["a small red star", "a large green circle"], 300)
    sizes = ClipTrainingConfig(image_size=32, vision_width=8, text_width=32, text_layers=1, embed_dim=16)
    config = sizes.model_config(len(tokenizer))
    save_clip_folder(
        folder / "clip", new_clip(config, PREPROCESS), tokenizer, model_config=config, preprocess=PREPROCESS
    )
    codec = VQGANCodec(
        VQGANConfig(
            image_size=16,
            codebook_size=12,
            embedding_dim=4,
            z_channels=4,
            channels=32,
            channel_multipliers=(1, 1, 1),
            num_residual_blocks=1,
            attention_resolutions=(),
            quantizer="nearest",
        )
    )
    codec.save_pretrained(folder / "codec")
    return tokenizer, codec
