"""The list of a run's keys, `publisher_keys.json`: who publishes and who is an anchor, signed by the run's organiser.

Only the organiser can change it: readers refuse a list that the organiser's key in the run's settings has not signed,
one of another run, and one with a lower serial than they have seen. A run without such a key has an unsigned list,
to which each auxiliary peer adds its own key: write access to the repository is enough.
"""

import dataclasses
import json
import logging
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from hub_tools.foreign.json_texts import parse_json
from hub_tools.run_files import PUBLISHER_KEYS_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import NotSignedError, read_statement, signed_text
from pipelines.core.swarm_time import SWARM_TIME

logger = logging.getLogger(__name__)

PUBLISHER, ANCHOR = "publisher", "anchor"
ROLES = (PUBLISHER, ANCHOR)
"""A publisher signs checkpoints, an anchor which epoch and state the run has reached; both are auxiliary peers."""

MAX_KEYS = 64
MAX_BYTES = 2**16
MAX_KEPT_MANIFESTS = 64
CURE = "The organiser puts the right one back with: dalle-collab run keys ORG/RUN --restore"


class KeysRefusedError(ValueError):
    """A list of keys that is damaged, or not the organiser's newest one."""


@dataclass(frozen=True, kw_only=True)
class ListedKey:
    """One key and what it may sign; times are whole seconds since 1970."""

    key: str
    roles: tuple[str, ...]
    added_at: int
    revoked_at: int | None = None
    """Nothing counts that was signed then or later; what was signed before still does."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"ed25519:[A-Za-z0-9+/]{43}=", self.key):
            raise ValueError(f"{self.key!r} is not a key; expected ed25519: and the base64 of 32 bytes")
        if not self.roles or list(self.roles) != [role for role in ROLES if role in self.roles]:
            raise ValueError(f"the roles of {self.key} are {self.roles}; expected some of {ROLES}, in this order")
        times = (self.added_at,) if self.revoked_at is None else (self.added_at, self.revoked_at)
        if not all(map(_is_count, times)):
            raise ValueError(f"the times of {self.key} are {times}; expected seconds since 1970")


@dataclass(frozen=True, kw_only=True)
class KeyList:
    """A run's keys, in the order in which they were added."""

    entries: tuple[ListedKey, ...] = ()
    serial: int = 0
    """Grows with each change; 0: the list is not signed."""

    kept_manifests: tuple[str, ...] = ()
    """SHA-256 of manifests that count although their key is revoked: the organiser knows that they are older."""

    def __post_init__(self) -> None:
        names = [entry.key for entry in self.entries]
        if len(names) > MAX_KEYS or len(set(names)) < len(names):
            raise ValueError(f"{len(names)} keys, {len(set(names))} different; expected at most {MAX_KEYS}, each once")
        if not all(re.fullmatch(r"[0-9a-f]{64}", name) for name in self.kept_manifests):
            raise ValueError(f"kept_manifests is {self.kept_manifests}; expected SHA-256 in hexadecimal digits")
        if len(self.kept_manifests) > MAX_KEPT_MANIFESTS or not _is_count(self.serial):
            raise ValueError(f"{len(self.kept_manifests)} kept manifests, serial {self.serial!r}")

    def find(self, key: str) -> ListedKey | None:
        """Return a key's entry."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def has_role(self, key: str, role: str, *, at: float) -> bool:
        """Return whether what this key signed at a time, in seconds since 1970, counts in this role.

        It does until the key is revoked. It need not have been listed then: clocks differ, and the organiser vouches
        for the key, not for a moment.
        """
        return key in self.holders(role, at=at)

    def holders(self, role: str, *, at: float) -> tuple[str, ...]:
        """Return the keys that have a role at a time, in the order in which they were added."""
        return tuple(
            entry.key
            for entry in self.entries
            if role in entry.roles and (entry.revoked_at is None or at < entry.revoked_at)
        )

    def adding(self, key: str, roles: Sequence[str], *, now: float) -> Self:
        """Return the list with a key, or with more roles for it.

        Raises:
            ValueError: the list is full, the key was revoked, or it is no key.
        """
        old = self.find(key)
        if old is not None and old.revoked_at is not None:
            raise ValueError(
                f"{key} was revoked at {utc(old.revoked_at)}, and that is for good. Delete signing_key.pem of that "
                "auxiliary peer, start it again, and add the key that it prints."
            )
        if old is None and len(self.entries) >= MAX_KEYS:
            raise ValueError(f"The run has {MAX_KEYS} keys, the limit: a new run can have others.")
        known = old or ListedKey(key=key, roles=tuple(roles), added_at=int(now))
        return self._with(dataclasses.replace(known, roles=tuple(r for r in ROLES if r in (*known.roles, *roles))))

    def revoking(self, key: str, *, now: float) -> Self:
        """Return the list with a key revoked from now on; raises ValueError if it is not listed."""
        old = self.find(key)
        if old is None:
            raise ValueError(f"{key} is not listed. See the list: dalle-collab run keys ORG/RUN")
        return self if old.revoked_at is not None else self._with(dataclasses.replace(old, revoked_at=int(now)))

    def keeping(self, manifest: str | None) -> Self:
        """Return the list with a manifest that counts whatever becomes of its key; the oldest of too many go."""
        if manifest is None or manifest in self.kept_manifests:
            return self
        return dataclasses.replace(self, kept_manifests=(*self.kept_manifests, manifest)[-MAX_KEPT_MANIFESTS:])

    def signed(self, organiser: PublisherKey, run_id: str) -> str:
        """Return the text of a signed `publisher_keys.json`."""
        assert self.serial > 0, "a signed list has a serial"
        listed = SignedKeyList(
            run_id=run_id,
            serial=self.serial,
            keys=self.entries,
            kept_manifests=self.kept_manifests,
            key=organiser.public,
        )
        return signed_text(listed, organiser, indent=2).decode()

    def unsigned(self) -> str:
        """Return the text of an unsigned `publisher_keys.json`: the keys alone."""
        return json.dumps(dict(keys=[entry.key for entry in self.entries]), indent=2) + "\n"

    def _with(self, entry: ListedKey) -> Self:
        if self.find(entry.key) is None:
            return dataclasses.replace(self, entries=(*self.entries, entry))
        return dataclasses.replace(self, entries=tuple(entry if e.key == entry.key else e for e in self.entries))


@dataclass(frozen=True, kw_only=True)
class SignedKeyList:
    """What the organiser signs."""

    PURPOSE: ClassVar[str] = "publisher keys"
    MOST_BYTES: ClassVar[int] = MAX_BYTES

    run_id: str
    serial: int
    keys: tuple[ListedKey, ...]
    kept_manifests: tuple[str, ...]
    key: str

    def __post_init__(self) -> None:
        if self.serial < 1:
            raise ValueError(f"serial {self.serial}; expected 1 or more")


class TrustedKeys:
    """What one process trusts of a run's keys: the organiser key that it has read first, and the newest list since.

    Any thread may use it.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._lock = run, threading.Lock()
        self._newest: KeyList | None = None

    def newest(self) -> KeyList:
        """Return the newest list; an empty one while none has been read."""
        return self._newest or KeyList()

    def anchors(self) -> tuple[str, ...]:
        """Return the keys of the run's anchors now, in order; none where no organiser vouches for them."""
        newest = self.newest()
        return newest.holders(ANCHOR, at=SWARM_TIME()) if newest.serial else ()

    def accepts(self, run: TrainingRun) -> bool:
        """Return whether settings are of the same organiser as the first ones."""
        return run.organiser_key == self._run.organiser_key

    def take(self, run: TrainingRun, text: str | None) -> KeyList:
        """Read the list that the run has now, with its settings, and return the newest that can be trusted.

        A list that is refused is logged, and the one before is returned.

        Raises:
            KeysRefusedError: it is refused, and there was none before.
        """
        with self._lock:
            try:
                self._newest = self._checked(run, text)
            except KeysRefusedError as error:
                if self._newest is None:
                    raise
                logger.warning("%s Until then the list with serial %d counts.", error, self._newest.serial)
            return self._newest

    def _checked(self, run: TrainingRun, text: str | None) -> KeyList:
        if not self.accepts(run):
            raise KeysRefusedError(
                f"The run's settings name {run.organiser_key or 'no key'} as the organiser's, this process began with "
                f"{self._run.organiser_key or 'none'}. If the organiser has really changed it, start the command again."
            )
        read, known = read_key_list(text, self._run), self._newest or KeyList()
        if read.serial < known.serial or (read.serial == known.serial > 0 and read != known):
            raise KeysRefusedError(
                f"{PUBLISHER_KEYS_FILE} has serial {read.serial}, and this process has seen another list with serial "
                f"{known.serial}: somebody has put an older one back. {CURE}"
            )
        return read


def read_key_list(text: str | None, run: TrainingRun) -> KeyList:
    """Return the list in the text of a run's `publisher_keys.json`; None, if there is no such file: an empty list.

    Raises:
        KeysRefusedError: it is damaged, not signed by the run's organiser, or of another run.
    """
    if text is None:
        return KeyList()
    refused = KeysRefusedError(
        f"{PUBLISHER_KEYS_FILE} is not signed by the run's organiser, whose key is {run.organiser_key}: somebody else "
        f"has changed it. {CURE}"
    )
    try:
        if not run.organiser_key:
            return _unsigned_in(text)
        signed = read_statement(SignedKeyList, text.encode())
        listed = KeyList(entries=signed.keys, serial=signed.serial, kept_manifests=signed.kept_manifests)
    except NotSignedError:
        raise refused from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, KeysRefusedError):
            raise
        cure = CURE if run.organiser_key else "Its organiser restores it from the repository's history."
        raise KeysRefusedError(f"{PUBLISHER_KEYS_FILE} of the run cannot be read ({error!r}). {cure}") from error
    if signed.key != run.organiser_key:
        raise refused
    if signed.run_id != run.run_id:
        raise KeysRefusedError(f"{PUBLISHER_KEYS_FILE} is of the run {signed.run_id}, expected {run.run_id}. {CURE}")
    return listed


def _unsigned_in(text: str) -> KeyList:
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"{len(text.encode())} bytes; expected at most {MAX_BYTES}")
    values = parse_json(text)
    if "signature" in values:
        raise KeysRefusedError(
            f"{PUBLISHER_KEYS_FILE} is signed, but the run's settings name no organiser's key: somebody has changed "
            f"one of them. {CURE}"
        )
    return unsigned_list(values["keys"])


def unsigned_list(keys: Sequence[str]) -> KeyList:
    """Return the list of a run without an organiser's key: each key has all roles."""
    return KeyList(entries=tuple(ListedKey(key=key, roles=ROLES, added_at=0) for key in keys))


def utc(seconds: float) -> str:
    """Return a time as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53
