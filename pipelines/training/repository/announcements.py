"""What running services write into the run's settings: entry addresses and key, and who admits peers."""

from collections.abc import Callable, Sequence
from typing import Any

from huggingface_hub import CommitOperationAdd

from hub_tools.run_files import PUBLISHER_KEYS_FILE, TRAINING_RUN_FILE
from pipelines.training.repository.commits import commit_changes
from pipelines.training.repository.key_list import MAX_KEYS, ROLES, unsigned_list
from pipelines.training.repository.organiser import Organiser
from pipelines.training.repository.snapshot import RunSnapshot


def announce_admission(repository: str, service: str, key: str, who_may_draw: str | None = None) -> bool:
    """Write into the run which service admits peers, both empty for an open run; return whether anything changed.

    `who_may_draw` is one of `sections.WHO_MAY_DRAW`; None: as before.

    Raises:
        ValueError: the address or the key cannot be used.
    """
    message = "Announce the admission service" if service else "Open the run to everybody"
    changes = dict(authorization_service=service, authorization_key=key)
    changes |= {} if who_may_draw is None else dict(who_may_draw=who_may_draw)
    return commit_changes(repository, lambda head: _changed_settings(head, **changes), message) is not None


def announce_auxiliary(
    repository: str,
    *,
    public_key: str,
    addresses: Sequence[str],
    organiser: Organiser | None,
    now: float,
    before_commit: Callable[[], None],
) -> None:
    """Add the publisher's key and the swarm's entry addresses to the repository if they are missing.

    Where the list of keys is signed, the key is added only by the organiser's machine; None: this is another one.
    `now` is in seconds since 1970, `before_commit` is called before each commit. Raises ValueError if the run has too
    many keys.
    """

    def changes(head: RunSnapshot) -> list[CommitOperationAdd]:
        return [
            *_added_key(head, public_key, organiser, now),
            *_changed_settings(head, entry_addresses=tuple(addresses)),
        ]

    commit_changes(repository, changes, "Announce entry addresses", before_commit=before_commit)


def announce_entry(repository: str, addresses: Sequence[str]) -> bool:
    """Write the swarm's entry addresses into the repository; return whether others were there."""
    change = dict(entry_addresses=tuple(addresses))
    return commit_changes(repository, lambda head: _changed_settings(head, **change), "Announce an entry") is not None


def _changed_settings(head: RunSnapshot, **changes: Any) -> list[CommitOperationAdd]:
    changed = head.run.replace(**changes)
    if changed == head.run:
        return []
    return [CommitOperationAdd(path_in_repo=TRAINING_RUN_FILE, path_or_fileobj=changed.to_json().encode())]


def _added_key(head: RunSnapshot, public_key: str, organiser: Organiser | None, now: float) -> list[CommitOperationAdd]:
    if organiser is not None and head.run.organiser_key == organiser.key.public:
        return organiser.operations(
            head, lambda keys: keys if keys.find(public_key) else keys.adding(public_key, ROLES, now=now)
        )
    if head.run.organiser_key or head.keys.find(public_key):
        return []
    listed = [entry.key for entry in head.keys.entries]
    if len(listed) >= MAX_KEYS:
        raise ValueError(
            f"The run has {MAX_KEYS} publisher keys, the limit. Remove old ones from {PUBLISHER_KEYS_FILE}."
        )
    text = unsigned_list([*listed, public_key]).unsigned()
    return [CommitOperationAdd(path_in_repo=PUBLISHER_KEYS_FILE, path_or_fileobj=text.encode())]
