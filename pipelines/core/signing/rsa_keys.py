"""RSA keys of peers and of their records: 2,048 bits, the exponent 65537, and one text for each, OpenSSH's.

Every other text is refused before it costs anything: with comments one key has any number of texts, and with a large
exponent each check takes 30 to 50 times as long.
"""

import base64
import hashlib
import re
from functools import lru_cache

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

KEY_WANTED = "an RSA key of 2048 bits with the exponent 65537"

_PATTERN = re.compile(rb"ssh-rsa [A-Za-z0-9+/]{372}")
_START = b"\0\0\0\7ssh-rsa\0\0\0\3\1\0\1\0\0\1\1\0"
_START_OF_DER = bytes.fromhex("30820122300d06092a864886f70d01010105000382010f003082010a0282010100")
_END_OF_DER = b"\2\3\1\0\1"
"""Around the 256 bytes of the modulus, in OpenSSH's format and in DER, of each such key."""


class RsaKey:
    """A private key of a peer: its libp2p identity, or what it signs its records with."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        self.public = key.public_key().public_bytes(*ssh).decode()
        """The public half in OpenSSH's format."""

    def sign(self, data: bytes) -> str:
        """Return the signature (RSA-PSS, SHA-256) in base64."""
        return base64.b64encode(self._key.sign(data, _pss(), hashes.SHA256())).decode()

    def secret(self) -> bytes:
        """Return what only the holder of this key has."""
        pkcs8, unprotected = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.DER, pkcs8, unprotected)


def is_rsa_key(text: bytes) -> bool:
    """Tell whether this is the one text of such a key."""
    return _PATTERN.fullmatch(text) is not None and _modulus_of(text) is not None


def peer_id_of(public: str) -> bytes:
    """Return the libp2p peer id of a public key (libp2p specification, peer-ids: "Keys"); ValueError if it is none."""
    modulus = _modulus_of(public.encode()) if is_rsa_key(public.encode()) else None
    if modulus is None:
        raise ValueError(f"a key is not {KEY_WANTED}")
    der = _START_OF_DER + modulus + _END_OF_DER
    length = bytes([len(der) & 127 | 128, len(der) >> 7])  # a varint of protobuf
    return b"\x12\x20" + hashlib.sha256(b"\x08\x00\x12" + length + der).digest()


def verify(public: str, data: bytes, signature: bytes) -> None:
    """Raise ValueError or InvalidSignature unless a signature of the data is by the private half of this key."""
    _loaded(public).verify(signature, data, _pss(), hashes.SHA256())


@lru_cache(maxsize=256)
def _loaded(public: str) -> rsa.RSAPublicKey:
    if not is_rsa_key(public.encode()):
        raise ValueError(f"a key is not {KEY_WANTED}")
    key = serialization.load_ssh_public_key(public.encode())
    assert isinstance(key, rsa.RSAPublicKey), "its bytes were checked"
    return key


def _modulus_of(text: bytes) -> bytes | None:
    key = base64.b64decode(text[len(b"ssh-rsa ") :])
    number = key[len(_START) :]
    is_one = key.startswith(_START) and len(number) == 256 and number[0] >= 128 and number[-1] % 2 == 1
    return number if is_one else None


def _pss() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
