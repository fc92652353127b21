"""What peers publish about themselves: signed records in the DHT, checked before use.

A feature has kinds of records of its own; those of the core are here. Every node of a swarm must know all kinds,
because it stores what it does not read, too: see `pipelines.features.all_records`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import hivemind
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.optim.progress_tracker import LocalTrainingProgress, TrainingProgressSchema
from hivemind.utils import ValueWithExpiration, get_dht_time
from pydantic.v1 import BaseModel, constr, create_model

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.record_owners import AdmissionRecords
from pipelines.core.admission.tokens import MAX_TOKEN_CHARACTERS
from pipelines.core.swarm.peer_records import (
    AnchorRecord,
    AuxiliaryStatus,
    PeerIntroduction,
    PeerMetrics,
    Reporter,
    SearchRecord,
    StateRecord,
)
from pipelines.core.swarm.record_limits import (
    MOST_SECONDS,
    ProgressBounds,
    RecordLimits,
    keep_places,
    sender_name,
)

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True)
class RecordKind(Generic[Record]):
    """Records of one sort, of which each peer has one under each of their keys."""

    name: str
    schema: type[Record]

    num_keys: int = 1
    """Over so many keys the records are spread, because the owners of one key are limited."""

    @property
    def keys(self) -> list[str]:
        """The keys, without the run's id."""
        return [self.name] if self.num_keys == 1 else [f"{self.name}_{number}" for number in range(self.num_keys)]


METRICS = RecordKind("metrics", PeerMetrics)
INTRODUCTIONS = RecordKind("introductions", PeerIntroduction)
AUXILIARIES = RecordKind("auxiliary", AuxiliaryStatus)
STATES = RecordKind("states", StateRecord)
ANCHORS = RecordKind("anchors", AnchorRecord)
PROGRESS = RecordKind("progress", LocalTrainingProgress)
"""Written by hivemind, which has a schema of its own for it."""

CORE_RECORDS: tuple[RecordKind, ...] = (
    *(METRICS, INTRODUCTIONS, AUXILIARIES, STATES, ANCHORS),
    RecordKind("grad_averager_searches", SearchRecord),
)


class _Tokens(BaseModel):
    admissions: dict[BytesWithPublicKey, constr(max_length=MAX_TOKEN_CHARACTERS)]  # type: ignore[valid-type]


class KindsValidator(SchemaValidator):
    """Checks records of these kinds, in the DHT's process, which makes the schema anew: pickle knows modules' own."""

    def __init__(self, kinds: Sequence[RecordKind], prefix: str) -> None:
        fields: dict[str, Any] = {
            key: (dict[BytesWithPublicKey, kind.schema], ...)  # type: ignore[name-defined]
            for kind in kinds
            for key in kind.keys
        }
        super().__init__(create_model("_SwarmRecords", __module__=__name__, **fields), prefix=prefix)
        self._made_of = kinds, prefix

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._made_of


class SwarmRecords:
    """Reads and writes the run's signed records; every process that touches them opens one of these first."""

    def __init__(
        self,
        dht: hivemind.DHT,
        run_id: str,
        *,
        admission: PeerAdmission | None,
        kinds: Iterable[RecordKind] = (),
    ) -> None:
        """`admission` is this peer's; None: nothing is checked, and all records count. `kinds` are the features'."""
        self._dht, self._run_id = dht, run_id
        self._kinds: list[RecordKind] = [*CORE_RECORDS, *kinds]
        self._signature = RSASignatureValidator()
        self.admissions = AdmissionRecords(dht, run_id, admission=admission)
        """Decides whose records count; shared, because it caches look-ups."""

        self._devices: dict[bytes, str] = {}
        """What the peers that introduced themselves compute on, as last read for `reporters`."""

        self._places_of: Collection[str] = ()

    def open(self) -> Self:
        """Make the DHT node check signatures and schemas, and publish this peer's token, now and when it is renewed.

        Without the validators a reader sees the signature as trailing bytes and fails.
        """
        schemas = (_Tokens, TrainingProgressSchema)
        names = [
            *(key for kind in self._kinds for key in kind.keys),
            *(name for kind in schemas for name in kind.__fields__),
        ]
        self._dht.add_validators(
            [
                KindsValidator(self._kinds, self._run_id),
                *(SchemaValidator(kind, prefix=self._run_id) for kind in schemas),
                self._signature,
                RecordLimits(frozenset(f"{self._run_id}_{name}" for name in names)),
                ProgressBounds(f"{self._run_id}_progress"),
            ]
        )
        self.admissions.keep_published()
        return self

    def keep_places(self, names: Collection[str]) -> None:
        """Have this peer's node keep places for what these peers bring, by `sender_name`; does not wait for it."""
        if names != self._places_of:
            self._places_of = names
            self._dht.run_coroutine(partial(keep_places, names), return_future=True)

    @property
    def owner(self) -> bytes:
        """This process's key in the DHT, under which its own records are found."""
        return self._signature.local_public_key

    @property
    def now(self) -> float:
        """The swarm's time, in seconds."""
        return get_dht_time()

    def anchors(self) -> list[AnchorRecord]:
        """Return what anybody has stored as an anchor's statement: who has signed it is up to the reader."""
        return self.read_unchecked(ANCHORS)

    def reporters(self, owners: Collection[bytes]) -> dict[bytes, Reporter]:
        """Return who stands behind the records of these owners, by public key."""
        users, peers = self.admissions.users(owners), self.admissions.peer_ids(owners)
        if not peers.keys() <= self._devices.keys():  # a peer's device is the same until its end
            self._devices = {owner: introduction.device for owner, introduction in self.read(INTRODUCTIONS).items()}
        return {
            owner: Reporter(user=users[owner], sender=sender_name(peer), device=self._devices.get(owner, ""))
            for owner, peer in peers.items()
        }

    def trainers(self) -> set[bytes]:
        """Return the public keys of the live training peers."""
        return set(self.read(PROGRESS))

    def publish(
        self, kind: RecordKind[Record], record: Record, lifetime_seconds: float, *, number: int = 0, waits: bool = False
    ) -> None:
        """Sign and store this peer's record, under the key of its kind that has the number, for so many seconds.

        `waits`: until it is stored.
        """
        self._dht.store(
            key=f"{self._run_id}_{kind.keys[number]}",
            subkey=self.owner,
            value=record.dict(),
            expiration_time=get_dht_time() + min(lifetime_seconds, MOST_SECONDS),
            return_future=not waits,
        )

    def read(self, kind: RecordKind[Record]) -> dict[bytes, Record]:
        """Return the live records that count, by public key.

        In a run with an authority the user name in a record is the one that the authority has admitted.
        """
        return {key: record for key, (record, _) in self.read_dated(kind).items()}

    def read_dated(self, kind: RecordKind[Record]) -> dict[bytes, tuple[Record, float]]:
        """Return the live records that count and until when, in DHT time, each is valid, by public key."""
        entries = self._entries(kind, 0)
        counted = self.admissions.counted(_parsed(entries, kind.schema))
        return {key: (record, entries[key].expiration_time) for key, record in counted.items()}

    def read_unchecked(self, kind: RecordKind[Record], number: int = 0) -> list[Record]:
        """Return what anybody has stored under one of a kind's keys: who has signed it is up to the reader."""
        return list(_parsed(self._entries(kind, number), kind.schema).values())

    def _entries(self, kind: RecordKind[Record], number: int) -> Mapping[bytes, ValueWithExpiration]:
        found = self._dht.get(f"{self._run_id}_{kind.keys[number]}", latest=True)
        return found.value if found is not None and isinstance(found.value, dict) else {}


def _parsed(entries: Mapping[bytes, ValueWithExpiration], schema: type[Record]) -> dict[bytes, Record]:
    return {key: schema.parse_obj(entry.value) for key, entry in entries.items() if entry.value is not None}
