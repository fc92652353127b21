"""What a member tells its group of its contribution: a group's signed announcements are the list of its round.

Everybody takes the same bytes by their digest from whoever has them, so nobody who passes them on can change them.
"""

import hashlib
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.group.group_data import ID_BYTES
from pipelines.core.signing.signed_statement import signed_bytes

DIGEST_BYTES = 32
MOST_BYTES_OF_AN_ID = 64
MOST_RECORDED = 256
"""Peers of whose records a member tells: 20 bytes each."""


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """One member's contribution."""

    digest: bytes
    """SHA-256 of its bytes."""

    num_bytes: int
    fan_out: PeerID | None = None
    """The node to which it is given for the others; None: its owner alone gives it."""

    recorded: Mapping[bytes, float] = field(default_factory=dict)
    """The most samples that peers' records, as this member has read them, make plausible, by the end of their ids."""

    @classmethod
    def of(cls, content: bytes, recorded: Mapping[PeerID, float]) -> Self:
        """Return the announcement of these bytes, by who has read these records."""
        known = sorted((peer.to_bytes()[-ID_BYTES:], float(most)) for peer, most in recorded.items())[:MOST_RECORDED]
        return cls(digest=hashlib.sha256(content).digest(), num_bytes=len(content), recorded=dict(known))

    def encode(self) -> bytes:
        """Return it as the message in a group's data."""
        fan_out = b"" if self.fan_out is None else self.fan_out.to_bytes()
        return MSGPackSerializer.dumps([self.digest, self.num_bytes, fan_out, list(self.recorded.items())])


def agreed_records(announced: Mapping[PeerID, Announcement]) -> dict[PeerID, float]:
    """Return the most samples of each owner that at least half of the others who have read records name, their median.

    All members come to the same, and a peer without history has none, whatever a minority says.
    """
    agreed = {}
    for owner in announced:
        others = [told.recorded for peer, told in announced.items() if peer != owner and told.recorded]
        name = owner.to_bytes()[-ID_BYTES:]
        named = [recorded[name] for recorded in others if name in recorded]
        if named and 2 * len(named) >= len(others):
            agreed[owner] = statistics.median_low(named)
    return agreed


def announced_in(gathered: bytes, sizes: range) -> Announcement | None:
    """Return what a member has announced in its data for the group; None: it contributes nothing.

    Raises:
        ValueError: no honest peer sends this, or the contribution's size is not among those possible in this run.
    """
    try:
        _, _, message, *_ = MSGPackSerializer.loads(gathered)
        fields: Any = MSGPackSerializer.loads(message)
        if fields is None:
            return None
        digest, num_bytes, fan_out, recorded = fields
        names = dict(recorded)
    except Exception as error:  # whatever msgpack makes of a stranger's bytes
        raise ValueError(f"What it announced is no contribution: {error!r}.") from error
    are_bytes = isinstance(digest, bytes) and isinstance(fan_out, bytes)
    if not are_bytes or len(digest) != DIGEST_BYTES or len(fan_out) > MOST_BYTES_OF_AN_ID:
        raise ValueError("What it announced is no contribution: expected a digest, a size and perhaps a peer id.")
    if type(num_bytes) is not int or num_bytes not in sizes:
        raise ValueError(f"It announced {num_bytes!r} bytes; expected {sizes.start} to {sizes.stop - 1}.")
    are_records = all(
        isinstance(name, bytes) and len(name) == ID_BYTES and isinstance(most, float) and 0 <= most < math.inf
        for name, most in names.items()
    )
    if not are_records or len(recorded) > MOST_RECORDED:
        raise ValueError(f"It announced {len(recorded)} records, expected samples of at most {MOST_RECORDED} peers.")
    return Announcement(
        digest=digest, num_bytes=num_bytes, fan_out=PeerID(fan_out) if fan_out else None, recorded=names
    )


def receipt_statement(fan_out: PeerID, digest: bytes, epoch: int) -> bytes:
    """Return what a fan-out node signs: it has this contribution to the round of this epoch, and gives it to all."""
    return signed_bytes("receipt", fan_out.to_bytes(), digest, epoch)


def drawn_order(digest: bytes, peers: list[PeerID]) -> list[PeerID]:
    """Return peers in an order drawn for a contribution, the same everywhere: so the work is spread."""
    return sorted(peers, key=lambda peer: hashlib.sha256(digest + peer.to_bytes()).digest())
