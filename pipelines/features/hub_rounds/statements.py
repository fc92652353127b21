"""What is said in a round over the Hub: a volunteer's pointer to a contribution, and the list that closes the round."""

import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar

from pipelines.core.signing.signed_statement import is_signed

SHA256 = re.compile("[0-9a-f]{64}")
MOST_MEMBERS = 1024
MOST_CANDIDATES = 4096
LARGEST_COUNT = 2**53


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """What a volunteer says of a contribution before the round's deadline, when nobody else can have its bytes yet."""

    PURPOSE: ClassVar[str] = "pointer"
    MOST_BYTES: ClassVar[int] = 4096

    swarm_id: str
    """The run and its generation."""

    user: str
    """Whose bucket it lies in."""

    round: int
    """The epoch that the round leads to."""

    state: str
    """Digest of the state from which the progress was made."""

    digest: str
    """SHA-256 of the contribution."""

    size: int
    """Its bytes."""

    samples: int
    """Of how many samples the progress is."""

    total_samples: int
    """What the peer has contributed so far, with these."""

    loss: float
    """Mean training loss of these samples."""

    samples_per_second: float
    device: str
    package_version: str
    key: str

    def __post_init__(self) -> None:
        if not all(map(SHA256.fullmatch, (self.state, self.digest))):
            raise ValueError(f"the digests are {self.state[:70]!r} and {self.digest[:70]!r}; expected SHA-256")
        if not (0 < self.samples <= self.total_samples < LARGEST_COUNT and 0 < self.size < LARGEST_COUNT):
            raise ValueError(f"{self.samples} of {self.total_samples} samples in {self.size} bytes")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Who has offered a contribution that does not count, and why."""

    user: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SignedPointer:
    """A pointer as its volunteer has signed it: whoever audits the round sees what was offered."""

    pointer: Pointer
    signature: str


@dataclass(frozen=True, kw_only=True)
class RoundList:
    """What closes a round: whose contributions count, and the state that follows from them.

    The first list of a generation has no members: it says from which state the rounds go on.
    """

    PURPOSE: ClassVar[str] = "round"
    MOST_BYTES: ClassVar[int] = 2**21

    swarm_id: str
    round: int
    previous: str
    """Digest of the state before; empty in the first list of a generation."""

    state: str
    """Digest of the state after the round."""

    members: tuple[SignedPointer, ...]
    """Those that count, in the order in which they were drawn."""

    left_out: tuple[Candidate, ...]
    closed_at: float
    """When the round was closed, by the Hub's clock, in seconds since 1970."""

    deadline: float
    """When the next round ends, by the same clock."""

    key: str

    def __post_init__(self) -> None:
        digests = (self.state, self.previous) if self.previous else (self.state,)
        if not all(map(SHA256.fullmatch, digests)) or self.round < 0:
            raise ValueError(f"round {self.round} from {self.previous[:70]!r} to {self.state[:70]!r}")
        users = [member.pointer.user for member in self.members]
        if not all(is_signed(member.pointer, member.signature) for member in self.members):
            raise ValueError("the contribution of a member is not signed with the key that its pointer names")
        if len(users) > MOST_MEMBERS or len(set(users)) < len(users) or len(self.left_out) > MOST_CANDIDATES:
            raise ValueError(f"{len(users)} members, {len(set(users))} different, {len(self.left_out)} left out")


def fingerprint(key: str) -> str:
    """Return a short name of a key, for paths."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]
