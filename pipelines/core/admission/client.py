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
from dataclasses import replace
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from huggingface_hub import HfApi

from hub_tools.checks import is_number
from hub_tools.hub_client import request_json
from hub_tools.printing.printable import one_line
from hub_tools.publishing.account_proof import HUB_ERRORS, PROOF_REPOSITORY, HubAccount, NoRightsError
from pipelines.core.admission.identity import existing_identity_file, read_identity
from pipelines.core.admission.settings import AdmissionConfig, is_on_this_machine
from pipelines.core.admission.tokens import (
    MAX_TOKEN_CHARACTERS,
    AdmissionRequest,
    TokenCheck,
    TokenRefusedError,
    der_of,
    own_admission,
    peer_id_of,
    proof_expiry,
    proof_name,
    proof_nonce,
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
    """Tokens of the run's admission service, which is shown a proof of the account and never its token.

    A service of an old version asks for the Hub token itself. Only the host `token_host`, which the user has named, is
    sent it: encrypted, and if nothing can be changed with it.
    """

    def __init__(
        self,
        admission_config: AdmissionConfig,
        peer_key: rsa.RSAPrivateKey,
        account: HubAccount,
        check: TokenCheck,
        token_host: str | None,
    ) -> None:
        self._check, self._peer_key, self._account, self._token_host = check, peer_key, account, token_host
        self._service, self._repository = admission_config.service_address, admission_config.repository

    def issue(self, old: str) -> tuple[str, float]:
        """See `TokenIssuer`; the token is checked."""
        peer_der, request = der_of(self._peer_key), self._signed_request(old)
        answer = self._admitted(request)
        token, lifetime = answer.get("token"), answer.get("lifetime_seconds")
        if not isinstance(token, str) or not is_number(lifetime) or not 0 < lifetime < 1e8:
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

    def _signed_request(self, old: str) -> AdmissionRequest:
        record_key, run_id, expires_at = RSAPrivateKey.process_wide(), self._check.run_id, proof_expiry(get_dht_time())
        with self._hub_errors():
            username = self._account.username
        request = AdmissionRequest(
            run_id=run_id,
            peer_key=base64.b64encode(der_of(self._peer_key)).decode(),
            record_key=record_key.get_public_key().to_bytes().decode(),
            time=get_dht_time(),
            token=old,
            username=username,
            nonce=proof_nonce(self._peer_key, run_id, expires_at),
            proof_expires_at=expires_at,
        )
        signing_key = serialization.load_der_private_key(record_key.to_bytes(), password=None)
        assert isinstance(signing_key, rsa.RSAPrivateKey), "hivemind signs records with RSA"
        return sign_request(request, self._peer_key, signing_key)

    def _admitted(self, request: AdmissionRequest) -> dict[str, object]:
        """Return what the service answers that admits the peer, having placed the proof on the Hub if it is missing."""
        status, answer = self._ask(request)
        if (status, answer.get("reason")) == (401, "no_proof"):
            with self._hub_errors():
                self._account.place(proof_name(request, self._check.authority_key))
            status, answer = self._ask(request)
        if (status, answer.get("reason")) == (401, "no_token"):
            status, answer = self._ask_with_token(request)
        said = one_line(answer.get("message", ""), 500) or f"it answers {status}"
        if answer.get("reason") == "no_proof":
            said += f" If so, its key is not the run's: dalle-collab run authorize {self._repository}"
        if status == 429 or status >= 500 or answer.get("reason") == "no_proof":
            raise AdmissionUnreachableError(f"The admission service of {self._repository} cannot admit: {said}")
        if status != 200:
            raise AdmissionRefusedError(f"{self._repository} does not admit you: {said}")
        return answer

    def _ask_with_token(self, request: AdmissionRequest) -> tuple[int, dict[str, object]]:
        host, is_local = urlsplit(self._service).hostname, is_on_this_machine(self._service)
        asks = f"the admission service of {self._repository} asks for your Hub token itself, as old versions do"
        if self._token_host is None or self._token_host.lower() != host:
            raise AdmissionRefusedError(
                f"Not joined: {asks}, and is not shown it. Ask the organiser to update the service; or, if you trust "
                f"{host} with a token that may only read, add: --send-token-to {host}"
            )
        if not is_local and not self._service.startswith("https://"):
            raise AdmissionRefusedError(f"Not joined: {asks}, but {self._service} is not encrypted (https://).")
        with self._hub_errors():
            may_only_read = self._account.may_only_read
        if not may_only_read:
            raise AdmissionRefusedError(
                f"Not joined: {asks}, and yours may write. Log in with one that may only read: hf auth login"
            )
        old = replace(request, username="", nonce="", proof_expires_at=0.0)
        return self._ask(old, {"Authorization": f"Bearer {self._account.api.token}"})

    @contextlib.contextmanager
    def _hub_errors(self) -> Iterator[None]:
        try:
            yield
        except NoRightsError as error:
            raise AdmissionRefusedError(f"{self._repository} is not open to everybody: {error}") from None
        except HUB_ERRORS as error:
            raise AdmissionUnreachableError(
                f"The Hub cannot confirm who you are ({type(error).__name__}). Check the network, and try again."
            ) from None

    def _ask(
        self, request: AdmissionRequest, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, object]]:
        body = {name: value for name, value in vars(request).items() if value}
        try:
            status, values = request_json(
                "POST",
                f"{self._service}/token",
                body=body,
                headers=headers,
                seconds=REQUEST_TIMEOUT_SECONDS,
                trust_env=not is_on_this_machine(self._service),
            )
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise AdmissionUnreachableError(
                f"The admission service of {self._repository} at {self._service} does not answer "
                f"({type(error).__name__}). Check the network; its organiser starts it with: "
                f"dalle-collab run authorize {self._repository}"
            ) from None
        return status, values if isinstance(values, dict) else {}


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
    admission_config: AdmissionConfig,
    identity_file: Path | None,
    hub_token: str | None,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
    token_host: str | None = None,
) -> Iterator[tuple[Path, PeerAdmission]]:
    """Yield the file of the identity that is admitted, and the admission; self-signed in an open run.

    `identity_file` is the peer's own choice; None: a new identity, deleted after the block. The admission is
    renewed in the background. Call it before hivemind forks. `token_host`: see `ServiceTokens`.

    Raises:
        AdmissionRefusedError: the authority does not admit this user, or there is no Hub token.
        AdmissionUnreachableError: the service does not answer.
    """
    if not admission_config.is_open and not hub_token:
        raise AdmissionRefusedError(
            f"{admission_config.repository} is not open to everybody: joining needs a Hub token that may write to your "
            f"repository {PROOF_REPOSITORY}. Log in: hf auth login"
        )
    account = HubAccount(HfApi(token=hub_token)) if hub_token else None
    with (
        existing_identity_file(identity_file) as path,
        peer_admission(
            admission_config, read_identity(path), account, seconds_to_try=seconds_to_try, token_host=token_host
        ) as admission,
    ):
        admission.has_new_identity = path != identity_file
        yield path, admission


def peer_admission(
    admission_config: AdmissionConfig,
    peer_key: rsa.RSAPrivateKey,
    account: HubAccount | None,
    *,
    seconds_to_try: float = SECONDS_TO_TRY_AT_START,
    token_host: str | None = None,
) -> PeerAdmission:
    """Return the admission that a run asks for: its authority's, or a self-signed one where everybody may join."""
    check = TokenCheck(admission_config.run_id, admission_config.authority_key)
    issuer: TokenIssuer
    if admission_config.is_open:
        issuer = SelfSignedTokens(admission_config.run_id, peer_key)
    else:
        assert account is not None, "a run that is not open is joined with an account"
        issuer = ServiceTokens(admission_config, peer_key, account, check, token_host)
    return PeerAdmission(check, issuer, seconds_to_try=seconds_to_try)


def seconds_to_renewal(lifetime: float, num_failures: int) -> float:
    """Return how long to wait: well before half of the lifetime, then ever shorter, with jitter."""
    seconds = lifetime * SHARE_OF_LIFE_BEFORE_RENEWAL
    if num_failures:
        seconds = min(30.0, lifetime / 20)
    return seconds * random.uniform(0.8, 1.0)
