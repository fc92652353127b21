"""Publishing a folder of Parquet shards on the Dataset Hub: checked, described in a card, in bounded commits.

Shards that the Hub has are not sent again, so that a stopped publication goes on where it was, and a dataset that has
grown sends what is new.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..counted import counted
from ..foreign.linked_folders import files_below
from .dataset_card import DatasetSummary, ShardSummary, dataset_card
from .folder_publishing import Published, open_repository

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

METADATA_PREFIX = b"dalle_collab."
CARD_NAME = "README.md"
MOST_FILES_PER_COMMIT = 100
"""The Hub answers late, or not at all, to commits of thousands of files."""


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

    Every shard is opened first; then what the Hub has not goes in commits of at most MOST_FILES_PER_COMMIT files, the
    card in the last one. Publishing the same folder again makes no commit. Raises ShardError, which names the shard and
    the cure, before anything is sent.
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
    on_shard: Callable[[int, int], None] | None = None,
) -> Published:
    """Publish shards that `inspect_shards` has checked. The Hub and the token are those of the environment.

    `on_shard` gets the number of shards that were compared and sent if need be, and their total.
    """
    from ..foreign.downloads import listed_files
    from .commits import commit_over, patiently

    found = head = open_repository(repo_id, "dataset", private=private)
    files = patiently(lambda: listed_files(repo_id, found, "dataset"))
    there = {file.path: file.lfs.sha256 if file.lfs else None for file in files}
    card = dataset_card(dataset, repo_id, license=license, credits=credits)
    title = message or f"Publish {counted(dataset.num_rows, 'record')} in {counted(len(dataset.shards), 'shard')}"
    for number, operations, is_last in _parts(_changed_shards(there, dataset, on_shard), _stale(there, dataset), card):
        part = title if is_last and number == 1 else f"{title}, part {number}"
        commit = commit_over(head, repo_id, operations, part, repo_type="dataset")
        head = commit.oid
    return Published(url=commit.url, changed=head != found)


def inspect_shards(folder: Path, on_shard: Callable[[int, int], None] | None = None) -> DatasetSummary:
    """Open every Parquet file below `folder` and return what they contain.

    Raises ShardError for a folder without shards, a shard that cannot be read, and shards that do not belong together.
    """
    found = files_below(folder)
    paths = [path for path in found if path.suffix == ".parquet" and not _is_hidden(path.relative_to(folder))]
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


def _parts(
    additions: "Iterable[CommitOperationAdd]", stale: Iterable[str], card: str
) -> "Iterator[tuple[int, list[CommitOperationAdd | CommitOperationDelete], bool]]":
    """Yield the number of each commit, what is in it, and whether it is the last one.

    New shards come first: until the last commit readers see the old shards too, and never too few.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    deletions = (CommitOperationDelete(path_in_repo=path) for path in stale)
    last = CommitOperationAdd(path_in_repo=CARD_NAME, path_or_fileobj=card.encode())
    operations: Iterator[CommitOperationAdd | CommitOperationDelete] = itertools.chain(additions, deletions, [last])
    number = 0
    while part := list(itertools.islice(operations, MOST_FILES_PER_COMMIT)):
        number += 1
        yield number, part, part[-1] is last


def _changed_shards(
    there: Mapping[str, str | None], dataset: DatasetSummary, on_shard: Callable[[int, int], None] | None
) -> "Iterator[CommitOperationAdd]":
    """Yield the shards that the Hub has not with equal bytes; `on_shard` gets the number passed, and the total."""
    from huggingface_hub import CommitOperationAdd

    for number, shard in enumerate(dataset.shards, start=1):
        addition = CommitOperationAdd(path_in_repo=_place(shard), path_or_fileobj=dataset.folder / shard.name)
        if there.get(addition.path_in_repo) != addition.upload_info.sha256.hex():
            yield addition
        if on_shard is not None:
            on_shard(number, len(dataset.shards))


def _stale(there: Iterable[str], dataset: DatasetSummary) -> list[str]:
    """Return the shards of an earlier publication that the folder no longer has: they would be read with the others."""
    kept = {_place(shard) for shard in dataset.shards}
    return [path for path in there if path.endswith(".parquet") and path not in kept]


def _place(shard: ShardSummary) -> str:
    """Return a shard's path in the repository: below `data/`, where readers expect it."""
    return shard.name if shard.name.startswith("data/") else f"data/{shard.name}"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
