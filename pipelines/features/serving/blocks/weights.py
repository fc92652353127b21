"""Some tensors of a published model: their bytes alone are read, and checked against the run's signed manifest.

A safetensors file is 8 bytes of length, a JSON header, then the tensors at the offsets in the header.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.hf_api import RepoFile
from torch import Tensor

from hub_tools.atomic_files import file_digest
from hub_tools.foreign.downloads import fetch_file
from hub_tools.foreign.json_texts import parse_json, read_json
from hub_tools.places import local_folder
from hub_tools.run_files import TRAINING_RUN_FILE, WEIGHTS_FILE
from pipelines.features.publishing.repository.manifest import CheckpointRefusedError
from pipelines.features.publishing.repository.snapshot import RunSnapshot

CONFIG_FILE = "config.json"
MOST_HEADER_BYTES = 2**26
MOST_BYTES_AT_ONCE = 2**26
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8}

ReadRange = Callable[[int, int], bytes]
"""Returns the file's bytes from the first place to just before the second one."""


class StoredTensor(NamedTuple):
    """Where a tensor's bytes are, behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model's configuration, and a way to its tensors."""

    name: str
    """Repository or folder."""

    revision: str
    """SHA-256 of the weights' file: commits without new weights change nothing."""

    commit: str | None
    """Of the repository; None for a folder."""

    config: Mapping[str, object]
    header: Mapping[str, StoredTensor] = field(repr=False)

    first_byte: int
    """Where the tensors begin."""

    read_range: ReadRange = field(repr=False)
    digests: Mapping[str, str] | None = field(default=None, repr=False)
    """SHA-256 of each tensor's bytes, as a publisher of the run signed them; None: nobody signs this model."""

    def read(self, prefixes: Sequence[str] = ("",), *, without: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the tensors whose names begin with one of the prefixes and with none of the others.

        Raises:
            CheckpointRefusedError: a tensor is not what the publisher signed.
        """
        wanted = {
            name: entry
            for name, entry in self.header.items()
            if name.startswith(tuple(prefixes)) and not name.startswith(tuple(without))
        }
        found = {}
        for names, start, end in _neighbours(wanted):
            content = self.read_range(self.first_byte + start, self.first_byte + end)
            for name in names:
                entry = wanted[name]
                found[name] = self._tensor(name, content[entry.start - start : entry.end - start])
        return found

    def num_bytes(self, prefixes: Sequence[str]) -> int:
        """Return the size of the tensors whose names begin with one of the prefixes."""
        return sum(entry.end - entry.start for name, entry in self.header.items() if name.startswith(tuple(prefixes)))

    def _tensor(self, name: str, content: bytes) -> Tensor:
        if self.digests is not None and hashlib.sha256(content).hexdigest() != self.digests.get(name):
            raise CheckpointRefusedError(
                f"Tensor {name} of {self.name} at {str(self.commit)[:12]} is not what the run's publisher signed. "
                "Try again; if it stays so, ask the run's organiser."
            )
        entry = self.header[name]
        return torch.frombuffer(bytearray(content), dtype=entry.dtype).view(entry.shape)


def find_model(name: str, revision: str | None = None, *, snapshot: RunSnapshot | None = None) -> PublishedModel:
    """Look up a folder, or a repository at a commit: its configuration, the header of its weights, its manifest.

    `snapshot` is the run's at this commit, as this process trusts it; by default the commit's own keys count.

    Raises:
        ValueError: there is no such model, or its weights are not one safetensors file.
        CheckpointRefusedError: the run has keys to sign with, and nobody has signed the checkpoint.
    """
    folder = local_folder(name, revision=revision, expected="a folder or a Hub repository ORG/RUN")
    if folder is not None:
        return _in_folder(folder)
    commit = str(HfApi().model_info(name, revision=revision).sha)
    config = read_json(fetch_file(name, CONFIG_FILE, revision=commit))
    file = HfFileSystem().open(f"{name}@{commit}/{WEIGHTS_FILE}", "rb", cache_type="none")

    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return file.read(end - start)

    header, first_byte = _header(read, file.size, name)
    return PublishedModel(
        name=name,
        revision=_weights_digest(name, commit),
        commit=commit,
        config=config,
        header=header,
        first_byte=first_byte,
        read_range=read,
        digests=_signed_digests(name, commit, snapshot),
    )


def _weights_digest(name: str, commit: str) -> str:
    info = next(iter(HfApi().get_paths_info(name, [WEIGHTS_FILE], revision=commit)), None)
    if not isinstance(info, RepoFile) or info.lfs is None:
        raise ValueError(f"{name} at {commit[:12]} has no {WEIGHTS_FILE}. Wait for the run's first checkpoint.")
    return info.lfs.sha256


def _in_folder(folder: Path) -> PublishedModel:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS_FILE}. Name a folder with a checkpoint, or a repository ORG/RUN.")

    def read(start: int, end: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    header, first_byte = _header(read, path.stat().st_size, str(folder))
    config = read_json(folder / CONFIG_FILE)
    return PublishedModel(
        name=str(folder),
        revision=file_digest(path),
        commit=None,
        config=config,
        header=header,
        first_byte=first_byte,
        read_range=read,
    )


def _header(read: ReadRange, size: int, name: str) -> tuple[dict[str, StoredTensor], int]:
    length = int.from_bytes(read(0, 8), "little")
    try:
        header: Any = parse_json(read(8, 8 + length)) if 0 < length <= min(size - 8, MOST_HEADER_BYTES) else None
        header.pop("__metadata__", None)
        places = {tensor: (entry["dtype"], entry["shape"], *entry["data_offsets"]) for tensor, entry in header.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{WEIGHTS_FILE} of {name} has no safetensors header. Download or publish it again."
        ) from error
    found = {}
    for tensor, (dtype, shape, start, end) in places.items():
        is_inside = dtype in DTYPES and 0 <= start <= end <= size - 8 - length
        if not is_inside or end - start != math.prod(shape) * DTYPES[dtype].itemsize:
            raise ValueError(f"Tensor {tensor} of {name} is {header[tensor]}, which this package cannot read.")
        found[tensor] = StoredTensor(DTYPES[dtype], tuple(shape), start, end)
    return found, 8 + length


def _signed_digests(name: str, commit: str, snapshot: RunSnapshot | None) -> Mapping[str, str] | None:
    if snapshot is None and not HfApi().file_exists(name, TRAINING_RUN_FILE, revision=commit):
        return None
    files = (snapshot or RunSnapshot.read(name, commit)).signed_files
    return None if files is None else files[WEIGHTS_FILE].tensors


def _neighbours(entries: Mapping[str, StoredTensor]) -> Iterator[tuple[list[str], int, int]]:
    """Yield names of tensors that lie one behind the other, with where they begin and end."""
    names: list[str] = []
    start = end = 0
    for name in sorted(entries, key=lambda name: (entries[name].start, entries[name].end)):
        _, _, first, last = entries[name]
        if names and (first != end or last - start > MOST_BYTES_AT_ONCE):
            yield names, start, end
            names = []
        if not names:
            start = first
        names, end = [*names, name], last
    if names:
        yield names, start, end
