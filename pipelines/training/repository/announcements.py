"""What running services write into the run's settings: entry addresses and key, and who admits peers."""

from collections.abc import Callable, Sequence
from typing import Any

from huggingface_hub import CommitOperationAdd

from hub_tools.run_files import PUBLISHER_KEYS_FILE, TRAINING_RUN_FILE
from pipelines.training.repository.commits import commit_changes
from pipelines.training.repository.publisher_keys import MAX_KEYS, keys_to_json
from pipelines.training.repository.snapshot import RunSnapshot


def announce_admission(repository: str, service: str, key: str) -> bool:
    """Write into the run which service admits peers, both empty for an open run; return whether anything changed.

    Raises:
        ValueError: the address or the key cannot be used.
    """
    message = "Announce the admission service" if service else "Open the run to everybody"
    changes = dict(authorization_service=service, authorization_key=key)
    return commit_changes(repository, lambda head: _changed_settings(head, **changes), message) is not None


def announce_auxiliary(
    repository: str, *, public_key: str, addresses: Sequence[str], before_commit: Callable[[], None]
) -> None:
    """Add the publisher's key and the swarm's entry addresses to the repository if they are missing.

    `before_commit` is called before each commit. Raises ValueError if the run has too many keys.
    """

    def changes(head: RunSnapshot) -> list[CommitOperationAdd]:
        return [*_added_key(head, public_key), *_changed_settings(head, entry_addresses=tuple(addresses))]

    commit_changes(repository, changes, "Announce entry addresses", before_commit=before_commit)


def _changed_settings(head: RunSnapshot, **changes: Any) -> list[CommitOperationAdd]:
    changed = head.run.replace(**changes)
    if changed == head.run:
        return []
    return [CommitOperationAdd(path_in_repo=TRAINING_RUN_FILE, path_or_fileobj=changed.to_json().encode())]


def _added_key(head: RunSnapshot, public_key: str) -> list[CommitOperationAdd]:
    if public_key in head.keys:
        return []
    if len(head.keys) >= MAX_KEYS:
        raise ValueError(
            f"The run has {MAX_KEYS} publisher keys, the limit. Remove old ones from {PUBLISHER_KEYS_FILE}."
        )
    text = keys_to_json([*head.keys, public_key])
    return [CommitOperationAdd(path_in_repo=PUBLISHER_KEYS_FILE, path_or_fileobj=text.encode())]
