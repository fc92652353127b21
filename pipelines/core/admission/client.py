"""A peer's own admission: fetched before it enters the swarm, renewed in time, readable in all of its processes.

The trainer's process asks the service, in a thread; the DHT's and the averagers' processes, which are forked from it,
read the newest token from shared memory. So hivemind never waits for a web server.
"""

import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Protocol

from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from huggingface_hub import HfApi

from hub_tools.publishing.account_proof import HubAccount
from pipelines.core.admission.identity import existing_identity_file, read_identity
from pipelines.core.admission.settings import AdmissionConfig
from pipelines.core.admission.tokens import MAX_TOKEN_CHARACTERS, TokenCheck, own_admission, token_of
from pipelines.core.named_features import named_feature
from pipelines.core.signing.rsa_keys import RsaKey

logger = logging.getLogger(__name__)

SERVICE_TOKENS = "pipelines.features.admission_service.tokens_of_service:ServiceTokens"
"""What issues the tokens of a run that is not open."""

SECONDS_TO_TRY_AT_START = 45.0
SELF_SIGNED_SECONDS = 600.0
"""Lifetime of a self-signed token: as long it takes room in the DHT after its peer has left."""

SHARE_OF_LIFE_BEFORE_RENEWAL = 0.4
"""Before half of a token's lifetime, which leaves the rest for outages of the service."""


class AdmissionRefusedError(ValueError):
    """The run's authority does not admit this user; the message says why and what to do."""


class AdmissionUnreachableError(ConnectionError):
    """The run's admission service cannot answer now."""


class SharedToken:
    """The newest token, for one writer and many forked readers, without a lock: each write goes to the other slot."""

    def __init__(self) -> None:
        self._slots = [RawArray(ctypes.c_char, MAX_TOKEN_CHARACTERS + 1) for _ in range(2)]
        self._newest = RawValue(ctypes.c_int, 0)

    def read(self) -> str:
        """Return the token, or an empty text before the first one."""
        return self._slots[self._newest.value].value.decode()

    def write(self, token: str) -> None:
        """Replace the token."""
        other = 1 - self._newest.value
        self._slots[other].value = token.encode()
        self._newest.value = other


class TokenIssuer(Protocol):
    """Issues the tokens that admit one peer."""

    def issue(self, old: str) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds; `old` is the expiring one, or empty.

        Raises:
            AdmissionRefusedError: this peer is not admitted.
            AdmissionUnreachableError: whoever issues tokens cannot answer now.
        """


class PeerAdmission:
    """Holds and renews this peer's token. Use as a context manager before hivemind forks."""

    def __init__(
        self, check: TokenCheck, issuer: TokenIssuer, *, seconds_to_try: float = SECONDS_TO_TRY_AT_START
    ) -> None:
        self.check, self._issuer = check, issuer
        self.record_key = RSAPrivateKey.process_wide()
        self.refusal: AdmissionRefusedError | None = None
        """Why the authority has stopped renewing, if it has."""

        self.has_new_identity = False
        """Whether this peer's identity is certainly not used by anybody else."""

        self._token = SharedToken()
        self._on_renewal: list[Callable[[], None]] = []
        self._on_refusal: list[Callable[[], None]] = []
        self._stop, self._seconds_to_try = threading.Event(), seconds_to_try

    @property
    def has_authority(self) -> bool:
        """Whether the run's authority admits peers; in an open run each peer signs its own token."""
        return bool(self.check.authority_key)

    @property
    def token(self) -> str:
        """The newest token, readable in every process."""
        return self._token.read()

    @property
    def username(self) -> str:
        """The name under which the authority admits this peer."""
        return self.check.check(self.token, now=0.0).username

    def on_renewal(self, call: Callable[[], None]) -> None:
        """Register a callback for every renewal, called from another thread."""
        self._on_renewal.append(call)

    def on_refusal(self, call: Callable[[], None]) -> None:
        """Register a callback for the end of this peer's admission, called from another thread."""
        self._on_refusal.append(call)
        if self.refusal is not None:
            call()

    def raise_refusal(self) -> None:
        """Raise the authority's refusal of a renewal, if any."""
        if self.refusal is not None:
            raise self.refusal

    def __enter__(self) -> "PeerAdmission":
        lifetime = self._fetch_patiently()
        threading.Thread(target=self._keep, args=(lifetime,), daemon=True, name="admission").start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()

    def _fetch_patiently(self) -> float:
        deadline = time.monotonic() + self._seconds_to_try
        while True:
            try:
                return self._fetch()
            except AdmissionUnreachableError as error:
                if time.monotonic() > deadline:
                    raise
                logger.info("%s Retrying.", error)
                time.sleep(2.0)

    def _keep(self, lifetime: float) -> None:
        """Renew until the end; an outage of the service is retried, a refusal is final."""
        failures = 0
        while not self._stop.wait(seconds_to_renewal(lifetime, failures)):
            try:
                lifetime, failures = self._fetch(), 0
            except AdmissionUnreachableError as error:
                failures += 1
                logger.warning("Admission could not be renewed (%d), retrying: %s", failures, error)
            except AdmissionRefusedError as error:
                logger.error("%s", error)
                self.refusal = error
                for call in self._on_refusal:
                    call()
                return
            except Exception as error:  # not the service's: without this thread the admission would expire silently
                failures += 1
                logger.warning("Admission was not renewed everywhere (%d), retrying: %r", failures, error)

    def _fetch(self) -> float:
        """Get a token and start using it; return its lifetime."""
        token, lifetime = self._issuer.issue(self.token)
        self._token.write(token)
        for call in self._on_renewal:
            call()
        return lifetime


class SelfSignedTokens:
    """Tokens that a peer of an open run signs itself."""

    def __init__(self, run_id: str, peer_key: RsaKey) -> None:
        self._run_id, self._peer_key = run_id, peer_key

    def issue(self, old: str) -> tuple[str, float]:
        """See `TokenIssuer`."""
        now = get_dht_time()
        record_key = RSAPrivateKey.process_wide().get_public_key().to_bytes().decode()
        expires_at = now + SELF_SIGNED_SECONDS
        admission = own_admission(self._run_id, self._peer_key, record_key, now=now, expires_at=expires_at)
        return token_of(admission, self._peer_key), SELF_SIGNED_SECONDS


@contextlib.contextmanager
def seek_admission(
    admission_config: AdmissionConfig,
    identity_file: Path | None,
    hub_token: str | None,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
) -> Iterator[tuple[Path, PeerAdmission]]:
    """Yield the file of the identity that is admitted, and the admission; self-signed in an open run.

    `identity_file` is the peer's own choice; None: a new identity, deleted after the block. The admission is
    renewed in the background. Call it before hivemind forks.

    Raises:
        AdmissionRefusedError: the authority does not admit this user, or there is no Hub token.
        AdmissionUnreachableError: the service does not answer.
    """
    account = HubAccount(HfApi(token=hub_token)) if hub_token else None
    with (
        existing_identity_file(identity_file) as path,
        peer_admission(admission_config, read_identity(path), account, seconds_to_try=seconds_to_try) as admission,
    ):
        admission.has_new_identity = path != identity_file
        yield path, admission


def peer_admission(
    admission_config: AdmissionConfig,
    peer_key: RsaKey,
    account: HubAccount | None,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
) -> PeerAdmission:
    """Return the admission that a run asks for: its authority's, or a self-signed one where everybody may join."""
    check = TokenCheck(admission_config.run_id, admission_config.authority_key)
    issuer: TokenIssuer
    if admission_config.is_open:
        issuer = SelfSignedTokens(admission_config.run_id, peer_key)
    else:
        issuer = named_feature(SERVICE_TOKENS)(admission_config, peer_key, account, check)
    return PeerAdmission(check, issuer, seconds_to_try=seconds_to_try)


def seconds_to_renewal(lifetime: float, num_failures: int) -> float:
    """Return how long to wait: well before half of the lifetime, then ever shorter, with jitter."""
    seconds = lifetime * SHARE_OF_LIFE_BEFORE_RENEWAL
    if num_failures:
        seconds = min(30.0, lifetime / 20)
    return seconds * random.uniform(0.8, 1.0)
