"""What running services write into the run's settings: entry addresses and key, and who admits peers."""

import math
from collections.abc import Callable, Sequence

from huggingface_hub import CommitOperationAdd

from hub_tools.run_files import ENTRIES_FILE, PUBLISHER_KEYS_FILE, TRAINING_RUN_FILE
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.repository.commits import commit_changes
from pipelines.features.publishing.repository.entries import RENEWAL_SECONDS, EntriesRefusedError, SignedEntries
from pipelines.features.publishing.repository.key_list import (
    MAX_KEYS,
    PUBLISHER,
    ROLES,
    KeyList,
    KeysRefusedError,
    unsigned_list,
)
from pipelines.features.publishing.repository.organiser import Organiser
from pipelines.features.publishing.repository.snapshot import RunSnapshot


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
    key: PublisherKey,
    keys: KeyList,
    addresses: Sequence[str],
    organiser: Organiser | None,
    now: float,
    before_commit: Callable[[], None],
) -> None:
    """Add the publisher's key and the swarm's entry addresses to the repository if they are missing, and sign these.

    Where the list of keys is signed, the key is added only by the organiser's machine; None: this is another one.
    `keys` is the newest list: who is no publisher there signs nothing. `now` is in seconds since 1970, `before_commit`
    is called before each commit. Raises ValueError if the run has too many keys.
    """

    def changes(head: RunSnapshot) -> list[CommitOperationAdd]:
        added = _added_key(head, key.public, organiser, now)
        return [*added, *_entries(head, addresses, key, keys, now, bool(added) and keys.find(key.public) is None)]

    commit_changes(repository, changes, "Announce entry addresses", before_commit=before_commit)


def announce_entry(
    repository: str, with_own: Callable[[Sequence[str]], Sequence[str]], key: PublisherKey, now: float
) -> tuple[str, ...]:
    """Write the swarm's entry addresses into the repository, if others are there, and return them.

    `with_own` adds an entry's own to those that count already; a publisher's key signs them all. Raises
    KeysRefusedError.
    """
    addresses: tuple[str, ...] = ()

    def changes(head: RunSnapshot) -> list[CommitOperationAdd]:
        nonlocal addresses
        addresses = tuple(with_own(_entries_that_count(head)[0]))
        keys = head.keys if head.run.organiser_key else KeyList()
        is_there = set(announced_entries(head, now)) == set(addresses)
        return [] if is_there else _entries(head, addresses, key, keys, now)

    commit_changes(repository, changes, "Announce an entry")
    return addresses


def announced_entries(head: RunSnapshot, now: float) -> tuple[str, ...]:
    """Return the entry addresses that are announced; none, where they have to be signed, or signed anew."""
    addresses, signed_at = _entries_that_count(head)
    return addresses if now < signed_at + RENEWAL_SECONDS else ()


def _entries_that_count(head: RunSnapshot) -> tuple[tuple[str, ...], float]:
    """Return the entry addresses that newcomers believe, and when they were signed: nobody signs for others."""
    if not head.run.organiser_key:
        return head.run.entry_addresses, math.inf
    try:
        signed = head.signed_entries
    except (EntriesRefusedError, KeysRefusedError):
        signed = None
    return ((), 0.0) if signed is None else (signed.addresses, signed.time)


def _entries(
    head: RunSnapshot, addresses: Sequence[str], key: PublisherKey, keys: KeyList, now: float, may_sign: bool = False
) -> list[CommitOperationAdd]:
    """`may_sign`: whether the key is about to be a publisher's, though it is not in the list."""
    found = _changed_settings(head, entry_addresses=tuple(addresses))
    may_sign |= keys.has_role(key.public, PUBLISHER, at=now)
    if head.run.organiser_key and may_sign and announced_entries(head, now) != tuple(addresses):
        text = SignedEntries(run_id=head.run.run_id, addresses=tuple(addresses), time=now).signed(key)
        found.append(CommitOperationAdd(path_in_repo=ENTRIES_FILE, path_or_fileobj=text.encode()))
    return found


def _changed_settings(head: RunSnapshot, **changes: object) -> list[CommitOperationAdd]:
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
