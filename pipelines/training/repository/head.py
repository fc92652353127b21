"""What the run's repository holds at its newest commit, and commits on top of exactly that one."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

from hub_tools.run_files import MANIFEST_FILE, PUBLISHER_KEYS_FILE, TRAINING_RUN_FILE
from pipelines.training.repository.manifest import CheckpointManifest, CheckpointRefusedError, read_manifest
from pipelines.training.repository.publisher_keys import MAX_KEYS, keys_from_json, keys_to_json
from pipelines.training.run.training_run import TrainingRun

logger = logging.getLogger(__name__)

NUM_COMMIT_ATTEMPTS = 5


class HeadMovedError(OSError):
    """Somebody else has committed since the head was read: read it again and decide anew."""


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """The newest commit of a run's repository."""

    commit: str
    run: TrainingRun
    keys: tuple[str, ...]
    """Public keys of the run's publishers, in the order in which they were added."""

    manifest: CheckpointManifest | None
    """That of the newest checkpoint; None while there is no signed one."""

    manifest_sha256: str | None
    files: frozenset[str]
    """Names of all files."""

    @property
    def epoch(self) -> int:
        """Epoch of the newest checkpoint, or 0."""
        return self.manifest.epoch if self.manifest else 0


def read_head(repository: str, *, tolerate_bad_manifest: bool = False) -> RunHead:
    """Read the newest commit; its small files are not kept in the Hub client's cache.

    Raises:
        CheckpointRefusedError: the newest checkpoint's manifest is not signed by a publisher of the run, and that is
            not to be tolerated: then it counts as missing.
    """
    info = HfApi().repo_info(repository)
    files = frozenset(file.rfilename for file in info.siblings or ())
    with tempfile.TemporaryDirectory(prefix="dalle-collab-head-") as cache:
        wanted = (TRAINING_RUN_FILE, PUBLISHER_KEYS_FILE, MANIFEST_FILE)
        texts = {name: _read_file(repository, name, info.sha, cache) for name in wanted if name in files}
    run = TrainingRun.from_mapping(json.loads(texts[TRAINING_RUN_FILE]))
    keys = keys_from_json(texts[PUBLISHER_KEYS_FILE]) if PUBLISHER_KEYS_FILE in texts else ()
    manifest_text = texts.get(MANIFEST_FILE)
    return RunHead(
        commit=info.sha,
        run=run,
        keys=keys,
        manifest=_manifest(manifest_text, keys, tolerate_bad_manifest),
        manifest_sha256=hashlib.sha256(manifest_text.encode()).hexdigest() if manifest_text is not None else None,
        files=files,
    )


def read_publisher_keys(repository: str) -> tuple[str, ...]:
    """Return the keys that checkpoints of a run are signed with; none for a run that has published none."""
    try:
        return keys_from_json(Path(hf_hub_download(repository, PUBLISHER_KEYS_FILE)).read_text(encoding="utf-8"))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return ()


def commit_on(head_commit: str, repository: str, operations: Sequence[Any], message: str) -> str:
    """Commit on top of the head that was read; return the commit's id.

    Raises:
        HeadMovedError: the repository has a newer commit; nothing was changed.
    """
    try:
        info = HfApi().create_commit(repository, operations, commit_message=message, parent_commit=head_commit)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise HeadMovedError(f"{repository} has moved on from {head_commit}.") from error
        raise
    return info.oid


def announce_auxiliary(
    repository: str, *, public_key: str, addresses: Sequence[str], before_commit: Callable[[], None]
) -> RunHead:
    """Put the publisher's key and the swarm's entry addresses into the repository if they are not there.

    Returns the head afterwards. `before_commit` is called before each commit.
    """
    for _ in range(NUM_COMMIT_ATTEMPTS):
        head = read_head(repository)
        operations = _announcement(head, public_key, addresses)
        if not operations:
            return head
        before_commit()
        try:
            commit_on(head.commit, repository, operations, "Announce entry addresses")
            return read_head(repository)
        except HeadMovedError:
            continue
    raise ConnectionError(
        f"Others commit to {repository} all the time; {NUM_COMMIT_ATTEMPTS} attempts failed. Try again."
    )


def _read_file(repository: str, name: str, revision: str | None, cache: str) -> str:
    return Path(hf_hub_download(repository, name, revision=revision, cache_dir=cache)).read_text(encoding="utf-8")


def _manifest(text: str | None, keys: Sequence[str], tolerate_bad: bool) -> CheckpointManifest | None:
    if text is None:
        return None
    try:
        return read_manifest(text, keys)
    except CheckpointRefusedError:
        if tolerate_bad:
            return None
        raise


def _announcement(head: RunHead, public_key: str, addresses: Sequence[str]) -> list[CommitOperationAdd]:
    operations = []
    if public_key not in head.keys:
        if len(head.keys) >= MAX_KEYS:
            raise ValueError(
                f"The run has {MAX_KEYS} publisher keys, the limit. Remove old ones from {PUBLISHER_KEYS_FILE}."
            )
        text = keys_to_json([*head.keys, public_key])
        operations.append(CommitOperationAdd(path_in_repo=PUBLISHER_KEYS_FILE, path_or_fileobj=text.encode()))
    if head.run.entry_addresses != tuple(addresses):
        text = head.run.replace(entry_addresses=tuple(addresses)).to_json()
        operations.append(CommitOperationAdd(path_in_repo=TRAINING_RUN_FILE, path_or_fileobj=text.encode()))
    return operations
