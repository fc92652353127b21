"""Admission tokens of a run: what the authority signs, and how anybody checks it; pure, no network.

A token says: the run's authority admits the peer with this libp2p identity and this record key, which belong to this
user of the Hub, until then. It is not a secret: a thief lacks both keys. The two keys are bound together because
hivemind signs DHT records with a separate RSA key, which says nothing about the libp2p peer that sent them.

In an open run each peer signs its own token with its libp2p key. Such a token admits everybody, but it binds the two
keys as well: nobody can sign records in another peer's name.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from pipelines.core.signing.rsa_keys import KEY_WANTED, RsaKey, is_rsa_key, peer_id_of
from pipelines.core.signing.signed_statement import (
    NotSignedError,
    SigningKey,
    StatementRefusedError,
    read_statement,
    signed_text,
)

MAX_TOKEN_CHARACTERS = 4096

NOBODY = "anonymous"
"""User in self-signed tokens, which say nothing about users."""

USERNAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"


class TokenRefusedError(ValueError):
    """A token does not admit the peer that shows it; the message says why and never contains the token."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What a token says."""

    PURPOSE: ClassVar[str] = "admission"
    MOST_BYTES: ClassVar[int] = MAX_TOKEN_CHARACTERS
    LONGEST_TEXT: ClassVar[int] = 512

    username: str
    """Name on the Hub."""

    run_id: str
    peer_id: str
    """libp2p peer id, in hexadecimal digits."""

    record_key: str
    """RSA public key that the peer signs its DHT records and requests with, in OpenSSH's format."""

    expires_at: float
    """Seconds since 1970 when the token expires."""

    confirmed_at: float
    """Seconds since 1970 when the Hub last confirmed the user and the lists of who may join were last read."""

    key: str
    """The authority's; in an open run the peer's own, its libp2p key."""

    def __post_init__(self) -> None:
        if not re.fullmatch(USERNAME_PATTERN, self.username):
            raise TokenRefusedError("The token names no user.")
        if not is_rsa_key(self.record_key.encode()):
            raise TokenRefusedError(f"The token's key is not {KEY_WANTED}.")


def token_of(admission: Admission, key: SigningKey) -> str:
    """Return the text of an admission, signed with the key that it names."""
    return signed_text(admission, key).decode().strip()


def own_admission(run_id: str, peer_key: RsaKey, record_key: str, *, now: float, expires_at: float) -> Admission:
    """Return what a peer of an open run says in the token that it signs itself."""
    return Admission(
        username=NOBODY,
        run_id=run_id,
        peer_id=peer_id_of(peer_key.public).hex(),
        record_key=record_key,
        expires_at=expires_at,
        confirmed_at=now,
        key=peer_key.public,
    )


@dataclass(frozen=True)
class TokenCheck:
    """Checks tokens of one run."""

    run_id: str
    authority_key: str
    """The authority's public key, as in `training_run.json`; empty: peers sign their own tokens."""

    def check(
        self, token: object, now: float, *, peer_id: bytes | None = None, record_key: bytes | None = None
    ) -> Admission:
        """Return a token's claims, if it is from who may issue it, for this run, still valid, and for the given keys.

        Raises:
            TokenRefusedError: it is not; the message says why.
        """
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARACTERS:
            raise TokenRefusedError("There is no token, or it is too long.")
        admission = _read(token, self.authority_key)
        if isinstance(admission, str):
            raise TokenRefusedError(admission)
        if admission.run_id != self.run_id:
            raise TokenRefusedError(f"The token admits to the run {admission.run_id!r}, not to {self.run_id!r}.")
        if now >= admission.expires_at:
            raise TokenRefusedError(
                f"The token of {admission.username} expired {now - admission.expires_at:.0f} s ago."
            )
        if peer_id is not None and admission.peer_id != peer_id.hex():
            raise TokenRefusedError(f"The token of {admission.username} belongs to another peer.")
        if record_key is not None and admission.record_key.encode() != record_key:
            raise TokenRefusedError(f"The token of {admission.username} belongs to another record key.")
        return admission


@lru_cache(maxsize=4096)
def _read(token: str, authority_key: str) -> Admission | str:
    """Return what a token says, or why it is refused.

    Cached, refusals too: every DHT call carries one of the same few tokens. The caller checks what depends on time.
    """
    signer = "the run's authority" if authority_key else "the peer that it names"
    try:
        admission = read_statement(Admission, token.encode())
        is_by_signer = admission.key == authority_key or (
            not authority_key and peer_id_of(admission.key).hex() == admission.peer_id
        )
    except NotSignedError:
        is_by_signer = False
    except StatementRefusedError as error:
        cause = error.__cause__
        return str(cause) if isinstance(cause, TokenRefusedError) else "The token is damaged."
    except ValueError:  # the key is no peer's
        is_by_signer = False
    return admission if is_by_signer else f"The token is not signed by {signer}."
