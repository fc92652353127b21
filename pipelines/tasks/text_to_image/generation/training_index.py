"""Find the training captions and pictures nearest to a prompt or a picture: memorisation or generalisation?

The paper's appendix B tells them apart this way. An index is a folder: `training_index.json`, and for every shard
of the dataset `part-N.safetensors` with CLIP embeddings and image codes and `part-N.parquet` with the captions.

Axis names: `query`, `record`, `embedding`, `image` (the codes of one picture).
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from hub_tools.atomic_files import file_digest
from hub_tools.foreign.json_texts import read_json
from hub_tools.places import NoSuchPlaceError, local_folder

INDEX_FILE = "training_index.json"
FORMAT_VERSION = 1
RECORDS_PER_CHUNK = 16_384
LENGTH_TOLERANCE = 0.01
SAME_CLIP_COSINE = 0.999
PROBE_CAPTION = "a photo of a small red house"
"""Its embedding tells whether two CLIPs are the same, whatever machine and number format they run in."""

CAPTION_EMBEDDINGS, PICTURE_EMBEDDINGS, IMAGE_CODES = "caption_embeddings", "picture_embeddings", "image_codes"
PART_ENDINGS = {".safetensors", ".parquet"}
BUILD_COMMAND = "dalle-collab run index ORG/RUN --output FOLDER"


class TrainingIndexError(ValueError):
    """An index that cannot be used: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """What an index was built from."""

    dataset: str
    """Repository of image codes, or a folder's name without its path."""
    dataset_revision: str | None
    """Its commit; None for a folder."""
    every: int
    """One record in this many is in the index."""
    codec_fingerprint: str
    """The codec that draws the image codes."""
    codebook_size: int
    """Codes are in [0, codebook_size)."""
    grid_size: int
    """A picture is grid_size x grid_size codes."""
    clip_probe: tuple[float, ...]
    """Embedding of `PROBE_CAPTION` by the CLIP that made the index."""
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> Self:
        """Read the settings from parsed JSON; TypeError or KeyError if they are invalid."""
        return cls(**{**values, "clip_probe": tuple(float(value) for value in values["clip_probe"])})


@dataclass(frozen=True, kw_only=True)
class IndexPart:
    """The records of one shard."""

    name: str
    """Name of its two files without the ending."""
    shard: str
    """The shard's name in the dataset."""
    shard_bytes: int
    """Size of the shard when it was read."""
    num_records: int
    """Records in this part."""
    sha256: dict[str, str]
    """Digests of the two files by their ending."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A training record near a query."""

    similarity: float
    """Cosine of the two CLIP embeddings; 1 for equal ones."""
    caption: str
    """The record's caption, a stranger's text."""
    image_codes: np.ndarray
    """`(image,)` int64, to draw its picture."""


class TrainingIndex:
    """A checked index; only what is being read is in memory."""

    def __init__(
        self, folder: Path, settings: IndexSettings, parts: Sequence[IndexPart], typical_similarity: float
    ) -> None:
        self.folder, self.settings, self.parts = folder, settings, tuple(parts)
        self.typical_similarity = typical_similarity
        """Median similarity of a training picture to the training picture nearest to it."""
        self._captions = lru_cache(maxsize=8)(self._read_captions)

    @classmethod
    def load(cls, folder_or_repository: str | Path) -> Self:
        """Load an index from a folder or a Dataset Hub repository and check all of it.

        Raises TrainingIndexError if something is missing, damaged or not finite, and OSError if the Hub is down.
        """
        folder = _local_folder(str(folder_or_repository))
        settings, parts, typical_similarity = read_index_file(folder / INDEX_FILE)
        if typical_similarity is None:
            raise TrainingIndexError(f"{folder} is not finished. Run the same command again to resume: {BUILD_COMMAND}")
        for part in parts:
            check_part(folder, part, settings)
        return cls(folder, settings, parts, typical_similarity)

    @property
    def num_records(self) -> int:
        """Records in the index."""
        return sum(part.num_records for part in self.parts)

    def require_clip(self, probe: np.ndarray) -> None:
        """Raise TrainingIndexError unless `probe: (embedding,)`, of `PROBE_CAPTION`, comes from the index's CLIP."""
        require_same_clip(self.settings, probe)

    def nearest_captions(self, queries: np.ndarray, num_neighbours: int) -> list[list[Neighbour]]:
        """Return the records whose captions are nearest to `queries: (query, embedding)`, nearest first."""
        return self._nearest(CAPTION_EMBEDDINGS, queries, num_neighbours)

    def nearest_pictures(self, queries: np.ndarray, num_neighbours: int) -> list[list[Neighbour]]:
        """Return the records whose pictures are nearest to `queries: (query, embedding)`, nearest first."""
        return self._nearest(PICTURE_EMBEDDINGS, queries, num_neighbours)

    def _nearest(self, name: str, queries: np.ndarray, num_neighbours: int) -> list[list[Neighbour]]:
        found = nearest_records(self._chunks(name), queries, num_neighbours)
        return [[self._neighbour(similarity, *place) for similarity, place in row] for row in found]

    def _chunks(self, name: str) -> Iterator[tuple[int, int, np.ndarray]]:
        for number, part in enumerate(self.parts):
            yield from part_chunks(self.folder, part, name, number)

    def _neighbour(self, similarity: float, part_number: int, row: int) -> Neighbour:
        part = self.parts[part_number]
        with safe_open(self.folder / f"{part.name}.safetensors", "np") as tensors:
            image_codes = tensors.get_slice(IMAGE_CODES)[row : row + 1][0].astype(np.int64)
        caption = self._captions(part.name)[row].as_py()
        return Neighbour(similarity=similarity, caption=caption, image_codes=image_codes)

    def _read_captions(self, name: str) -> pa.ChunkedArray:
        return pq.read_table(self.folder / f"{name}.parquet", columns=["caption"])["caption"]


def nearest_records(
    chunks: Iterator[tuple[int, int, np.ndarray]], queries: np.ndarray, num_neighbours: int
) -> list[list[tuple[float, tuple[int, int]]]]:
    """Return for each query its nearest records as `(cosine, (part, row))`, nearest first, the earlier one if equal.

    `chunks` yield the part, the first row and embeddings `(record, embedding)` of length 1; so are `queries`.
    """
    best: list[list[tuple[float, tuple[int, int]]]] = [[] for _ in queries]
    for part, start, embeddings in chunks:
        similarities = (_unit(queries) @ _unit(embeddings).T).clip(-1, 1)  # (query, record)
        number = min(num_neighbours, similarities.shape[1])
        columns = np.argpartition(-similarities, number - 1, axis=1)[:, :number]
        for query, row in enumerate(columns):
            found = [(float(similarities[query, column]), (part, start + int(column))) for column in row]
            best[query] = heapq.nsmallest(num_neighbours, best[query] + found, key=lambda hit: (-hit[0], hit[1]))
    return best


def _unit(embeddings: np.ndarray) -> np.ndarray:
    """Return embeddings in float32 at length 1, which float16 numbers miss by a little."""
    embeddings = embeddings.astype(np.float32)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def part_chunks(folder: Path, part: IndexPart, name: str, number: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield `(number, first row, (record, embedding) float16)` of one part, at most `RECORDS_PER_CHUNK` at a time."""
    with safe_open(folder / f"{part.name}.safetensors", "np") as tensors:
        for start in range(0, part.num_records, RECORDS_PER_CHUNK):
            yield number, start, tensors.get_slice(name)[start : min(start + RECORDS_PER_CHUNK, part.num_records)]


def read_index_file(path: Path) -> tuple[IndexSettings, list[IndexPart], float | None]:
    """Return settings, parts and typical similarity (None: not finished); TrainingIndexError for other files."""
    try:
        values = read_json(path)
        version = values["settings"]["format_version"]
        if version != FORMAT_VERSION:
            raise TrainingIndexError(
                f"{path} has format {version}, this reader knows {FORMAT_VERSION}. "
                "Update the package: pip install -U dalle-collab"
            )
        settings, parts = (
            IndexSettings.from_mapping(values["settings"]),
            [IndexPart(**part) for part in values["parts"]],
        )
        if any(set(part.sha256) != PART_ENDINGS for part in parts):
            raise TypeError(f"a part does not have the files {sorted(PART_ENDINGS)}")
        return settings, parts, values["typical_similarity"]
    except FileNotFoundError as error:
        raise TrainingIndexError(f"{path.parent} has no {path.name}. Make an index: {BUILD_COMMAND}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingIndexError(f"{path} is damaged ({error!r}). Make it again: {BUILD_COMMAND}") from error


def index_text(settings: IndexSettings, parts: Sequence[IndexPart], typical_similarity: float | None) -> str:
    """Return the text of `training_index.json`."""
    values = dict(
        settings=asdict(settings), parts=[asdict(part) for part in parts], typical_similarity=typical_similarity
    )
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def require_same_clip(settings: IndexSettings, probe: np.ndarray) -> None:
    """Raise TrainingIndexError unless `probe: (embedding,)` is what the index's CLIP makes of `PROBE_CAPTION`."""
    expected = np.asarray(settings.clip_probe)
    if probe.shape != expected.shape or not float(probe @ expected) > SAME_CLIP_COSINE:
        raise TrainingIndexError(
            "The index was made with a different CLIP from the one that ranks here, and their embeddings cannot be "
            f"compared. Use the run's CLIP for both, or make the index again: {BUILD_COMMAND}"
        )


def check_part(folder: Path, part: IndexPart, settings: IndexSettings) -> None:
    """Raise TrainingIndexError unless both files match the index and contain what can be compared and drawn."""
    for ending, digest in part.sha256.items():
        path = folder / f"{part.name}{ending}"
        if path.parent.resolve() != folder.resolve() or not path.is_file():
            raise TrainingIndexError(f"{path.name} of {folder} is missing. Make the index again: {BUILD_COMMAND}")
        if file_digest(path) != digest:
            raise TrainingIndexError(f"{path.name} of {folder} is damaged. Make the index again: {BUILD_COMMAND}")
    problem = _problem_in(folder, part, settings)
    if problem:
        raise TrainingIndexError(f"{part.name} of {folder} {problem}. Make the index again: {BUILD_COMMAND}")


def _problem_in(folder: Path, part: IndexPart, settings: IndexSettings) -> str | None:
    embedding = (part.num_records, len(settings.clip_probe))
    expected = {
        CAPTION_EMBEDDINGS: ("F16", embedding),
        PICTURE_EMBEDDINGS: ("F16", embedding),
        IMAGE_CODES: ("I16", (part.num_records, settings.grid_size**2)),
    }
    try:
        with safe_open(folder / f"{part.name}.safetensors", "np") as tensors:
            pieces = {name: tensors.get_slice(name) for name in tensors.offset_keys()}
            shapes = {name: (piece.get_dtype(), tuple(piece.get_shape())) for name, piece in pieces.items()}
        if shapes != expected:
            return f"has the tensors {shapes}, expected {expected}"
        for name in (CAPTION_EMBEDDINGS, PICTURE_EMBEDDINGS):
            for _, _, chunk in part_chunks(folder, part, name, 0):
                lengths = np.linalg.norm(chunk.astype(np.float32), axis=1)
                if not (np.abs(lengths - 1) < LENGTH_TOLERANCE).all():  # also false for NaN
                    return f"has {name} that are not finite or not of length 1"
        for _, _, chunk in part_chunks(folder, part, IMAGE_CODES, 0):
            if chunk.min(initial=0) < 0 or chunk.max(initial=0) >= settings.codebook_size:
                return f"has image codes outside 0 to {settings.codebook_size - 1}"
        captions = pq.read_table(folder / f"{part.name}.parquet", columns=["caption"])["caption"]
    except (SafetensorError, pa.ArrowInvalid, KeyError, OSError) as error:
        return f"cannot be read ({str(error).splitlines()[0]})"
    if captions.type != pa.string() or len(captions) != part.num_records or captions.null_count:
        return f"has {len(captions)} captions of type {captions.type}, expected {part.num_records} strings"
    return None


def _local_folder(name: str) -> Path:
    try:
        folder = local_folder(name, expected="a folder or a dataset repository ORG/NAME")
    except NoSuchPlaceError as error:
        raise TrainingIndexError(str(error)) from error
    if folder is not None:
        return folder
    from hub_tools.foreign.downloads import fetch_files

    patterns = [INDEX_FILE, "part-*.safetensors", "part-*.parquet"]
    return fetch_files(name, repo_type="dataset", patterns=patterns)
