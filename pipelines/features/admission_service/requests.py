"""What a peer asks the authority for, signed by both of its keys, and the proof of the user behind it; no network."""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import ClassVar

from pipelines.core.admission.tokens import MAX_TOKEN_CHARACTERS
from pipelines.core.signing.publisher_keys import is_signed_by
from pipelines.core.signing.rsa_keys import KEY_WANTED, RsaKey, is_rsa_key, peer_id_of
from pipelines.core.signing.signed_statement import SigningKey, signed_bytes

PROOF_SECONDS = 7 * 86_400
"""A proof lasts one to two of these, and all expire at the same moments: a peer that comes again with the same identity
needs no other."""


@dataclass(frozen=True, kw_only=True)
class AdmissionRequest:
    """A peer's request to the authority: an admission for its two keys, each of which signs."""

    PURPOSE: ClassVar[str] = "request for admission"
    MOST_BYTES: ClassVar[int] = 16_384
    LONGEST_TEXT: ClassVar[int] = MAX_TOKEN_CHARACTERS

    run_id: str
    key: str
    """Record key, in OpenSSH's format, which signs the whole."""

    peer_key: str
    """libp2p public key, in the same format."""

    peer_signature: str = field(repr=False)
    """The peer's, of `binding`, in base64."""

    time: float
    """Seconds since 1970 by the peer's clock."""

    username: str
    nonce: str = field(repr=False)
    proof_expires_at: int
    """Of these is made the name of the file on the Hub that proves the user (`proof_name`)."""

    token: str = field(repr=False)
    """The expiring admission, or empty: while the Hub is down, it is the only proof of the user."""

    def __post_init__(self) -> None:
        for name, key in dict(record_key=self.key, peer_key=self.peer_key).items():
            if not is_rsa_key(key.encode()):
                raise ValueError(f"{name} is not {KEY_WANTED}")
        bound = binding(self.run_id, self.peer_key, self.key, self.time)
        if not is_signed_by(self.peer_key, bound, self.peer_signature):
            raise ValueError("the request is not signed by its peer_key")

    @property
    def peer_id(self) -> str:
        """The libp2p id of the peer, in hexadecimal digits."""
        return peer_id_of(self.peer_key).hex()


def binding(run_id: str, peer_key: str, record_key: str, time: float) -> bytes:
    """Return what a peer's own key signs: which record key is the peer's."""
    return signed_bytes("keys of a peer", run_id, peer_key, record_key, float(time))


def request_of(
    run_id: str, peer_key: RsaKey, record_key: SigningKey, *, time: float, username: str, token: str = ""
) -> AdmissionRequest:
    """Return the request of a peer that holds both keys, still to be signed with the record key."""
    expires_at = proof_expiry(time)
    return AdmissionRequest(
        run_id=run_id,
        key=record_key.public,
        peer_key=peer_key.public,
        peer_signature=peer_key.sign(binding(run_id, peer_key.public, record_key.public, time)),
        time=float(time),
        username=username,
        nonce=proof_nonce(peer_key, run_id, expires_at),
        proof_expires_at=expires_at,
        token=token,
    )


def proof_name(request: AdmissionRequest, authority_key: str) -> str:
    """Return the name of the file that proves to a run's authority that the asking peer belongs to the user."""
    parts = (request.username, request.run_id, authority_key, request.peer_key, request.nonce, request.proof_expires_at)
    return hashlib.sha256(signed_bytes("proof of an account", *parts)).hexdigest()


def proof_expiry(now: float) -> int:
    """Return when a proof that is made now expires, in seconds since 1970."""
    return (int(now) // PROOF_SECONDS + 2) * PROOF_SECONDS


def proof_nonce(peer_key: RsaKey, run_id: str, expires_at: int) -> str:
    """Return what only the holder of the peer's key knows, and the service that is told; always the same."""
    return hmac.digest(peer_key.secret(), signed_bytes("nonce of a proof", run_id, expires_at), "sha256").hex()
