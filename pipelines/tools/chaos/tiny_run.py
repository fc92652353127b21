"""Creates the chaos run's repositories on the environment's Hub, in one process, and what such a tiny run needs: image
codes determined by their captions, an untrained codec, a tokenizer.

Usage: python -m pipelines.tools.chaos.tiny_run FOLDER REPOSITORY SETTINGS.json, with `HF_ENDPOINT` and `HF_TOKEN` set.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from hub_tools.endpoint import prepare_hub_client
from hub_tools.publishing.dataset_publishing import publish_dataset
from hub_tools.publishing.folder_publishing import publish_folder
from pipelines.features.publishing.repository.creation import create_run_repository
from pipelines.features.publishing.repository.organiser import found_organiser
from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    image_code_table,
    write_image_code_shard,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig
from pipelines.tasks.text_to_image.run_creation import compose_processor, compose_run
from pipelines.tools.chaos.tiny_settings import TEXT_SEQUENCE_LENGTH

NUM_RECORDS, RECORDS_PER_SHARD = 2048, 32


def create_tiny_run(folder: Path, repository: str, settings: dict) -> None:
    """Publish a tiny dataset, codec and run; `folder` is an empty folder for their files."""
    layout = write_tiny_material(folder, NUM_RECORDS)
    dataset, codec = f"{repository}-codes", f"{repository}-codec"
    publish_dataset(folder / "dataset", dataset)
    publish_folder(folder / "codec", codec)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    run = compose_run(
        run_id=settings.pop("run_id"),
        dataset_repository=dataset,
        layout=layout,
        tokenizer=tokenizer,
        settings=settings,
    )
    processor = compose_processor(
        tokenizer,
        run,
        layout,
        codec_repository=codec,
        codec_fingerprint=layout.codec_fingerprint,
        clip_repository=None,
    )
    (folder / "run").mkdir()
    run = run.replace(organiser_key=found_organiser(repository).key.public)
    create_run_repository(repository, run, processor, folder / "run")


def save_tiny_codec(folder: Path, seed: int) -> VQGANCodec:
    """Save an untrained codec of 16 x 16 pixels, 4 x 4 codes out of 32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = dict(image_size=16, codebook_size=32, embedding_dim=4, z_channels=4, channels=32)
        config = VQGANConfig(
            **sizes, channel_multipliers=(1, 1, 1), num_residual_blocks=1, attention_resolutions=(), quantizer="nearest"
        )
        codec = VQGANCodec(config)
    codec.save_pretrained(folder)
    return codec


def numbered_records(numbers: range, layout: ImageCodeLayout) -> tuple[list[str], np.ndarray]:
    """Return captions and image codes, (record, num_codes) int64, determined by the records' numbers."""
    captions = [f"picture number {number}" for number in numbers]
    return captions, (np.array(numbers)[:, None] + np.arange(layout.num_codes)) % layout.codebook_size


def write_shards(folder: Path, layout: ImageCodeLayout, num_records: int) -> tuple[list[str], dict[str, list[int]]]:
    """Write shards of numbered records to `folder/data`; return captions and, by caption, codes."""
    (folder / "data").mkdir(parents=True)
    captions, codes = numbered_records(range(num_records), layout)
    for shard, start in enumerate(range(0, num_records, RECORDS_PER_SHARD)):
        part = slice(start, start + RECORDS_PER_SHARD)
        table = image_code_table(captions[part], codes[part], layout)
        write_image_code_shard(folder / "data" / f"train-{shard:05d}.parquet", table)
    return captions, dict(zip(captions, codes.tolist(), strict=True))


def write_tiny_material(folder: Path, num_records: int) -> ImageCodeLayout:
    """Write `codec/`, `dataset/` and `tokenizer/` into a folder; return the dataset's layout."""
    codec = save_tiny_codec(folder / "codec", seed=0)
    layout = ImageCodeLayout(codec_fingerprint=codec.fingerprint, codebook_size=32, grid_size=4)
    captions, _ = write_shards(folder / "dataset", layout, num_records)
    train_tokenizer(captions, 64, model_max_length=TEXT_SEQUENCE_LENGTH).save_pretrained(str(folder / "tokenizer"))
    return layout


if __name__ == "__main__":
    prepare_hub_client()
    create_tiny_run(Path(sys.argv[1]), sys.argv[2], json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
