"""What a DHT node of a run stores at all: small records, for a while, one for each owner and key.

hivemind's nodes store any value under any key, for as long as its sender says, and as many of one owner as it sends. A
plain value under a key that should hold a dictionary hides the dictionary for good (seen: one unsigned value stopped
all rounds of a run; 6 MB of records cost every other peer 360 MB).
"""

import heapq
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import TimedStorage

MOST_BYTES = 8192
"""Of a signed record; an auxiliary peer's sixteen addresses take 4 kB."""

MOST_SECONDS = 86_400.0
"""How far ahead a signed record may expire."""

MOST_DECLARED_BYTES = 64
MOST_DECLARED_SECONDS = 900.0
"""The same of what is not signed: peers declare that they look for a group, which takes a byte and some seconds."""

MOST_CLOCK_SECONDS = 300.0
"""By how much the clocks of honest peers may differ; the doctor warns long before."""

MOST_COUNTED = 2**53
"""JSON, Parquet and a float64 hold all whole numbers up to here exactly."""

MOST_SAMPLES_PER_SECOND = 1e9

MOST_KEYS = 4096
MOST_OWNERS = 2048
"""Owners under one key; more are refused until some have expired."""

MOST_SPARE_RENEWALS = 64
"""Renewals that are kept beside as many as there are records: forgetting costs time."""

_OWNER = re.compile(rb"\[owner:[^\[\]]{1,1024}\]")
_MOST_PEER_ID_BYTES = 64


class RecordLimits(RecordValidatorBase):
    """Refuses records that are too large, live too long, or have no owner where one is due.

    Keys in `signed_keys` hold one record for each owner, whose signature hivemind checks afterwards; all other keys of
    the run are dictionaries of declarations, by peer id.
    """

    def __init__(self, signed_keys: frozenset[str]) -> None:
        self._signed = frozenset(DHTID.generate(source=key).to_bytes() for key in signed_keys)

    def validate(self, record: DHTRecord) -> bool:
        """Tell whether the record may be stored, or believed; `record.value` still has its signature."""
        is_signed = record.key in self._signed
        most_bytes = MOST_BYTES if is_signed else MOST_DECLARED_BYTES
        most_seconds = MOST_SECONDS if is_signed else MOST_DECLARED_SECONDS
        if len(record.value) > most_bytes or record.subkey in DHTProtocol.RESERVED_SUBKEYS:
            return False
        # NaN fails this comparison, too.
        if not record.expiration_time <= get_dht_time() + most_seconds + MOST_CLOCK_SECONDS:
            return False
        try:
            owner = DHTProtocol.serializer.loads(record.subkey)
        except Exception:  # whatever msgpack makes of a stranger's bytes
            return False
        if not isinstance(owner, bytes):
            return False
        return bool(_OWNER.fullmatch(owner)) if is_signed else 0 < len(owner) <= _MOST_PEER_ID_BYTES

    @property
    def priority(self) -> int:
        """Above hivemind's signature check, which costs more."""
        return 20

    def merge_with(self, other: RecordValidatorBase) -> bool:
        """Join the keys of two runs that one node serves."""
        if not isinstance(other, RecordLimits):
            return False
        self._signed |= other._signed
        return True


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


def is_possible_progress(progress: Mapping[str, Any], now: float) -> bool:
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

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """See `DHTLocalStorage.store`."""
        is_stored = self._has_room(key) and super().store(key, value, expiration_time, subkey)
        forget_renewals(self)
        return is_stored

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """See `DHTLocalStorage.store_subkey`."""
        held = self.get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            owners = held.value
            if subkey not in owners and len(owners) >= MOST_OWNERS:
                return False
        is_stored = self._has_room(key) and super().store_subkey(key, subkey, value, expiration_time)
        forget_renewals(self)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            forget_renewals(held.value)
        return is_stored

    def _has_room(self, key: DHTID) -> bool:
        return key in self or len(self) < MOST_KEYS


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
    with dictionary.freeze():
        invalid = [
            owner
            for owner, (value, expiration_time) in dictionary.items()
            if not protocol._validate_record(key, protocol.serializer.dumps(owner), value, expiration_time)
        ]
    for owner in invalid:
        del dictionary[owner]
    return True


async def bound_storage(dht: Any, node: DHTNode) -> None:
    """Give a node that holds nothing yet storages of bounded size, and make it judge each record by itself.

    A coroutine for `hivemind.DHT.run_coroutine`.
    """
    node.protocol.storage = BoundedStorage()
    node.protocol.cache = BoundedStorage(maxsize=node.protocol.cache.maxsize)
    node.protocol._validate_dictionary = partial(without_invalid, node.protocol)
