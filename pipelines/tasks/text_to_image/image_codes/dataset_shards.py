"""The shards of an image-code dataset, in a folder or on the Dataset Hub, one at a time."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from hub_tools.foreign.downloads import fetch_file, listed_files
from hub_tools.foreign.linked_folders import files_below
from hub_tools.places import local_folder


@dataclass(frozen=True, kw_only=True)
class DatasetShard:
    """One Parquet file of a dataset."""

    name: str
    """Its path below the dataset's folder or repository."""
    num_bytes: int
    """Bytes of the file."""


@dataclass(frozen=True, kw_only=True)
class ShardedDataset:
    """A dataset whose shards can be read one at a time."""

    name: str
    """Folder or repository."""
    revision: str | None
    """Commit on the Hub; None for a folder."""
    shards: tuple[DatasetShard, ...]
    """In the order of their names; at least one."""

    @contextmanager
    def local_copy(self, shard: DatasetShard) -> Iterator[Path]:
        """Yield the shard's file; one from the Hub is on this disk only during the block."""
        if self.revision is None:
            yield Path(self.name) / shard.name
            return
        with tempfile.TemporaryDirectory() as folder:
            yield fetch_file(self.name, shard.name, repo_type="dataset", revision=self.revision, local_dir=folder)


def find_dataset(folder_or_repository: str, revision: str | None = None) -> ShardedDataset:
    """Return a dataset of a folder or of the Dataset Hub, at its current commit.

    Raises ValueError if there are no shards.
    """
    folder = local_folder(folder_or_repository, expected="a folder of shards or a dataset ORG/NAME")
    if folder is not None:
        paths = [path for path in files_below(folder) if path.suffix == ".parquet" and not path.name.startswith(".")]
        if not paths:
            raise ValueError(
                f"{folder} has no Parquet shards. Make some: dalle-collab data prepare SOURCE --output {folder}"
            )
        shards = [DatasetShard(name=str(path.relative_to(folder)), num_bytes=path.stat().st_size) for path in paths]
        return ShardedDataset(name=str(folder), revision=None, shards=tuple(shards))
    return dataset_on_hub(folder_or_repository, revision)


def dataset_on_hub(repository: str, revision: str | None = None) -> ShardedDataset:
    """Return a dataset of the Hub with the commit that the revision names now; ValueError if it has no shards."""
    try:
        commit = HfApi().dataset_info(repository, revision=revision, expand=["sha"]).sha
        files = {file.path: file.size for file in listed_files(repository, commit, "dataset")}
    except (RepositoryNotFoundError, RevisionNotFoundError):
        files = {}
    names = sorted(name for name in files if name.endswith(".parquet"))
    if not names:
        raise ValueError(
            f"There is no dataset repository {repository} with Parquet shards at revision {revision or 'main'} on this "
            f"Hub, or your token has no access to it. Publish one with: hub-tools publish dataset FOLDER {repository}"
        )
    shards = tuple(DatasetShard(name=name, num_bytes=files[name]) for name in names)
    return ShardedDataset(name=repository, revision=commit, shards=shards)
