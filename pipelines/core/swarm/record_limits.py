"""What a DHT node of a run stores at all: small records, for a while, one for each owner and key.

hivemind's nodes store any value under any key, for as long as its sender says, and as many of one owner as it sends. A
plain value under a key that should hold a dictionary hides the dictionary for good (seen: one unsigned value stopped
all rounds of a run; 6 MB of records cost every other peer 360 MB).
"""

import hashlib
import heapq
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypedDict

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import TimedStorage, ValueWithExpiration

from pipelines.core.admission.dht_gate import CALLER
from pipelines.core.admission.record_owners import key_of, owner_of
from pipelines.core.signing.rsa_keys import is_rsa_key
from pipelines.core.swarm.peer_records import MOST_COUNTED

MOST_BYTES = 8192
"""Of a signed record; an auxiliary peer's sixteen addresses take 4 kB."""

MOST_SECONDS = 86_400.0
"""How far ahead a signed record may expire."""

MOST_CLOCK_SECONDS = 300.0
"""By how much the clocks of honest peers may differ; the doctor warns long before."""

MOST_SAMPLES_PER_SECOND = 1e9

MOST_KEYS = 4096
MOST_OWNERS = 2048
"""Owners under one key; more are refused until some have expired."""

PLACES_OF_THE_KNOWN = 512
"""Of those, for owners that peers bring which trained with this one: a flood of newcomers leaves them theirs."""

MOST_OWNERS_OF_A_CALLER = 16
"""Owners under one key that one libp2p peer brings to a node: its own, and some when it has just met that node."""

MOST_NEIGHBOURS = 20
"""Nodes that one answer names; hivemind asks for as many."""

MOST_INVALID = 64
"""Invalid records in an answer, after which the rest is not looked at: who checks what it stores has next to none."""

MOST_SPARE_RENEWALS = 64
"""Renewals that are kept beside as many as there are records: forgetting costs time."""

_MOST_PEER_ID_BYTES = 64


class RecordLimits(RecordValidatorBase):
    """Refuses records that are too large, live too long, or have no owner.

    One rule for all: a key of the run holds one record for each owner, whose signature hivemind checks afterwards.
    Under other keys there is nothing.
    """

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = frozenset(DHTID.generate(source=key).to_bytes() for key in keys)

    def validate(self, record: DHTRecord) -> bool:
        """Tell whether the record may be stored, or believed; `record.value` still has its signature."""
        if record.key not in self._keys or len(record.value) > MOST_BYTES or len(record.subkey) > MOST_BYTES:
            return False
        # NaN fails this comparison, too.
        if not record.expiration_time <= get_dht_time() + MOST_SECONDS + MOST_CLOCK_SECONDS:
            return False
        try:
            owner = DHTProtocol.serializer.loads(record.subkey)
        except Exception:  # whatever msgpack makes of a stranger's bytes
            return False
        return isinstance(owner, bytes) and owner_of(key := key_of(owner)) == owner and is_rsa_key(key)

    @property
    def priority(self) -> int:
        """Above hivemind's signature check, which costs more."""
        return 20

    def merge_with(self, other: RecordValidatorBase) -> bool:
        """Join the keys of two runs that one node serves."""
        if not isinstance(other, RecordLimits):
            return False
        self._keys |= other._keys
        return True


class StoredProgress(TypedDict):
    """A record of progress, as hivemind's schema has it."""

    epoch: int
    samples_accumulated: int
    samples_per_second: float
    time: float
    peer_id: bytes


class ProgressBounds(RecordValidatorBase):
    """Refuses progress of which a reader would make nonsense: hivemind's schema lets infinite speeds and times pass."""

    def __init__(self, key: str) -> None:
        self._key = DHTID.generate(source=key).to_bytes()

    def validate(self, record: DHTRecord) -> bool:
        """Tell whether the figures are possible; `record.value` has been checked against hivemind's schema."""
        if record.key != self._key:
            return True
        progress = DHTProtocol.serializer.loads(record.value)
        return progress is None or is_possible_progress(progress, get_dht_time())


def is_possible_progress(progress: StoredProgress, now: float) -> bool:
    """Tell whether a peer can have written this: counts and speeds are bounded, and the time is not to come."""
    # A comparison with NaN is false.
    return (
        progress["epoch"] <= MOST_COUNTED
        and progress["samples_accumulated"] <= MOST_COUNTED
        and progress["samples_per_second"] <= MOST_SAMPLES_PER_SECOND
        and now - MOST_SECONDS <= progress["time"] <= now + MOST_CLOCK_SECONDS
        and len(progress["peer_id"]) <= _MOST_PEER_ID_BYTES
    )


class BoundedStorage(DHTLocalStorage):
    """Holds so many keys and owners that a flood cannot fill the memory; what is there already can be renewed."""

    def __init__(self) -> None:
        super().__init__()
        self._callers: dict[DHTID, dict[object, PeerID]] = {}
        """Who has brought which owner, by key."""

        self.known: Collection[str] = ()
        """Names of the peers for which places are kept; see `keep_places`."""

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        """See `DHTLocalStorage.store`."""
        has_room = key in self or len(self) < MOST_KEYS
        is_stored = has_room and super().store(key, value, expiration_time, subkey)
        forget_renewals(self)
        return is_stored

    def get(self, key: DHTID) -> ValueWithExpiration | None:
        """See `DHTLocalStorage.get`. Owners come as a copy: a search adds to it whatever other nodes answer."""
        found = super().get(key)
        return None if found is None else ValueWithExpiration(copied(found.value), found.expiration_time)

    def store_subkey(self, key: DHTID, subkey: object, value: bytes, expiration_time: float) -> bool:
        """See `DHTLocalStorage.store_subkey`."""
        held = super().get(key)
        owners = held.value if held is not None and isinstance(held.value, DictionaryDHTValue) else DictionaryDHTValue()
        if subkey not in owners and not self._may_bring(key, subkey, owners):
            return False
        is_stored = owners.store(subkey, value, expiration_time)
        forget_renewals(owners)
        if held is None or expiration_time > held.expiration_time:
            return self.store(key, owners, expiration_time) and is_stored
        return is_stored and owners is held.value

    def _may_bring(self, key: DHTID, owner: object, owners: DictionaryDHTValue) -> bool:
        caller = CALLER.get()
        is_known = caller is None or sender_name(caller.to_base58()) in self.known
        if len(owners) >= MOST_OWNERS - (0 if is_known else PLACES_OF_THE_KNOWN):
            return False
        if caller is not None:
            self._callers = {known: brought for known, brought in self._callers.items() if known in self.data}
            brought = {name: by for name, by in self._callers.get(key, {}).items() if name in owners}
            if sum(by == caller for by in brought.values()) >= MOST_OWNERS_OF_A_CALLER:
                return False
            self._callers[key] = brought | {owner: caller}
        return True


class NoCache(DHTLocalStorage):
    """Keeps nothing: a node that has one answers from it, and whoever fills it for a day hides what is stored since."""

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        """See `DHTLocalStorage.store`."""
        return False

    def store_subkey(self, key: DHTID, subkey: object, value: bytes, expiration_time: float) -> bool:
        """See `DHTLocalStorage.store_subkey`."""
        return False


def copied(value: object) -> object:
    """Return a value of the DHT, of owners a copy with what is not over, whatever size it is said to have."""
    if not isinstance(value, DictionaryDHTValue):
        return value
    copy = DictionaryDHTValue()
    with value.freeze():
        for owner, (content, expiration_time) in value.items():
            copy.store(owner, content, expiration_time)
    return copy


def forget_renewals(storage: TimedStorage) -> None:
    """Keep only the newest expiration of each record.

    hivemind 1.1.12 keeps those before until they are over: a day of them, as many as an owner cares to send.
    """
    expirations = storage.expiration_heap
    if len(expirations) > 2 * len(storage.key_to_heap) + MOST_SPARE_RENEWALS:
        expirations[:] = storage.key_to_heap.values()
        heapq.heapify(expirations)


def without_invalid(protocol: DHTProtocol, key: bytes, dictionary: DictionaryDHTValue) -> bool:
    """Remove the invalid records of a dictionary that another node has sent; the rest is valid.

    hivemind refuses the whole dictionary: one bad record at a node that stores anything hides everybody's.
    """
    num_kept = num_invalid = 0
    with dictionary.freeze():
        for owner, (value, expiration_time) in list(dictionary.items()):
            is_wanted = num_kept < MOST_OWNERS and num_invalid < MOST_INVALID
            if is_wanted and _is_valid(protocol, key, owner, value, expiration_time):
                num_kept += 1
            else:
                num_invalid += 1
                del dictionary[owner]
    return True


def _is_valid(protocol: DHTProtocol, key: bytes, owner: object, value: bytes, expiration_time: float) -> bool:
    try:
        return protocol._validate_record(key, protocol.serializer.dumps(owner), value, expiration_time)
    except Exception:  # whatever a stranger's bytes are
        return False


Found = Mapping[DHTID, tuple[ValueWithExpiration | None, Mapping[DHTID, PeerID]]]
"""What a node answers: of each key the value, if it has one, and the nearest nodes."""


async def find_bounded(
    find: Callable[[PeerID, Collection[DHTID]], Awaitable[Found | None]], peer: PeerID, keys: Collection[DHTID]
) -> Found | None:
    """Ask a node as `DHTProtocol.call_find` does, and believe nothing that it says of its records as a whole.

    An answer that lasts for ever ends hivemind's search with that answer; a size that is no number, with none at all.
    """
    found = await find(peer, keys)
    return found and {
        key: (_dated(value), dict(itertools.islice(nearest.items(), MOST_NEIGHBOURS)))
        for key, (value, nearest) in found.items()
    }


def _dated(found: ValueWithExpiration | None) -> ValueWithExpiration | None:
    if found is None or not isinstance(found.value, DictionaryDHTValue):
        return found
    owners: DictionaryDHTValue = copied(found.value)
    return ValueWithExpiration(owners, owners.latest_expiration_time) if owners else None


def sender_name(peer_id: str) -> str:
    """Return the short name of a libp2p peer (in base 58) among the senders of a round: 64 bits of its hash."""
    return hashlib.sha256(peer_id.encode()).hexdigest()[:16]


async def keep_places(names: Collection[str], dht: object, node: DHTNode) -> None:
    """Keep places under each key for what these peers bring, and for nobody else; a coroutine as `bound_storage`."""
    if isinstance(node.protocol.storage, BoundedStorage):
        node.protocol.storage.known = names


async def bound_storage(dht: object, node: DHTNode) -> None:
    """Give a node that holds nothing yet a storage of bounded size, and make it judge each record by itself.

    A coroutine for `hivemind.DHT.run_coroutine`.
    """
    node.protocol.storage, node.protocol.cache = BoundedStorage(), NoCache()
    node.protocol._validate_dictionary = partial(without_invalid, node.protocol)
    node.protocol.call_find = partial(find_bounded, node.protocol.call_find)
