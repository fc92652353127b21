"""Files of a Hub's repository, which may be a stranger's: the Hub says how large they are before any is taken.

Nothing else in the project calls the client's functions that download; a test sees to that.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import filter_repo_objects

from hub_tools.atomic_files import write_text_whole
from hub_tools.hub_client import is_outage

MOST_ENTRIES = 100_000
"""Files and folders of a repository."""

MOST_FILE_BYTES, MOST_BYTES = 2**26, 2**30
"""Of one file, and of all that are taken at once, besides weights and shards."""

MOST_WEIGHTS_BYTES = 2**36
"""Of weights and shards; those of a signed run are bounded by its manifest, others by the model's parameters."""

WEIGHTS_AND_SHARDS = (".safetensors", ".parquet")
COMMIT = re.compile("[0-9a-f]{40}")


class TooLargeError(ValueError):
    """A repository has more, or more of it was asked for, than is taken from a stranger."""


def listed_files(repository: str, revision: str | None, repo_type: str | None = None) -> list[RepoFile]:
    """Return all files of a repository; TooLargeError if it has more than `MOST_ENTRIES`, of which the rest is unread.

    Raises what the client raises if there is no such repository or the Hub does not answer.
    """
    tree = HfApi().list_repo_tree(repository, recursive=True, revision=revision, repo_type=repo_type)
    entries = list(itertools.islice(tree, MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise TooLargeError(
            f"{repository} has more than {MOST_ENTRIES} files and folders; none is read. Ask its owner to merge them."
        )
    return [entry for entry in entries if isinstance(entry, RepoFile)]


def fetch_file(
    repository: str, name: str, *, revision: str | None = None, most_weights_bytes: int | None = None, **options: Any
) -> Path:
    """Do what `hf_hub_download` does with these options, unless the file is too large: TooLargeError."""
    found = hf_hub_download(repository, name, revision=revision, dry_run=True, **options)
    if not found.is_cached:
        _check_sizes(repository, {name: found.file_size or 0}, most_weights_bytes)
    path = Path(hf_hub_download(repository, name, revision=found.commit_hash, **options))
    if "local_dir" not in options:
        _remember(path.parents[name.count("/")], revision)
    return path


def fetch_files(
    repository: str,
    *,
    revision: str | None = None,
    repo_type: str | None = None,
    patterns: Sequence[str] | None = None,
    ignored: Sequence[str] | None = None,
    most_weights_bytes: int | None = None,
    **options: object,
) -> Path:
    """Do what `snapshot_download` does, unless too much matches: TooLargeError, and nothing is taken.

    `most_weights_bytes` is what weights and shards may have where that is less than `MOST_WEIGHTS_BYTES`. While the Hub
    is down, what is in the cache is returned.
    """
    allowed, refused = (None if names is None else list(names) for names in (patterns, ignored))
    kind: dict[str, Any] = dict(repo_type=repo_type, allow_patterns=allowed, ignore_patterns=refused) | options
    try:
        commit = revision
        if COMMIT.fullmatch(revision or "") is None:
            asked: Any = ["sha"]  # the kinds of repositories have types of their own
            commit = HfApi().repo_info(repository, revision=revision, repo_type=repo_type, expand=asked).sha
        sizes = {file.path: file.size for file in listed_files(repository, commit, repo_type)}
    except (OSError, httpx2.HTTPError) as error:
        if not is_outage(error):
            raise
        try:
            return Path(snapshot_download(repository, revision=revision, local_files_only=True, **kind))
        except LocalEntryNotFoundError:
            raise error from None
    matching = filter_repo_objects(sizes, allow_patterns=allowed, ignore_patterns=refused)
    _check_sizes(repository, {name: sizes[name] for name in matching}, most_weights_bytes)
    folder = Path(snapshot_download(repository, revision=commit, **kind))
    if "local_dir" not in options:
        _remember(folder, revision)
    return folder


def folder_of(place: str | Path, *, revision: str | None, patterns: Sequence[str]) -> Path:
    """Return the folder that is named, or one with the matching files of a repository; raises as `fetch_files`."""
    return Path(place) if Path(place).is_dir() else fetch_files(str(place), revision=revision, patterns=patterns)


def _check_sizes(repository: str, sizes: dict[str, int], most_weights_bytes: int | None) -> None:
    most_weights = min(most_weights_bytes or MOST_WEIGHTS_BYTES, MOST_WEIGHTS_BYTES)
    for name, size in sizes.items():
        most = most_weights if name.endswith(WEIGHTS_AND_SHARDS) else MOST_FILE_BYTES
        if size > most:
            raise TooLargeError(f"{name} of {repository} has {size} bytes, expected at most {most}; it is not taken.")
    for are_large, most in ((True, most_weights), (False, MOST_BYTES)):
        total = sum(size for name, size in sizes.items() if name.endswith(WEIGHTS_AND_SHARDS) == are_large)
        if total > most:
            raise TooLargeError(
                f"What is needed of {repository} has {total} bytes in {len(sizes)} files, expected at most {most}; "
                "nothing is taken. Ask its owner."
            )


def _remember(folder: Path, revision: str | None) -> None:
    """Note in the cache which commit a branch was at, as the client does: it is asked for while the Hub is down."""
    if COMMIT.fullmatch(revision or "") is None:
        reference = folder.parents[1] / "refs" / (revision or "main")
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(reference, folder.name)
