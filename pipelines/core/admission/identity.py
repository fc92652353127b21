"""The peer's libp2p identity: its file, and the key in it."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.p2p import P2P
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from pipelines.core.signing.rsa_keys import KEY_WANTED, RsaKey, is_rsa_key


@contextlib.contextmanager
def existing_identity_file(chosen: Path | None) -> Iterator[Path]:
    """Yield an existing identity file: the chosen one, or one that is deleted after the block.

    The peer id must be known before the peer enters a swarm, because its token names it.
    """
    with tempfile.TemporaryDirectory(prefix="dalle-collab-identity-") as folder:
        path = chosen or Path(folder) / "identity.key"
        if not path.exists():
            P2P.generate_identity(str(path))
        yield path


def read_identity(path: Path) -> RsaKey:
    """Return the private key of an identity file.

    Raises:
        ValueError: the file does not contain an RSA identity.
    """
    try:
        content = crypto_pb2.PrivateKey.FromString(path.read_bytes())
        key = serialization.load_der_private_key(content.data, password=None)
    except Exception as error:  # protobuf's errors have no common type
        raise ValueError(f"{path} is not an identity file ({error}). Use a new one: --identity-file NEW.key") from error
    own = RsaKey(key) if isinstance(key, rsa.RSAPrivateKey) else None
    if own is None or not is_rsa_key(own.public.encode()):
        raise ValueError(f"{path} does not hold {KEY_WANTED}, which runs need. Name a new one: --identity-file NEW.key")
    return own


def record_key_of_process() -> RsaKey:
    """Return the key with which hivemind signs this process's records."""
    key = serialization.load_der_private_key(RSAPrivateKey.process_wide().to_bytes(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey), "hivemind signs records with RSA"
    return RsaKey(key)
