"""The signed list of a run's entries, `entries.json`: where newcomers find the swarm, as one of its publishers says.

Whoever can merely write to a repository could name peers of its own in the settings, and newcomers would meet those
alone. In a run with an organiser's key only what a listed publisher has signed counts, and for some days: it signs anew
each day. The settings have the addresses, too: for runs without such a key, and for auxiliary peers, who sign the next
list.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from hub_tools.run_files import ENTRIES_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import NotSignedError, read_statement, signed_text
from pipelines.features.publishing.repository.key_list import MAX_BYTES, PUBLISHER, KeyList, utc

LIFETIME_SECONDS = 14 * 86400.0
RENEWAL_SECONDS = 86400.0
CURE = "A listed auxiliary peer signs them when it starts, and each day: dalle-collab run assist ORG/RUN"


class EntriesRefusedError(ValueError):
    """A list of entries that no publisher of the run has signed lately."""


@dataclass(frozen=True, kw_only=True)
class SignedEntries:
    """Multiaddresses of a run's entries; `time` is when they were signed, in seconds since 1970."""

    PURPOSE: ClassVar[str] = "entries"
    MOST_BYTES: ClassVar[int] = MAX_BYTES
    LONGEST_TEXT: ClassVar[int] = 2048

    run_id: str
    addresses: tuple[str, ...]
    time: float
    key: str = ""
    """The publisher's, once it has signed."""

    def signed(self, key: PublisherKey) -> str:
        """Return the text of `entries.json`."""
        return signed_text(dataclasses.replace(self, key=key.public), key, indent=2).decode()

    @classmethod
    def read(cls, text: str, keys: KeyList, run: TrainingRun, now: float) -> Self:
        """Return what the text of `entries.json` says.

        Raises:
            EntriesRefusedError: it is damaged, of another run, too old, or no publisher of the list has signed it.
        """
        try:
            found = read_statement(cls, text.encode())
            run.replace(entry_addresses=found.addresses)  # which checks them
            age, signed_at, key = abs(now - found.time), utc(found.time), found.key
        except NotSignedError:
            key = "another key than it names"
        except (ValueError, OverflowError, OSError) as error:
            raise EntriesRefusedError(f"{ENTRIES_FILE} of {run.run_id} cannot be read ({error!r}). {CURE}") from error
        if not keys.has_role(key, PUBLISHER, at=now):
            raise EntriesRefusedError(
                f"{ENTRIES_FILE} is not signed by one of the {len(keys.holders(PUBLISHER, at=now))} publishers of "
                f"{run.run_id}, but with {key}: somebody else has changed it. {CURE}"
            )
        if found.run_id != run.run_id:
            raise EntriesRefusedError(f"{ENTRIES_FILE} is of run {found.run_id}, expected {run.run_id}. {CURE}")
        if age > LIFETIME_SECONDS:
            raise EntriesRefusedError(
                f"{ENTRIES_FILE} of {run.run_id} was signed at {signed_at}; expected the last "
                f"{LIFETIME_SECONDS / 86400:.0f} days: no auxiliary peer has been there since, or somebody has put an "
                f"older one back. {CURE}"
            )
        return found
