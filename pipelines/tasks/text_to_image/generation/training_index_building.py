"""Make the index of a dataset: CLIP embeddings of its captions and of its pictures as the codec draws them.

Shard by shard, so that a stopped build resumes where it was and ends with the same files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

from hub_tools.atomic_files import file_digest, write_text_whole, written_whole
from hub_tools.printing.stage_progress import OnProgress, report_nothing
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker
from pipelines.tasks.text_to_image.generation.training_index import (
    CAPTION_EMBEDDINGS,
    IMAGE_CODES,
    INDEX_FILE,
    PICTURE_EMBEDDINGS,
    PROBE_CAPTION,
    IndexPart,
    IndexSettings,
    TrainingIndexError,
    check_part,
    index_text,
    nearest_records,
    part_chunks,
    read_index_file,
    require_same_clip,
)
from pipelines.tasks.text_to_image.image_codes.dataset_shards import DatasetShard, ShardedDataset
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeLayout,
    captions_and_codes,
    check_code_range,
    iterate_shard,
    read_layout,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

NUM_PROBED_RECORDS = 256
"""Records whose nearest neighbours measure how similar training pictures are to each other."""

CARD = """---
viewer: false
tags: [clip-embeddings, image-codes]
---

# CLIP index of {dataset}

{num_records:,} records of `{dataset}`{revision}: CLIP embeddings of the captions and of the pictures, the captions, and
the image codes. The Space `text_to_image_demo` uses it to show the training pictures nearest to its drawings: set its
variable `TRAINING_INDEX` to this repository.
"""


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """Summary of a finished index."""

    num_records: int
    """Records in it."""
    num_parts: int
    """Parts, one for each shard."""
    num_parts_kept: int
    """Parts from an earlier build."""
    num_bytes: int
    """Bytes of all files."""
    typical_similarity: float
    """Median similarity of a training picture to its nearest neighbour."""


def build_training_index(
    dataset: ShardedDataset,
    codec: VQGANCodec,
    reranker: ClipReranker,
    output: Path,
    *,
    every: int = 1,
    batch_size: int = 64,
    on_progress: OnProgress = report_nothing,
) -> IndexReport:
    """Write the index of a dataset into `output`; a stopped build resumes, and ends the same to the byte.

    `every`: only one record of a shard in this many, for datasets too large for a Space. Raises ValueError if the
    dataset is of another codec or `output` has another index, FileExistsError if it has something else.
    """
    if every < 1 or batch_size < 1:
        raise ValueError(f"every is {every} and batch_size {batch_size}, expected at least 1.")
    settings = _settings(dataset, codec, reranker, every)
    writer = _PartWriter(
        codec=codec,
        reranker=reranker,
        settings=settings,
        output=output,
        batch_size=batch_size,
        on_progress=on_progress,
    )
    known = {part.shard: part for part in _earlier_parts(output, settings)}
    output.mkdir(parents=True, exist_ok=True)
    num_kept, num_records = 0, 0
    for number, shard in enumerate(dataset.shards):
        name, part = f"part-{number:05d}", known.get(shard.name)
        if part is not None and _is_of(part, name, shard) and _is_whole(output, part, settings):
            num_kept += 1
        else:
            with dataset.local_copy(shard) as path:
                part = known[shard.name] = writer.write(name, shard, path)
            check_part(output, part, settings)  # a CLIP with damaged weights is found here, not on the page
            write_text_whole(output / INDEX_FILE, index_text(settings, _in_order(known, dataset), None))
        num_records += part.num_records
        on_progress("indexing", number + 1, len(dataset.shards), f"shards, {num_records:,} records")
    parts = _in_order(known, dataset)
    if num_records == 0:
        raise ValueError(f"Dataset {dataset.name} has no records. Check it: dalle-collab data verify FOLDER")
    typical_similarity = _typical_similarity(output, parts)
    write_text_whole(output / "README.md", _card(dataset, num_records))
    write_text_whole(output / INDEX_FILE, index_text(settings, parts, typical_similarity))
    _remove_stale_parts(output, parts)
    return IndexReport(
        num_records=num_records,
        num_parts=len(parts),
        num_parts_kept=num_kept,
        num_bytes=sum(path.stat().st_size for path in output.iterdir() if path.is_file()),
        typical_similarity=typical_similarity,
    )


def _in_order(known: Mapping[str, IndexPart], dataset: ShardedDataset) -> list[IndexPart]:
    return [known[shard.name] for shard in dataset.shards if shard.name in known]


def _is_of(part: IndexPart, name: str, shard: DatasetShard) -> bool:
    return (part.name, part.shard_bytes) == (name, shard.num_bytes)


def _card(dataset: ShardedDataset, num_records: int) -> str:
    revision = f" at `{dataset.revision[:12]}`" if dataset.revision else ""
    return CARD.format(dataset=_name_of(dataset), num_records=num_records, revision=revision)


def _name_of(dataset: ShardedDataset) -> str:
    # The path of a local folder is private and must not be published with the index.
    return dataset.name if dataset.revision else Path(dataset.name).resolve().name


def _settings(dataset: ShardedDataset, codec: VQGANCodec, reranker: ClipReranker, every: int) -> IndexSettings:
    probe = reranker.text_embeddings([PROBE_CAPTION])[0].float().cpu().numpy()
    return IndexSettings(
        dataset=_name_of(dataset),
        dataset_revision=dataset.revision,
        every=every,
        codec_fingerprint=codec.fingerprint,
        codebook_size=codec.config.codebook_size,
        grid_size=codec.config.grid_size,
        clip_probe=tuple(float(value) for value in probe),
    )


def _earlier_parts(output: Path, settings: IndexSettings) -> list[IndexPart]:
    """Return the parts of an unfinished index in `output`."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return []
    if not (output / INDEX_FILE).is_file():
        raise FileExistsError(f"{output} exists and is not an index. Choose another --output or remove it.")
    found, parts, _ = read_index_file(output / INDEX_FILE)
    require_same_clip(found, np.asarray(settings.clip_probe))
    if replace(found, clip_probe=settings.clip_probe) != settings:
        raise ValueError(
            f"{output} has an index of {_words(found)}, and this one would be of {_words(settings)}. "
            "Choose another --output or remove it."
        )
    return parts


def _words(settings: IndexSettings) -> str:
    revision = f" at {settings.dataset_revision[:12]}" if settings.dataset_revision else ""
    return f"{settings.dataset}{revision}, codec {settings.codec_fingerprint}, one record in {settings.every}"


def _is_whole(output: Path, part: IndexPart, settings: IndexSettings) -> bool:
    try:
        check_part(output, part, settings)
    except TrainingIndexError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _PartWriter:
    """Writes the two files of a part; what all parts share."""

    codec: VQGANCodec
    reranker: ClipReranker
    settings: IndexSettings
    output: Path
    batch_size: int
    on_progress: OnProgress

    def write(self, name: str, shard: DatasetShard, path: Path) -> IndexPart:
        """Embed the records of the shard in `path` and return the part."""
        captions, image_codes = _read_shard(path, self.settings)
        tensors = {**self._embeddings(captions, image_codes, shard.name), IMAGE_CODES: image_codes}
        table = pa.table({"caption": pa.array(captions, pa.string())})
        digests = {
            ".safetensors": self._write_file(f"{name}.safetensors", lambda target: save_file(tensors, target)),
            ".parquet": self._write_file(f"{name}.parquet", lambda target: pq.write_table(table, target)),
        }
        return IndexPart(
            name=name, shard=shard.name, shard_bytes=shard.num_bytes, num_records=len(captions), sha256=digests
        )

    def _embeddings(self, captions: list[str], image_codes: np.ndarray, shard_name: str) -> dict[str, np.ndarray]:
        shape = (len(captions), len(self.settings.clip_probe))
        embeddings = {name: np.empty(shape, np.float16) for name in (CAPTION_EMBEDDINGS, PICTURE_EMBEDDINGS)}
        for start in range(0, len(captions), self.batch_size):
            rows = slice(start, start + self.batch_size)
            codes = torch.from_numpy(image_codes[rows]).long().to(self.reranker.device)
            pictures = self.reranker.image_embeddings(self.codec.decode(codes))
            embeddings[CAPTION_EMBEDDINGS][rows] = self.reranker.text_embeddings(captions[rows]).half().cpu().numpy()
            embeddings[PICTURE_EMBEDDINGS][rows] = pictures.half().cpu().numpy()
            self.on_progress("embedding", min(rows.stop, len(captions)), len(captions), f"records of {shard_name}")
        return embeddings

    def _write_file(self, name: str, write: Callable[[Path], object]) -> str:
        with written_whole(self.output / name) as temporary:
            write(temporary)
        return file_digest(self.output / name)


def _read_shard(path: Path, settings: IndexSettings) -> tuple[list[str], np.ndarray]:
    """Return captions and `(record, image)` int16 codes of one record in `every`; ValueError for another codec."""
    layout = read_layout(path)
    expected = ImageCodeLayout(
        codec_fingerprint=settings.codec_fingerprint,
        codebook_size=settings.codebook_size,
        grid_size=settings.grid_size,
    )
    if not layout.is_of_same_codec(expected):
        raise ValueError(
            f"Shard {path.name} was made by codec {layout.codec_fingerprint}, this is {expected.codec_fingerprint}. "
            "Name the codec of the dataset: --codec FOLDER_OR_REPOSITORY"
        )
    captions: list[str] = []
    image_codes = [np.empty((0, layout.num_codes), np.int16)]
    for batch in iterate_shard(path):
        some_captions, some_codes = captions_and_codes(batch, num_codes=layout.num_codes, shard_name=path.name)
        captions += [caption or "" for caption in some_captions]
        image_codes.append(some_codes)
    codes = np.concatenate(image_codes)[:: settings.every]
    check_code_range(codes, layout.codebook_size, f"shard {path.name}")
    return captions[:: settings.every], np.ascontiguousarray(codes)


def _typical_similarity(output: Path, parts: Sequence[IndexPart]) -> float:
    """Return the median similarity of some pictures, spread over the index, to their nearest neighbours."""
    num_records = sum(part.num_records for part in parts)
    wanted = set(np.unique(np.linspace(0, num_records - 1, NUM_PROBED_RECORDS).round().astype(int)).tolist())
    queries, before = [], 0
    for _, _, chunk in _all_pictures(output, parts):
        queries += [chunk[number - before] for number in range(before, before + len(chunk)) if number in wanted]
        before += len(chunk)
    found = nearest_records(_all_pictures(output, parts), np.stack(queries), 2)
    # The nearest one is the picture itself, or one that is equal to it.
    return float(np.median([row[-1][0] for row in found]))


def _all_pictures(output: Path, parts: Sequence[IndexPart]) -> Iterator[tuple[int, int, np.ndarray]]:
    for number, part in enumerate(parts):
        yield from part_chunks(output, part, PICTURE_EMBEDDINGS, number)


def _remove_stale_parts(output: Path, parts: Sequence[IndexPart]) -> None:
    names = {part.name for part in parts}
    for path in output.glob("part-*"):
        if path.stem not in names:
            path.unlink()
