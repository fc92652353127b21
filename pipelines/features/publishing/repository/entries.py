"""The signed list of a run's entries, `entries.json`: where newcomers find the swarm, as one of its publishers says.

Whoever can merely write to a repository could name peers of its own in the settings, and newcomers would meet those
alone. In a run with an organiser's key only what a listed publisher has signed counts, and for some days: it signs anew
each day. The settings have the addresses, too: for runs without such a key, and for auxiliary peers, who sign the next
list.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from hub_tools.foreign.json_texts import parse_json
from hub_tools.run_files import ENTRIES_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey, canonical_json, is_signed_by
from pipelines.features.publishing.repository.key_list import MAX_BYTES, PUBLISHER, KeyList, utc

FORMAT_VERSION = 1
DOMAIN = b"dalle-collab entries 1\0"
LIFETIME_SECONDS = 14 * 86400.0
RENEWAL_SECONDS = 86400.0
CURE = "A listed auxiliary peer signs them when it starts, and each day: dalle-collab run assist ORG/RUN"


class EntriesRefusedError(ValueError):
    """A list of entries that no publisher of the run has signed lately."""


@dataclass(frozen=True, kw_only=True)
class SignedEntries:
    """Multiaddresses of a run's entries; `time` is when they were signed, in seconds since 1970."""

    run_id: str
    addresses: tuple[str, ...]
    time: float
    format_version: int = FORMAT_VERSION

    def signed(self, key: PublisherKey) -> str:
        """Return the text of `entries.json`."""
        values = dataclasses.asdict(self)
        signed = dict(entries=values, public_key=key.public, signature=key.sign(DOMAIN + canonical_json(values)))
        return json.dumps(signed, indent=2) + "\n"

    @classmethod
    def read(cls, text: str, keys: KeyList, run: TrainingRun, now: float) -> Self:
        """Return what the text of `entries.json` says.

        Raises:
            EntriesRefusedError: it is damaged, of another run, too old, or no publisher of the list has signed it.
        """
        try:
            if len(text) > MAX_BYTES:
                raise ValueError(f"{len(text)} characters; expected at most {MAX_BYTES}")
            signed = parse_json(text)
            values, key = signed["entries"], str(signed["public_key"])
            is_signed = is_signed_by(key, DOMAIN + canonical_json(values), signed["signature"])
            found = cls(**{**values, "addresses": run.replace(entry_addresses=values["addresses"]).entry_addresses})
            if found.format_version != FORMAT_VERSION:
                raise ValueError(f"format {found.format_version}; this package knows {FORMAT_VERSION}")
            age = abs(now - found.time)
            signed_at = utc(found.time)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
            raise EntriesRefusedError(f"{ENTRIES_FILE} of {run.run_id} cannot be read ({error!r}). {CURE}") from error
        if not is_signed or not keys.has_role(key, PUBLISHER, at=now):
            raise EntriesRefusedError(
                f"{ENTRIES_FILE} is not signed by one of the {len(keys.holders(PUBLISHER, at=now))} publishers of "
                f"{run.run_id}, but with {key[:60]}: somebody else has changed it. {CURE}"
            )
        if found.run_id != run.run_id:
            raise EntriesRefusedError(
                f"{ENTRIES_FILE} is of run {str(found.run_id)[:96]}, expected {run.run_id}. {CURE}"
            )
        if age > LIFETIME_SECONDS:
            raise EntriesRefusedError(
                f"{ENTRIES_FILE} of {run.run_id} was signed at {signed_at}; expected the last "
                f"{LIFETIME_SECONDS / 86400:.0f} days: no auxiliary peer has been there since, or somebody has put an "
                f"older one back. {CURE}"
            )
        return found
