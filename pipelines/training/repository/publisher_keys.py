"""The keys that auxiliary peers sign with: Ed25519; the public ones are listed on the Hub.

The list, `publisher_keys.json` in the run's repository, is the root of trust: whoever may write to the repository can
add a key, and the repository's history says who did. Peers accept only checkpoints and publishers whose key is in it.
"""

import base64
import binascii
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hub_tools.atomic_files import written_whole
from hub_tools.run_files import PUBLISHER_KEYS_FILE

KEY_PREFIX = "ed25519:"
MAX_KEYS = 64


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
    def load_or_create(cls, path: Path) -> "PublisherKey":
        """Read the key from a PEM file, created if missing. Raises ValueError for a file that is not such a key."""
        if not path.exists():
            _write_private(path, Ed25519PrivateKey.generate())
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a key in PEM format ({error}). Name another file, or delete it."
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} contains a {type(key).__name__}; expected an Ed25519 key. Name another file.")
        return cls(key)


def is_signed_by(public: str, data: bytes, signature: str) -> bool:
    """Tell whether the signature of the data was made with the private half of this key."""
    try:
        raw = base64.b64decode(public.removeprefix(KEY_PREFIX), validate=True)
        Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(signature, validate=True), data)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return public.startswith(KEY_PREFIX)


def keys_to_json(keys: Sequence[str]) -> str:
    """Return the text of `publisher_keys.json`, with the keys in the order in which they were added."""
    return json.dumps(dict(format_version=1, keys=list(keys)), indent=2) + "\n"


def keys_from_json(text: str) -> tuple[str, ...]:
    """Return the listed public keys. Raises ValueError for a list that is damaged."""
    try:
        values = json.loads(text)
        keys = values["keys"]
        if values["format_version"] != 1 or len(keys) > MAX_KEYS or not all(isinstance(key, str) for key in keys):
            raise ValueError("expected format 1 with a list of keys")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{PUBLISHER_KEYS_FILE} of the run cannot be read ({error!r}). Its organiser restores it from the "
            "repository's history."
        ) from error
    return tuple(keys)


def _write_private(path: Path, key: Ed25519PrivateKey) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with written_whole(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
