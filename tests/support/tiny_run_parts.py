"""The parts of a tiny, untrained run that several tests draw with."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.tasks.text_to_image.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.tasks.text_to_image.clip.clip_reranking import new_clip
from pipelines.tasks.text_to_image.clip.clip_training import PREPROCESS, ClipTrainingConfig
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig

TEXT_LENGTH, GRID, NUM_CODES = 8, 4, 12


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
            codebook_size=NUM_CODES,
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


def tiny_model(
    text_vocab_size: int, *, grid: int = GRID, seed: int = 0, layers: int = 3
) -> DalleCollabForConditionalGeneration:
    """Return an untrained model, always the same one for a seed."""
    torch.manual_seed(seed)
    config = DalleCollabConfig(
        text_vocab_size=text_vocab_size,
        codebook_size=NUM_CODES,
        text_sequence_length=TEXT_LENGTH,
        image_grid_size=grid,
        hidden_size=32,
        num_hidden_layers=layers,
        attention_pattern=("row", "column"),
        num_attention_heads=2,
        head_dim=16,
        conv_kernel_size=3,
    )
    return DalleCollabForConditionalGeneration(config).eval()


def write_tiny_run(folder: Path, codec_name: str = "", clip_name: str = "") -> Path:
    """Write a whole run, untrained: `run`, and its codec and CLIP as `codec` and `clip`; return the run's folder.

    The names are those by which the run finds the two; without them it finds the folders.
    """
    tokenizer, codec = write_tiny_clip_and_codec(folder)
    processor = DalleCollabProcessor(
        tokenizer,
        image_codec_repository=codec_name or str(folder / "codec"),
        image_codec_fingerprint=codec.fingerprint,
        clip_repository=clip_name or str(folder / "clip"),
        text_sequence_length=TEXT_LENGTH,
    )
    processor.save_pretrained(folder / "run")
    tiny_model(len(tokenizer)).save_pretrained(folder / "run")
    return folder / "run"
