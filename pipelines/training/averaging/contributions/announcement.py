"""What a member tells its group of its contribution: a group's signed announcements are the list of its round.

Everybody takes the same bytes by their digest from whoever has them, so nobody who passes them on can change them.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Self

from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

DIGEST_BYTES = 32
MOST_BYTES_OF_AN_ID = 64
RECEIPT_DOMAIN = b"dalle-collab receipt 1"


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """One member's contribution."""

    digest: bytes
    """SHA-256 of its bytes."""

    num_bytes: int
    fan_out: PeerID | None = None
    """The node to which it is given for the others; None: its owner alone gives it."""

    @classmethod
    def of(cls, content: bytes, fan_out: PeerID | None = None) -> Self:
        """Return the announcement of these bytes."""
        return cls(digest=hashlib.sha256(content).digest(), num_bytes=len(content), fan_out=fan_out)

    def encode(self) -> bytes:
        """Return it as the message in a group's data."""
        fan_out = b"" if self.fan_out is None else self.fan_out.to_bytes()
        return MSGPackSerializer.dumps([self.digest, self.num_bytes, fan_out])


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
        digest, num_bytes, fan_out = fields
    except Exception as error:  # whatever msgpack makes of a stranger's bytes
        raise ValueError(f"What it announced is no contribution: {error!r}.") from error
    are_bytes = isinstance(digest, bytes) and isinstance(fan_out, bytes)
    if not are_bytes or len(digest) != DIGEST_BYTES or len(fan_out) > MOST_BYTES_OF_AN_ID:
        raise ValueError("What it announced is no contribution: expected a digest, a size and perhaps a peer id.")
    if type(num_bytes) is not int or num_bytes not in sizes:
        raise ValueError(f"It announced {num_bytes!r} bytes; expected {sizes.start} to {sizes.stop - 1}.")
    return Announcement(digest=digest, num_bytes=num_bytes, fan_out=PeerID(fan_out) if fan_out else None)


def receipt_statement(fan_out: PeerID, digest: bytes, epoch: int) -> bytes:
    """Return what a fan-out node signs: it has this contribution to the round of this epoch, and gives it to all."""
    return MSGPackSerializer.dumps([RECEIPT_DOMAIN, fan_out.to_bytes(), digest, epoch])


def drawn_order(digest: bytes, peers: list[PeerID]) -> list[PeerID]:
    """Return peers in an order drawn for a contribution, the same everywhere: so the work is spread."""
    return sorted(peers, key=lambda peer: hashlib.sha256(digest + peer.to_bytes()).digest())
