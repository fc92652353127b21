"""Owners of DHT records: a record counts only with a token for its key and its peer; see `tokens`."""

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TypeVar

import hivemind
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from pipelines.core.admission.client import SELF_SIGNED_SECONDS, PeerAdmission
from pipelines.core.admission.tokens import Admission, TokenRefusedError

logger = logging.getLogger(__name__)

Record = TypeVar("Record")

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_FOR_A_LOOK = 5.0
MOST_SECONDS_SELF_SIGNED = SELF_SIGNED_SECONDS + 300.0
"""How far ahead a self-signed token may expire; honest clocks differ by less than the second part."""

MOST_KNOWN = 4096
"""Admissions remembered; of more, those that nobody asks for are forgotten first, then the soonest to expire."""


class AdmissionRecords:
    """Publishes this peer's token, and knows which record owners are admitted."""

    def __init__(self, dht: hivemind.DHT, swarm_id: str, *, admission: PeerAdmission | None) -> None:
        """`admission` is this peer's; None: nothing is checked, and all records count."""
        self._dht, self._key = dht, f"{swarm_id}_admissions"
        self.admission = admission
        self._known: dict[bytes, Admission] = {}
        self._last_look = float("-inf")

    @property
    def counts_users(self) -> bool:
        """Whether an authority says who stands behind a key; otherwise keys are free."""
        return self.admission is not None and self.admission.has_authority

    def keep_published(self) -> None:
        """Publish this peer's token now and after every renewal; needs validators that sign records."""
        if self.admission is not None:
            self.admission.on_renewal(partial(self._publish, self.admission))
            self._publish(self.admission)

    def counted(self, records: Mapping[bytes, Record]) -> dict[bytes, Record]:
        """Return the records that count, by owner: those of admitted peers that speak for themselves."""
        if self.admission is None:
            return dict(records)
        admitted = self.admitted(records)
        return {
            owner: record
            for owner, record in records.items()
            if owner in admitted and speaks_for(record, admitted[owner], names_user=self.admission.has_authority)
        }

    def admitted(self, owners: Collection[bytes]) -> dict[bytes, Admission]:
        """Return the currently valid admissions of record owners that have one; may query the DHT."""
        if self.admission is None:
            return {}
        if not self._are_known(owners) and time.monotonic() - self._last_look > SECONDS_BETWEEN_LOOKS:
            self._look(self.admission, owners)
        now = get_dht_time()
        found = {owner: self._known.get(owner) for owner in owners}
        return {owner: held for owner, held in found.items() if held is not None and now < held.expires_at}

    def users(self, owners: Collection[bytes]) -> dict[bytes, str]:
        """Return who stands behind each record owner: the admitted user, in an open run only the peer itself.

        A user has one voice, with however many keys. Call it for owners whose records count.
        """
        held = self.admitted(owners)
        voices = {owner: known.username if self.counts_users else known.peer_id for owner, known in held.items()}
        return {owner: voices.get(owner, owner.hex()) for owner in owners}

    def peer_ids(self, owners: Collection[bytes]) -> dict[bytes, str]:
        """Return the libp2p ids (in base 58) of the record owners that are admitted."""
        return {owner: PeerID(bytes.fromhex(held.peer_id)).to_base58() for owner, held in self.admitted(owners).items()}

    def _are_known(self, owners: Collection[bytes]) -> bool:
        now = get_dht_time()
        return all(owner in self._known and now < self._known[owner].expires_at for owner in owners)

    def _look(self, admission: PeerAdmission, owners: Collection[bytes]) -> None:
        try:
            found = self._dht.get(self._key, latest=True, return_future=True).result(SECONDS_FOR_A_LOOK)
        except (FutureTimeoutError, TimeoutError):
            logger.warning("The DHT does not say who is admitted; using what is known.")
            return
        self._last_look = time.monotonic()
        values = found.value if found is not None and isinstance(found.value, dict) else {}
        # Only whom somebody asks for: the checks of a flood of tokens would take seconds.
        read = {owner: _read(admission, owner, values[owner].value) for owner in owners if owner in values}
        now = get_dht_time()
        known = {owner: held for owner, held in self._known.items() if now < held.expires_at}
        known |= {owner: held for owner, held in read.items() if held is not None}
        self._known = bounded(known, frozenset(owners))

    def _publish(self, admission: PeerAdmission) -> None:
        held = admission.check.check(admission.token, now=0.0)
        self._dht.store(
            key=self._key,
            subkey=owner_of(held.record_key.encode()),
            value=admission.token,
            expiration_time=held.expires_at,
            return_future=True,
        )


def speaks_for(record: object, admission: Admission, *, names_user: bool = True) -> bool:
    """Tell whether the peer named in a record, if any, is that of an admission, and the user if that `names_user`."""
    peer_id, username = getattr(record, "peer_id", None), getattr(record, "username", None)
    if isinstance(peer_id, str):
        try:
            peer_id = PeerID.from_base58(peer_id).to_bytes()
        except ValueError:
            return False
    is_its_peer = peer_id in (None, bytes.fromhex(admission.peer_id))
    return is_its_peer and (not names_user or username in (None, admission.username))


def bounded(
    known: Mapping[bytes, Admission], wanted: Collection[bytes], most: int = MOST_KNOWN
) -> dict[bytes, Admission]:
    """Return at most so many admissions: first those that are wanted, then those that last longest."""
    if len(known) <= most:
        return dict(known)
    return dict(sorted(known.items(), key=lambda item: (item[0] in wanted, item[1].expires_at))[-most:])


def _read(admission: PeerAdmission, owner: bytes, token: object) -> Admission | None:
    now = get_dht_time()
    try:
        held = admission.check.check(token, now, record_key=key_of(owner))
    except TokenRefusedError:
        return None
    lasts_too_long = not admission.has_authority and held.expires_at > now + MOST_SECONDS_SELF_SIGNED
    return None if lasts_too_long else held


def owner_of(record_key: bytes) -> bytes:
    """Return the owner of the records that a key, in OpenSSH's format, signs."""
    return RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", record_key)


def key_of(owner: bytes) -> bytes:
    """Return the record key, in OpenSSH's format, of a record's owner."""
    before, _, after = RSASignatureValidator.PUBLIC_KEY_FORMAT.partition(b"_key_")
    return owner.removeprefix(before).removesuffix(after)
