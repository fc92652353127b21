"""A peer's tokens from its run's admission service, which is shown a proof of the account and never its token."""

import contextlib
import json
from collections.abc import Iterator

import httpx2

from hub_tools.checks import is_number
from hub_tools.hub_client import request_json
from hub_tools.printing.printable import one_line
from hub_tools.publishing.account_proof import HUB_ERRORS, PROOF_REPOSITORY, HubAccount, NoRightsError
from pipelines.core.admission.client import AdmissionRefusedError, AdmissionUnreachableError
from pipelines.core.admission.identity import record_key_of_process
from pipelines.core.admission.settings import AdmissionConfig, is_on_this_machine
from pipelines.core.admission.tokens import TokenCheck, TokenRefusedError
from pipelines.core.signing.rsa_keys import RsaKey, peer_id_of
from pipelines.core.signing.signed_statement import signed_text
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.admission_service.requests import AdmissionRequest, proof_name, request_of

REQUEST_TIMEOUT_SECONDS = 30.0


class ServiceTokens:
    """Issues the tokens of the run's admission service; see `TokenIssuer`."""

    def __init__(
        self, admission_config: AdmissionConfig, peer_key: RsaKey, account: HubAccount | None, check: TokenCheck
    ) -> None:
        """`account` is the user's on the Hub.

        Raises:
            AdmissionRefusedError: there is none.
        """
        self._service, self._repository = admission_config.service_address, admission_config.repository
        if account is None:
            raise AdmissionRefusedError(
                f"{self._repository} is not open to everybody: joining needs a Hub token that may write to your "
                f"repository {PROOF_REPOSITORY}. Log in: hf auth login"
            )
        self._check, self._peer_key, self._account = check, peer_key, account
        self._record_key = record_key_of_process()

    def issue(self, old: str) -> tuple[str, float]:
        """See `TokenIssuer`; the token is checked."""
        answer = self._admitted(self._request(old))
        token, lifetime = answer.get("token"), answer.get("lifetime_seconds")
        if not isinstance(token, str) or not is_number(lifetime) or not 0 < lifetime < 1e8:
            raise AdmissionUnreachableError(f"What answers at {self._service} is not an admission service.")
        try:
            self._check.check(
                token,
                SWARM_TIME(),
                peer_id=peer_id_of(self._peer_key.public),
                record_key=self._record_key.public.encode(),
            )
        except TokenRefusedError as error:
            raise AdmissionRefusedError(
                f"The admission service at {self._service} issues tokens that do not admit to {self._repository}: "
                f"{error} Set your clock (sudo timedatectl set-ntp true); if it is correct, the service's key is not "
                "the one that the run announces, and its organiser must restart it: "
                f"dalle-collab run authorize {self._repository}"
            ) from error
        return token, float(lifetime)

    def _request(self, old: str) -> AdmissionRequest:
        with self._hub_errors():
            username = self._account.username
        now = SWARM_TIME()
        return request_of(self._check.run_id, self._peer_key, self._record_key, time=now, username=username, token=old)

    def _admitted(self, request: AdmissionRequest) -> dict[str, object]:
        """Return what the service answers that admits the peer, having placed the proof on the Hub if it is missing."""
        status, answer = self._ask(request)
        if (status, answer.get("reason")) == (401, "no_proof"):
            with self._hub_errors():
                self._account.place(proof_name(request, self._check.authority_key))
            status, answer = self._ask(request)
        said = one_line(answer.get("message", ""), 500) or f"it answers {status}"
        if answer.get("reason") == "no_proof":
            said += f" If so, its key is not the run's: dalle-collab run authorize {self._repository}"
        if status == 429 or status >= 500 or answer.get("reason") == "no_proof":
            raise AdmissionUnreachableError(f"The admission service of {self._repository} cannot admit: {said}")
        if status != 200:
            raise AdmissionRefusedError(f"{self._repository} does not admit you: {said}")
        return answer

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

    def _ask(self, request: AdmissionRequest) -> tuple[int, dict[str, object]]:
        try:
            status, values = request_json(
                "POST",
                f"{self._service}/token",
                body=json.loads(signed_text(request, self._record_key)),
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
