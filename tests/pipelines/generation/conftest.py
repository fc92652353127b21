"""A run in a folder, as the Hub would hold it: tiny, untrained, but whole."""

import pytest
import torch

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.clip.clip_folder import save_clip_folder, train_clip_tokenizer
from pipelines.clip.clip_reranking import new_clip
from pipelines.clip.clip_training import PREPROCESS, ClipTrainingConfig
from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.image_codes.vqgan_config import VQGANConfig

CAPTIONS = ["a small red star on a blue background", "a large green circle", "a white square on the left"]


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts") / "clip"
    sizes = ClipTrainingConfig(
        image_size=32, vision_width=8, text_width=32, text_layers=1, embed_dim=16, vocab_size=300
    )
    tokenizer = train_clip_tokenizer(CAPTIONS, sizes.vocab_size)
    model_config = sizes.model_config(len(tokenizer))
    torch.manual_seed(0)
    model = new_clip(model_config, PREPROCESS)
    save_clip_folder(folder, model, tokenizer, model_config=model_config, preprocess=PREPROCESS)
    return folder


@pytest.fixture(scope="session")
def tiny_codec(tmp_path_factory):
    torch.manual_seed(1)
    sizes = dict(image_size=16, codebook_size=12, embedding_dim=4, z_channels=4, channels=32)
    codec = VQGANCodec(
        VQGANConfig(
            **sizes,
            channel_multipliers=(1, 1, 1),
            num_residual_blocks=1,
            attention_resolutions=(),
            quantizer="nearest",
        )
    )
    folder = tmp_path_factory.mktemp("parts") / "codec"
    codec.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory, tiny_clip, tiny_codec):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    tokenizer = train_clip_tokenizer(CAPTIONS, 300)
    processor = DalleCollabProcessor(
        tokenizer,
        image_codec_repository=str(tiny_codec),
        image_codec_fingerprint=VQGANCodec.from_pretrained(tiny_codec).fingerprint,
        clip_repository=str(tiny_clip),
        text_sequence_length=8,
    )
    processor.save_pretrained(folder)
    torch.manual_seed(2)
    config = DalleCollabConfig(
        text_vocab_size=len(tokenizer),
        codebook_size=12,
        text_sequence_length=8,
        image_grid_size=4,
        hidden_size=32,
        num_hidden_layers=3,
        attention_pattern=("row", "column"),
        num_attention_heads=2,
        head_dim=16,
        conv_kernel_size=3,
    )
    DalleCollabForConditionalGeneration(config).save_pretrained(folder)
    return folder
