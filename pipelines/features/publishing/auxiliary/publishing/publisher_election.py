"""Which of several auxiliary peers publishes: each decides for itself, from the same signed records.

The publishers' keys are in `publisher_keys.json` in the order in which they were added; the first live one that is not
revoked publishes. When it dies, its record expires and the next one takes over. Two peers that briefly both believe
they are the publisher cannot both publish: every commit names the head on which it was made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.core.signing.publisher_keys import PublisherKey, is_signed_by
from pipelines.core.signing.signed_statement import signed_bytes


@dataclass(frozen=True, kw_only=True)
class Candidacy:
    """A peer's candidacy; its DHT record is signed with the peer's key in the DHT."""

    public_key: str
    proof: str
    """Signature, with the publisher's key, of the swarm and of the peer's key in the DHT."""


def candidacy(key: PublisherKey, swarm_id: str, owner: bytes) -> Candidacy:
    """Return this peer's candidacy; `owner` is its key in the DHT."""
    return Candidacy(public_key=key.public, proof=key.sign(_statement(swarm_id, owner)))


def proven_keys(candidacies: Iterable[tuple[bytes, Candidacy]], swarm_id: str) -> set[str]:
    """Return the publisher keys whose candidacies are genuine: in a copied record the owner does not match."""
    return {
        item.public_key
        for owner, item in candidacies
        if is_signed_by(item.public_key, _statement(swarm_id, owner), item.proof)
    }


def elect(alive: Iterable[str], listed: Sequence[str]) -> str | None:
    """Return the key of the publisher: the first listed one that is live, or None."""
    return next((key for key in listed if key in set(alive)), None)


def _statement(swarm_id: str, owner: bytes) -> bytes:
    return signed_bytes("candidacy", swarm_id, owner)
