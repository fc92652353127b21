"""Picks records spread over a folder of shards, for people to look at."""

from pathlib import Path

import numpy as np

from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import evenly_spread, shards_of
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeFormatError,
    captions_and_codes,
    iterate_shard,
    read_layout,
)


def spread_records(folder: Path, num_records: int, *, codec_fingerprint: str) -> tuple[list[str], np.ndarray]:
    """Captions and (num_records, num_codes) int16 codes, evenly spread over evenly spread shards.

    FileNotFoundError if there are no shards, ImageCodeFormatError if another codec made them.
    """
    shards = evenly_spread(shards_of(folder), num_records)
    captions: list[str] = []
    image_codes: list[np.ndarray] = []
    for index, shard in enumerate(shards):
        layout = read_layout(shard)
        if layout.codec_fingerprint != codec_fingerprint:
            raise ImageCodeFormatError(
                f"Shard {shard.name} was made by codec {layout.codec_fingerprint}, this is {codec_fingerprint}. "
                "Give the codec that made it with --codec."
            )
        wanted = num_records // len(shards) + (index < num_records % len(shards))
        shard_captions, shard_codes = _whole_shard(shard, layout.num_codes)
        rows = np.unique(np.linspace(0, len(shard_captions) - 1, wanted).round().astype(int))
        captions += [shard_captions[row] or "" for row in rows]
        image_codes.append(shard_codes[rows])
    return captions, np.concatenate(image_codes)


def _whole_shard(shard: Path, num_codes: int) -> tuple[list[str | None], np.ndarray]:
    parts = [captions_and_codes(batch, num_codes=num_codes, shard_name=shard.name) for batch in iterate_shard(shard)]
    return [caption for captions, _ in parts for caption in captions], np.concatenate([codes for _, codes in parts])
