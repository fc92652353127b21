"""The keys that a run's organiser, authority and auxiliary peers sign with, Ed25519, in private files; and checks."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hub_tools.atomic_files import written_whole
from pipelines.core.signing import rsa_keys

KEY_PREFIX = "ed25519:"

SECONDS_AHEAD = 30.0
"""How far in the future a statement may be dated: clocks of one swarm differ by less."""


class PublisherKey:
    """A private key; its file is readable only by its owner."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public(self) -> str:
        """The public key as text, `ed25519:` and base64."""
        return KEY_PREFIX + base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, data: bytes) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self._key.sign(data)).decode()

    @classmethod
    def generate(cls) -> "PublisherKey":
        """Return a new key, which is in no file."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> "PublisherKey":
        """Read the key from a PEM file, created if missing. Raises ValueError for a file that is not such a key."""
        if not path.exists():
            cls.generate().save(path)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path, ask: Callable[[], str] | None = None) -> "PublisherKey":
        """Read the key from a PEM file, with the passphrase that `ask` returns if it is encrypted.

        Raises:
            ValueError: the file is not such a key, or the passphrase is another.
        """
        data = path.read_bytes()
        is_encrypted = b"ENCRYPTED PRIVATE KEY" in data
        if is_encrypted and ask is None:
            raise ValueError(f"{path} is encrypted; expected a key without a passphrase. Restore it: run keys --help")
        passphrase = ask().encode() if is_encrypted and ask else None
        try:
            key = serialization.load_pem_private_key(data, password=passphrase or None)
        except TypeError as error:  # an empty passphrase
            raise ValueError(f"{path} is encrypted; expected its passphrase. Run the command again.") from error
        except ValueError as error:
            seen = "cannot be decrypted with this passphrase" if is_encrypted else "is not a key in PEM format"
            cure = "Run the command again with its passphrase." if is_encrypted else "Name another file, or delete it."
            raise ValueError(f"{path} {seen} ({error}). {cure}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} contains a {type(key).__name__}; expected an Ed25519 key. Name another file.")
        return cls(key)

    def save(self, path: Path, passphrase: str = "") -> None:
        """Write the key as PEM, encrypted if there is a passphrase; only the file's owner may read it."""
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase:
            encryption = serialization.BestAvailableEncryption(passphrase.encode())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_private(path, self._key.private_bytes(pem, pkcs8, encryption))


def is_signed_by(public: str, data: bytes, signature: str | bytes) -> bool:
    """Tell whether the signature of the data, in base64, was made with the private half of this key, of either kind."""
    try:
        raw = base64.b64decode(signature, validate=True)
        if public.startswith(KEY_PREFIX):
            key = base64.b64decode(public.removeprefix(KEY_PREFIX), validate=True)
            Ed25519PublicKey.from_public_bytes(key).verify(raw, data)
        else:
            rsa_keys.verify(public, data, raw)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_current(time: float, now: float, lifetime_seconds: float) -> bool:
    """Tell whether a statement counts now, by the time that is signed in it: who shows it says nothing of its age."""
    return now - lifetime_seconds < time < now + SECONDS_AHEAD


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole and on the disk before it has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)
