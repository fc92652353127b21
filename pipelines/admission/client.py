"""A peer's own admission: fetched before it enters the swarm, renewed in time, readable in all of its processes.

The trainer's process asks the service, in a thread; the DHT's and the averagers' processes, which are forked from it,
read the newest token from shared memory. So hivemind never waits for a web server.
"""

import base64
import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Any, Protocol

import httpx2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from huggingface_hub import HfApi

from pipelines.admission.identity import existing_identity_file, read_identity
from pipelines.admission.settings import Door, is_on_this_machine
from pipelines.admission.tokens import (
    MAX_TOKEN_CHARACTERS,
    AdmissionRequest,
    TokenCheck,
    TokenRefusedError,
    der_of,
    own_admission,
    peer_id_of,
    self_signed_token,
    sign_request,
)

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS = 30.0
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


class ServiceTokens:
    """Tokens of the run's admission service."""

    def __init__(self, door: Door, peer_key: rsa.RSAPrivateKey, hub_token: str, check: TokenCheck) -> None:
        self._check, self._peer_key, self._hub_token = check, peer_key, hub_token
        self._service, self._repository = door.service_address, door.repository

    def issue(self, old: str) -> tuple[str, float]:
        """See `TokenIssuer`; the token is checked."""
        record_key, peer_der = RSAPrivateKey.process_wide(), der_of(self._peer_key)
        request = AdmissionRequest(
            run_id=self._check.run_id,
            peer_key=base64.b64encode(peer_der).decode(),
            record_key=record_key.get_public_key().to_bytes().decode(),
            time=get_dht_time(),
            token=old,
        )
        signing_key = serialization.load_der_private_key(record_key.to_bytes(), password=None)
        assert isinstance(signing_key, rsa.RSAPrivateKey), "hivemind signs records with RSA"
        signed = sign_request(request, self._peer_key, signing_key)
        answer = self._ask(dict(vars(signed)))
        token, lifetime = answer.get("token"), answer.get("lifetime_seconds")
        if not isinstance(token, str) or not isinstance(lifetime, (int, float)) or not lifetime > 0:
            raise AdmissionUnreachableError(f"What answers at {self._service} is not an admission service.")
        try:
            self._check.check(
                token, get_dht_time(), peer_id=peer_id_of(peer_der), record_key=request.record_key.encode()
            )
        except TokenRefusedError as error:
            raise AdmissionRefusedError(
                f"The admission service at {self._service} issues tokens that do not admit to {self._repository}: "
                f"{error} Set your clock (sudo timedatectl set-ntp true); if it is correct, the service's key is not "
                "the one that the run announces, and its organiser must restart it: "
                f"dalle-collab run authorize {self._repository}"
            ) from error
        return token, float(lifetime)

    def _ask(self, body: dict[str, object]) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {self._hub_token}"}
        try:
            # Redirects are not followed: they could send the token elsewhere.
            response = httpx2.post(
                f"{self._service}/token", json=body, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS
            )
            values = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise AdmissionUnreachableError(
                f"The admission service of {self._repository} at {self._service} does not answer "
                f"({type(error).__name__}). Check the network; its organiser starts it with: "
                f"dalle-collab run authorize {self._repository}"
            ) from None
        values = values if isinstance(values, dict) else {}
        said = " ".join(str(values.get("message", "")).split())[:500] or f"it answers {response.status_code}"
        if response.status_code == 429 or response.status_code >= 500:
            raise AdmissionUnreachableError(f"The admission service of {self._repository} cannot admit: {said}")
        if response.status_code != 200:
            raise AdmissionRefusedError(f"{self._repository} does not admit you: {said}")
        return values


class SelfSignedTokens:
    """Tokens that a peer of an open run signs itself."""

    def __init__(self, run_id: str, peer_key: rsa.RSAPrivateKey) -> None:
        self._run_id, self._peer_key = run_id, peer_key

    def issue(self, old: str) -> tuple[str, float]:
        """See `TokenIssuer`."""
        now = get_dht_time()
        record_key = RSAPrivateKey.process_wide().get_public_key().to_bytes().decode()
        expires_at = now + SELF_SIGNED_SECONDS
        admission = own_admission(self._run_id, self._peer_key, record_key, now=now, expires_at=expires_at)
        return self_signed_token(admission, self._peer_key), SELF_SIGNED_SECONDS


@contextlib.contextmanager
def seek_admission(
    door: Door,
    identity_file: Path | None,
    hub_token: str | None,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
) -> Iterator[tuple[Path, PeerAdmission]]:
    """Yield the file of the identity that is admitted, and the admission; self-signed in an open run.

    `identity_file` is the peer's own choice; None: a new identity, deleted after the block. The admission is
    renewed in the background. Call it before hivemind forks.

    Raises:
        AdmissionRefusedError: the authority does not admit this user, there is no Hub token, or it may write.
        AdmissionUnreachableError: the service does not answer, or the Hub does not say what the token may do.
    """
    if not door.is_open:
        if not hub_token:
            raise AdmissionRefusedError(
                f"{door.repository} is not open to everybody: joining needs a Hub token with read access. "
                "Log in: hf auth login"
            )
        if not is_on_this_machine(door.service_address):
            check_shown_token(door, _who_am_i(hub_token))
    with (
        existing_identity_file(identity_file) as path,
        peer_admission(door, read_identity(path), hub_token or "", seconds_to_try=seconds_to_try) as admission,
    ):
        admission.has_new_identity = path != identity_file
        yield path, admission


def check_shown_token(door: Door, account: Mapping[str, Any]) -> None:
    """Raise AdmissionRefusedError for a token that a stranger's service could write to the Hub with.

    `account` is the Hub's answer to `whoami`. The service of one's own account or organisation may see any token: peers
    that publish checkpoints need one that may write.
    """
    token = account.get("auth", {}).get("accessToken") or {}
    fine = token.get("fineGrained") or {}
    permissions = [*fine.get("global", ()), *(name for part in fine.get("scoped", ()) for name in part["permissions"])]
    is_fine = token.get("role") == "fineGrained" and all(name.endswith(".read") for name in permissions)
    own = {account.get("name"), *(organisation.get("name") for organisation in account.get("orgs", ()))}
    if token.get("role") != "read" and not is_fine and door.repository.partition("/")[0] not in own:
        raise AdmissionRefusedError(
            f"Your Hub token may do more than read, and {door.service_address}, which admits to {door.repository}, "
            "would see it. Make a token of the type Read at https://huggingface.co/settings/tokens and log in with it: "
            "hf auth login"
        )


def _who_am_i(hub_token: str) -> Mapping[str, Any]:
    try:
        return HfApi().whoami(token=hub_token)
    except (OSError, httpx2.HTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise AdmissionRefusedError("The Hub does not know your token. Log in again: hf auth login") from None
        raise AdmissionUnreachableError(
            f"The Hub does not say what your token may do ({type(error).__name__}); it is shown to nobody. Try again."
        ) from None


def peer_admission(
    door: Door,
    peer_key: rsa.RSAPrivateKey,
    hub_token: str,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
) -> PeerAdmission:
    """Return the admission that a run asks for: its authority's, or a self-signed one where everybody may join."""
    check = TokenCheck(door.run_id, door.authority_key)
    issuer: TokenIssuer = (
        SelfSignedTokens(door.run_id, peer_key) if door.is_open else ServiceTokens(door, peer_key, hub_token, check)
    )
    return PeerAdmission(check, issuer, seconds_to_try=seconds_to_try)


def seconds_to_renewal(lifetime: float, num_failures: int) -> float:
    """Return how long to wait: well before half of the lifetime, then ever shorter, with jitter."""
    seconds = lifetime * SHARE_OF_LIFE_BEFORE_RENEWAL
    if num_failures:
        seconds = min(30.0, lifetime / 20)
    return seconds * random.uniform(0.8, 1.0)
