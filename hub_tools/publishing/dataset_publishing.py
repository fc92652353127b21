"""Publishing a folder of Parquet shards on the Dataset Hub: checked, described in a card, in one commit."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from .dataset_card import DatasetSummary, ShardSummary, dataset_card
from .folder_publishing import Published, check_visibility

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

METADATA_PREFIX = b"dalle_collab."
CARD_NAME = "README.md"


class ShardError(ValueError):
    """A shard that cannot be published."""


def publish_dataset(
    folder: Path | str,
    repo_id: str,
    *,
    private: bool = False,
    message: str | None = None,
    license: str | None = None,
    on_shard: Callable[[int, int], None] | None = None,
) -> str:
    """Publish a folder of Parquet shards as the dataset `repo_id` and return the address of its commit.

    Every shard is opened first; then everything goes in one commit, with a card. Publishing the same folder again makes
    no commit. Raises ShardError, which names the shard and the cure, before anything is sent.
    """
    return publish_checked_dataset(
        inspect_shards(Path(folder), on_shard), repo_id, private=private, message=message, license=license
    ).url


def publish_checked_dataset(
    dataset: DatasetSummary,
    repo_id: str,
    *,
    private: bool = False,
    message: str | None = None,
    license: str | None = None,
    credits: str = "",
) -> Published:
    """Publish shards that `inspect_shards` has checked. The Hub and the token are those of the environment."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
    found = api.dataset_info(repo_id)
    check_visibility(repo_id, found.private, wanted=private)
    operations = _operations(api, dataset, repo_id, dataset_card(dataset, repo_id, license=license, credits=credits))
    commit = api.create_commit(
        repo_id,
        operations,
        repo_type="dataset",
        commit_message=message or f"Publish {dataset.num_rows:,} records in {len(dataset.shards)} shards",
    )
    return Published(url=str(commit.commit_url), changed=commit.oid != found.sha)


def inspect_shards(folder: Path, on_shard: Callable[[int, int], None] | None = None) -> DatasetSummary:
    """Open every Parquet file below `folder` and return what they contain.

    Raises ShardError for a folder without shards, a shard that cannot be read, and shards that do not belong together.
    """
    paths = sorted(path for path in folder.rglob("*.parquet") if not _is_hidden(path.relative_to(folder)))
    if not paths:
        raise ShardError(
            f"{folder} has no .parquet files, expected shards. Make them: "
            f"dalle-collab data prepare SOURCE --codec CODEC --output {folder}"
        )
    shards = []
    for number, path in enumerate(paths, start=1):
        shards.append(_inspect_shard(folder, path))
        if on_shard is not None:
            on_shard(number, len(paths))
    first = shards[0]
    for shard in shards[1:]:
        _check_same(first, shard)
    schema = pq.read_schema(paths[0])
    return DatasetSummary(folder=folder, shards=tuple(shards), schema=schema, metadata=first.metadata)


def _inspect_shard(folder: Path, path: Path) -> ShardSummary:
    name = path.relative_to(folder).as_posix()
    try:
        with pq.ParquetFile(path) as file:
            # The footer of a file cut in the middle may be intact: each row group has to be where it says.
            for group in range(file.num_row_groups):
                file.read_row_group(group)
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ShardError(
            f"Shard {name} cannot be read ({reason}): it is truncated or damaged. Delete it and make it again: "
            f"dalle-collab data prepare SOURCE --codec CODEC --output {folder}"
        ) from error
    metadata = {
        key.removeprefix(METADATA_PREFIX).decode(): value.decode()
        for key, value in (schema.metadata or {}).items()
        if key.startswith(METADATA_PREFIX)
    }
    return ShardSummary(
        name=name,
        num_rows=num_rows,
        num_bytes=path.stat().st_size,
        column_types=_column_types(schema),
        metadata=metadata,
    )


def _column_types(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in schema)


def _check_same(first: ShardSummary, other: ShardSummary) -> None:
    if first.column_types != other.column_types:
        seen, expected = dict(other.column_types), dict(first.column_types)
        raise ShardError(
            f"Shard {other.name} has columns {seen}, {first.name} has {expected}. Publish them as two datasets"
        )
    if first.metadata != other.metadata:
        raise ShardError(
            f"Shard {other.name} was made with {other.metadata}, {first.name} with {first.metadata}: "
            "one dataset has one codec. Prepare them again with the same codec, or publish them as two datasets"
        )


def _operations(
    api: "HfApi", dataset: DatasetSummary, repo_id: str, card: str
) -> "list[CommitOperationAdd | CommitOperationDelete]":
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    additions = [
        CommitOperationAdd(path_in_repo=_place(shard), path_or_fileobj=dataset.folder / shard.name)
        for shard in dataset.shards
    ]
    kept = {addition.path_in_repo for addition in additions}
    there = api.list_repo_files(repo_id, repo_type="dataset")
    # Shards of an earlier publication would otherwise be read together with these.
    stale = [path for path in there if path.endswith(".parquet") and path not in kept]
    deletions = [CommitOperationDelete(path_in_repo=path) for path in stale]
    return [*deletions, *additions, CommitOperationAdd(path_in_repo=CARD_NAME, path_or_fileobj=card.encode())]


def _place(shard: ShardSummary) -> str:
    """Return a shard's path in the repository: below `data/`, where readers expect it."""
    return shard.name if shard.name.startswith("data/") else f"data/{shard.name}"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
