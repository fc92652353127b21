"""Keys, and what an authority signs for them, for the tests of admission."""

import time
from functools import cache

from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.utils.crypto import RSAPrivateKey

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.tokens import Admission, TokenCheck, token_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.rsa_keys import RsaKey, peer_id_of

AUTHORITY = PublisherKey.generate()


@cache
def rsa_key(name: str) -> RsaKey:
    """Return a key that stays the same for a name within one process."""
    return RsaKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))


def peer_id(name: str) -> bytes:
    return peer_id_of(rsa_key(name).public)


def admission(now: float, **changes: object) -> Admission:
    values = dict(
        username="alice", run_id="run", peer_id=peer_id("peer").hex(), record_key=rsa_key("record").public,
        expires_at=now + 60.0, confirmed_at=now, key=AUTHORITY.public,
    )  # fmt: skip
    return Admission(**(values | changes))


class NoIssuer:
    """See `TokenIssuer`: the test writes the token."""

    def issue(self, old: str) -> tuple[str, float]:
        raise NotImplementedError


def held_admission(**changes: object) -> PeerAdmission:
    """Return the admission of this process with a token as the authority would have signed it, but for the changes."""
    held = PeerAdmission(TokenCheck("run", AUTHORITY.public), NoIssuer())
    record_key = RSAPrivateKey.process_wide().get_public_key().to_bytes().decode()
    held._token.write(token_of(admission(time.time(), **({"record_key": record_key} | changes)), AUTHORITY))
    return held
