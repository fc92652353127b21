"""Admission tokens of a run: what the authority signs, and how anybody checks it; pure, no network.

A token says: the run's authority admits the peer with this libp2p identity and this record key, which belong to this
user of the Hub, until then. It is not a secret: a thief lacks both keys. The two keys are bound together because
hivemind signs DHT records with a separate RSA key, which says nothing about the libp2p peer that sent them.

In an open run each peer signs its own token with its libp2p key. Such a token admits everybody, but it binds the two
keys as well: nobody can sign records in another peer's name.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa

from hub_tools.checks import is_number
from hub_tools.foreign.json_texts import parse_json

TOKEN_DOMAIN = b"dalle-collab admission token 1\0"
SELF_SIGNED_DOMAIN = b"dalle-collab self-signed token 1\0"
REQUEST_DOMAIN = b"dalle-collab admission request 1\0"
PROOF_DOMAIN = b"dalle-collab proof of an account 1\0"
PROOF_SECONDS = 7 * 86_400
"""A proof lasts one to two of these, and all expire at the same moments: a peer that comes again with the same identity
needs no other."""

MAX_TOKEN_CHARACTERS = 4096
OPTIONAL = {"token": "", "username": "", "nonce": "", "proof_expires_at": 0.0}
"""What a request may do without."""

NOBODY = "anonymous"
"""User in self-signed tokens, which say nothing about users."""

RECORD_KEY_PATTERN = rb"ssh-rsa [A-Za-z0-9+/]{372}"
_RECORD_KEY_START = b"\0\0\0\7ssh-rsa\0\0\0\3\1\0\1\0\0\1\1\0"
_PEER_KEY_START = bytes.fromhex("30820122300d06092a864886f70d01010105000382010f003082010a0282010100")
_PEER_KEY_END = b"\2\3\1\0\1"
"""Around the 256 bytes of the modulus, in OpenSSH's format and in DER, of each RSA key of 2048 bits with e = 65537."""

USERNAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"


class TokenRefusedError(ValueError):
    """A token does not admit the peer that shows it; the message says why and never contains the token."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What a token says."""

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

    def __post_init__(self) -> None:
        texts = (self.username, self.run_id, self.peer_id, self.record_key)
        times = (self.expires_at, self.confirmed_at)
        if not all(isinstance(text, str) for text in texts) or not re.fullmatch(USERNAME_PATTERN, self.username):
            raise TokenRefusedError("The token names no user.")
        if not all(map(is_number, times)):
            raise TokenRefusedError("The token's times are not numbers.")


@dataclass(frozen=True, kw_only=True)
class AdmissionRequest:
    """A peer's request to the authority: an admission for its two keys, each of which signs the request."""

    run_id: str
    peer_key: str
    """libp2p public key: base64 of DER."""

    record_key: str
    """RSA public key in OpenSSH's format."""

    time: float
    """Seconds since 1970 by the peer's clock."""

    peer_signature: str = field(default="", repr=False)
    record_signature: str = field(default="", repr=False)
    """Base64 signatures over `signed_bytes`, by the libp2p key and by the record key."""

    token: str = field(default="", repr=False)
    """The expiring admission, if there is one: while the Hub is down, it is the only proof of the user."""

    username: str = ""
    nonce: str = field(default="", repr=False)
    proof_expires_at: float = 0.0
    """Of these is made the name of the file on the Hub that proves the user (`proof_name`)."""

    def signed_bytes(self) -> bytes:
        """Return what both keys sign: everything that the admission binds together."""
        parts = dict(run_id=self.run_id, peer_key=self.peer_key, record_key=self.record_key, time=self.time)
        return REQUEST_DOMAIN + json.dumps(parts, sort_keys=True).encode()

    @classmethod
    def from_mapping(cls, values: object) -> Self:
        """Build a request from parsed JSON; raises ValueError naming the invalid field."""
        names = {"run_id": str, "peer_key": str, "record_key": str, "time": float, "peer_signature": str}
        names |= {"record_signature": str, "token": str, "username": str, "nonce": str, "proof_expires_at": float}
        if not isinstance(values, dict):
            raise ValueError("the body is not a JSON object")
        if unknown := sorted(set(values) - set(names)):
            raise ValueError(f"the body has unknown fields: {', '.join(map(repr, unknown[:3]))}")
        for name, kind in names.items():
            value = values.get(name, OPTIONAL.get(name))
            is_text = isinstance(value, str) and len(value) <= MAX_TOKEN_CHARACTERS
            if not (is_text if kind is str else is_number(value)):
                raise ValueError(f"field {name} is missing, of the wrong type or too long")
        return cls(**values)


def proof_name(request: AdmissionRequest, authority_key: str) -> str:
    """Return the name of the file that proves to a run's authority that the asking peer belongs to the user."""
    parts = [request.username, request.run_id, authority_key, request.peer_key, request.nonce]
    parts += [str(int(request.proof_expires_at))]
    return hashlib.sha256(PROOF_DOMAIN + json.dumps(parts).encode()).hexdigest()


def proof_expiry(now: float) -> int:
    """Return when a proof that is made now expires, in seconds since 1970."""
    return (int(now) // PROOF_SECONDS + 2) * PROOF_SECONDS


def proof_nonce(peer_key: rsa.RSAPrivateKey, run_id: str, expires_at: int) -> str:
    """Return what only the holder of the peer's key knows, and the service that is told; always the same."""
    secret = peer_key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return hmac.digest(secret, PROOF_DOMAIN + json.dumps([run_id, expires_at]).encode(), "sha256").hex()


def issue_token(admission: Admission, authority: ed25519.Ed25519PrivateKey) -> str:
    """Return the signed text of an admission."""
    claims = _claims(admission)
    return f"{_encode(claims)}.{_encode(authority.sign(TOKEN_DOMAIN + claims))}"


def own_admission(
    run_id: str, peer_key: rsa.RSAPrivateKey, record_key: str, *, now: float, expires_at: float
) -> Admission:
    """Return what a peer of an open run says in the token that it signs itself."""
    peer_id = peer_id_of(der_of(peer_key)).hex()
    return Admission(
        username=NOBODY,
        run_id=run_id,
        peer_id=peer_id,
        record_key=record_key,
        expires_at=expires_at,
        confirmed_at=now,
    )


def self_signed_token(admission: Admission, peer_key: rsa.RSAPrivateKey) -> str:
    """Return the text of a token that a peer of an open run signs itself, with its libp2p key."""
    claims = _claims(admission)
    signature = peer_key.sign(SELF_SIGNED_DOMAIN + claims, _pss(), hashes.SHA256())
    return ".".join(map(_encode, (claims, der_of(peer_key), signature)))


@dataclass(frozen=True)
class TokenCheck:
    """Checks tokens of one run."""

    run_id: str
    authority_key: str
    """The authority's Ed25519 public key, as in `training_run.json`; empty: peers sign their own tokens."""

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


def sign_request(
    request: AdmissionRequest, peer_key: rsa.RSAPrivateKey, record_key: rsa.RSAPrivateKey
) -> AdmissionRequest:
    """Return the request with the proofs that the asking peer holds both keys."""
    content = request.signed_bytes()
    signatures = [
        base64.b64encode(key.sign(content, _pss(), hashes.SHA256())).decode() for key in (peer_key, record_key)
    ]
    return replace(request, peer_signature=signatures[0], record_signature=signatures[1])


def check_request(request: AdmissionRequest) -> str:
    """Return the peer id, in hexadecimal digits, of a request that both of its keys have signed.

    Raises:
        ValueError: a key cannot be read, or a signature does not match its key.
    """
    peer_der, content = _decode(request.peer_key), request.signed_bytes()
    if not is_record_key(request.record_key.encode()):
        raise ValueError(f"record_key is not {_KEY_WANTED}")
    keys = (_peer_key(peer_der), serialization.load_ssh_public_key(request.record_key.encode()))
    signatures = (request.peer_signature, request.record_signature)
    for name, key, signature in zip(("peer_key", "record_key"), keys, signatures, strict=True):
        assert isinstance(key, rsa.RSAPublicKey), "its bytes were checked"
        try:
            key.verify(_decode(signature), content, _pss(), hashes.SHA256())
        except InvalidSignature as error:
            raise ValueError(f"the request is not signed by its {name}") from error
    return peer_id_of(peer_der).hex()


def is_record_key(text: bytes) -> bool:
    """Tell whether this is the one text, in OpenSSH's format, of an RSA key of 2048 bits with e = 65537.

    Every other text is refused before it costs anything: with comments one key has any number of texts, and with a
    large exponent each check takes 30 to 50 times as long.
    """
    if re.fullmatch(RECORD_KEY_PATTERN, text) is None:
        return False
    key = base64.b64decode(text[len(b"ssh-rsa ") :])
    return key.startswith(_RECORD_KEY_START) and _is_modulus(key[len(_RECORD_KEY_START) :])


def is_peer_key(der: bytes) -> bool:
    """Tell the same of a libp2p key in DER."""
    modulus = der[len(_PEER_KEY_START) : -len(_PEER_KEY_END)]
    return der.startswith(_PEER_KEY_START) and der.endswith(_PEER_KEY_END) and _is_modulus(modulus)


def der_of(key: rsa.RSAPrivateKey) -> bytes:
    """Return the public half of an RSA key in DER."""
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def peer_id_of(peer_key: bytes) -> bytes:
    """Return the libp2p peer id of an RSA public key in DER (libp2p specification, peer-ids: "Keys")."""
    length = len(peer_key)
    assert length < 1 << 14, "the length fits into two bytes of a protobuf varint"
    varint = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return b"\x12\x20" + hashlib.sha256(b"\x08\x00\x12" + varint + peer_key).digest()


def public_text(key: ed25519.Ed25519PrivateKey) -> str:
    """Return an authority's public key as written in `training_run.json`."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()


@lru_cache(maxsize=4096)
def _read(token: str, authority_key: str) -> Admission | str:
    """Return what a token says, or why it is refused.

    Cached, refusals too: every DHT call carries one of the same few tokens. The caller checks what depends on time.
    """
    try:
        parts = [_decode(text, altchars=b"-_") for text in token.split(".", 2)]
        admission = _read_signed(parts, authority_key) if authority_key else _read_self_signed(parts)
    except InvalidSignature:
        signer = "the run's authority" if authority_key else "the peer that it names"
        return f"The token is not signed by {signer}."
    except TokenRefusedError as error:
        return str(error)
    except (ValueError, TypeError, RecursionError):
        return "The token is damaged."
    return admission if is_record_key(admission.record_key.encode()) else f"The token's key is not {_KEY_WANTED}."


def _read_signed(parts: list[bytes], authority_key: str) -> Admission:
    claims, signature = parts
    key = ed25519.Ed25519PublicKey.from_public_bytes(_decode(authority_key))
    key.verify(signature, TOKEN_DOMAIN + claims)
    return Admission(**parse_json(claims))


def _read_self_signed(parts: list[bytes]) -> Admission:
    claims, peer_der, signature = parts
    _peer_key(peer_der).verify(signature, SELF_SIGNED_DOMAIN + claims, _pss(), hashes.SHA256())
    admission = Admission(**parse_json(claims))
    if admission.peer_id != peer_id_of(peer_der).hex():
        raise InvalidSignature
    return admission


def _claims(admission: Admission) -> bytes:
    return json.dumps(asdict(admission), sort_keys=True, separators=(",", ":")).encode()


_KEY_WANTED = "an RSA key of 2048 bits with the exponent 65537"


def _peer_key(der: bytes) -> rsa.RSAPublicKey:
    if not is_peer_key(der):
        raise ValueError(f"peer_key is not {_KEY_WANTED}")
    key = serialization.load_der_public_key(der)
    assert isinstance(key, rsa.RSAPublicKey), "its bytes were checked"
    return key


def _is_modulus(number: bytes) -> bool:
    return len(number) == 256 and number[0] >= 128 and number[-1] % 2 == 1


def _encode(content: bytes) -> str:
    return base64.b64encode(content, altchars=b"-_").decode()


def _decode(text: str, altchars: bytes | None = None) -> bytes:
    try:
        content = base64.b64decode(text, altchars=altchars, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("a key or signature is not base64") from error
    if len(content) > MAX_TOKEN_CHARACTERS:
        raise ValueError("a key or signature is too long")
    return content


def _pss() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
