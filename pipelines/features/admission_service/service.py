"""The admission service: asks the Hub who a user is and signs admissions; its decisions and its HTTP interface."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.checks import check_counts, check_positive
from hub_tools.counted import counted
from hub_tools.publishing.account_proof import HUB_ERRORS, PROOF_REPOSITORY, is_placed
from pipelines.core.admission.settings import network_of
from pipelines.core.admission.tokens import USERNAME_PATTERN, Admission, TokenCheck, TokenRefusedError, token_of
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import StatementRefusedError, read_statement
from pipelines.features.admission_service.lists import ListsOnHub, objection_to
from pipelines.features.admission_service.requests import PROOF_SECONDS, AdmissionRequest, proof_name

logger = logging.getLogger(__name__)

MAX_CLOCK_DIFFERENCE_SECONDS = 60.0
MAX_CLIENTS_REMEMBERED = 10_000
MAX_TOKENS_REMEMBERED = 10_000
MAX_SECONDS_TO_SEND = 20.0
MIN_NONCE_CHARACTERS = 32
NUM_THREADS = 20
"""For newcomers, and as many for peers that the Hub has named before: these can renew, however slowly it answers."""

UPDATE = "Update: pip install -U dalle-collab"


class NotAdmitted(Exception):
    """The answer to a refused peer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """How the authority decides."""

    lifetime_seconds: float = 600.0
    """Lifetime of a token. A ban takes effect within this time; peers renew before half of it has passed."""

    grace_seconds: float = 3600.0
    """How long admitted peers may stay while the Hub does not answer."""

    requests_per_minute: int = 60
    """Requests allowed per client address, and per peer that has been confirmed: whoever shares an address with
    a flood can still renew. Increase if many newcomers share one address."""

    peers_per_user: int = 8
    """Peers of one user that may be admitted at a time; a peer that left counts until its token expires. Votes and
    reports are counted by peer: one account must not have many."""

    def __post_init__(self) -> None:
        check_positive(self, "lifetime_seconds")
        check_counts(self, "requests_per_minute", "peers_per_user")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds is {self.grace_seconds}; expected 0 or more.")


@dataclass(kw_only=True)
class AdmissionService:
    """Decides on requests for admission to one run. Thread-safe."""

    repository: str
    """The run's repository, `ORG/RUN`."""

    run_id: str
    key: PublisherKey = field(repr=False)
    api: HfApi = field(repr=False)
    lists: ListsOnHub
    options: ServiceOptions = ServiceOptions()

    def __post_init__(self) -> None:
        self._lists_lock = threading.Lock()
        self._live_peers = LivePeers(self.options.peers_per_user)
        self._confirmed = Confirmed(2 * self.options.peers_per_user)  # a peer's proof is renewed
        self._check = TokenCheck(self.run_id, self.key.public)

    def admit(self, request: AdmissionRequest, now: float) -> str:
        """Return a token for the requesting peer.

        Raises:
            NotAdmitted: the peer gets none; the message says why and what to do.
        """
        self._check_form(request, now)
        try:
            username, organisations = self._proven_user(request, now)
            self._check_lists(username, organisations)
            confirmed_at = now
        except HUB_ERRORS as error:
            username, confirmed_at = self._vouched_user(request, now, error)
        expires_at = now + self.options.lifetime_seconds
        if wait := self._live_peers.admit(username, request.peer_id, now, expires_at):
            raise NotAdmitted(
                403, "too_many_peers", f"{username} has {counted(self.options.peers_per_user, 'peer')} in this run, "
                f"the most that its organiser allows. Stop one of them, and try again in {wait:.0f} s.",
            )  # fmt: skip
        if confirmed_at == now:
            self._confirmed.note(self.shown(request), username)
        admission = Admission(
            username=username,
            run_id=self.run_id,
            peer_id=request.peer_id,
            record_key=request.key,
            expires_at=expires_at,
            confirmed_at=confirmed_at,
            key=self.key.public,
        )
        return token_of(admission, self.key)

    def shown(self, request: AdmissionRequest) -> str:
        """Return a digest of what a peer shows of its user, which nobody else can show."""
        return proof_name(request, self.key.public)

    def has_confirmed(self, shown: str) -> bool:
        """Tell whether the Hub has lately named the user of what is `shown`, who may join."""
        return shown in self._confirmed

    def _check_form(self, request: AdmissionRequest, now: float) -> None:
        if request.run_id != self.run_id:
            raise NotAdmitted(
                404, "other_run", f"This service admits to the run {self.run_id!r}, not {request.run_id!r}."
            )
        if abs(request.time - now) > MAX_CLOCK_DIFFERENCE_SECONDS:
            raise NotAdmitted(
                400, "clock", f"Your clock is {request.time - now:+.0f} s off. Set it: sudo timedatectl set-ntp true"
            )

    def _proven_user(self, request: AdmissionRequest, now: float) -> tuple[str, list[str]]:
        """Look on the Hub for the proof of the user; return the user's name and organisations."""
        username, place = request.username, f"{request.username}/{PROOF_REPOSITORY}"
        if not re.fullmatch(USERNAME_PATTERN, username) or len(request.nonce) < MIN_NONCE_CHARACTERS:
            raise NotAdmitted(400, "bad_request", f"The request names no user. {UPDATE}")
        lasts = request.proof_expires_at - now
        if not 0 < lasts <= 2 * PROOF_SECONDS or not is_placed(self.api, username, self.shown(request)):
            raise NotAdmitted(401, "no_proof", f"The Hub shows no proof in {self.api.endpoint}/{place}. Is it public?")
        try:
            user = self.api.get_user_overview(username)
        except HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
            user = None
        if user is None or user.username != username:  # what an organisation or an old name has proves no user
            raise NotAdmitted(401, "no_user", f"The Hub at {self.api.endpoint} has no user {username}.")
        return username, [item.name for item in user.orgs]

    def _has_member(self, organisation: str, username: str) -> bool:
        """Look among the members that the organiser's token can see: a user's page may leave out organisations."""
        try:
            return any(member.username == username for member in self.api.list_organization_members(organisation))
        except HfHubHTTPError as error:
            if error.response.status_code not in (401, 403, 404):  # the run is a user's, or its members are hidden
                raise
            return False

    def _check_lists(self, username: str, organisations: list[str]) -> None:
        """Check whether a user of the Hub may join."""
        with self._lists_lock:
            # Read for every request, so that a ban takes effect with the next one.
            lists = self.lists.read()
        organisation = self.repository.partition("/")[0]
        reason = objection_to(username, organisations, organisation=organisation, lists=lists)
        if reason == "banned":
            raise NotAdmitted(
                403, reason, f"{username} is banned from {self.repository}. If that is a mistake, ask its moderators: "
                f"{self.api.endpoint}/{self.repository}/discussions",
            )  # fmt: skip
        if reason is not None and not self._has_member(organisation, username):
            raise NotAdmitted(
                403, reason, f"{username} is not a member of {organisation}. Ask to join: "
                f"{self.api.endpoint}/{organisation}, or ask its moderators to allow you in admission.json",
            )  # fmt: skip

    def _vouched_user(self, request: AdmissionRequest, now: float, error: Exception) -> tuple[str, float]:
        """Return the user of a still valid token, when the Hub cannot identify the user."""
        logger.warning("The Hub does not answer (%s).", type(error).__name__)
        away = f"The Hub at {self.api.endpoint} does not answer"
        try:
            held = self._check.check(request.token, now, peer_id=bytes.fromhex(request.peer_id))
        except TokenRefusedError:
            raise NotAdmitted(503, "hub_away", f"{away}, so nobody can be admitted now. Try again later.") from None
        if now - held.confirmed_at > self.options.grace_seconds:
            raise NotAdmitted(503, "hub_away", f"{away} for longer than peers may stay without it. Try again later.")
        return held.username, held.confirmed_at


class LivePeers:
    """The live admissions of each user: one account may bring so many peers and no more. Thread-safe; it begins empty
    when the service starts."""

    def __init__(self, most_per_user: int) -> None:
        self._most = most_per_user
        self._expirations = dict[str, dict[str, float]]()
        self._lock = threading.Lock()

    @property
    def num_users(self) -> int:
        """Users that are remembered."""
        return len(self._expirations)

    def admit(self, username: str, peer_id: str, now: float, expires_at: float) -> float:
        """Write a peer down until its admission expires and return 0.0, or return the seconds until there is room."""
        with self._lock:
            self._expirations = {
                user: live
                for user, peers in self._expirations.items()
                if (live := {peer: expiry for peer, expiry in peers.items() if expiry > now})
            }
            live = self._expirations.setdefault(username, {})
            if peer_id not in live and len(live) >= self._most:
                return min(live.values()) - now
            live[peer_id] = expires_at
            return 0.0


class Confirmed:
    """What peers have shown of their users that the Hub has confirmed, the newest of each user. Thread-safe."""

    def __init__(self, most_per_user: int) -> None:
        self._most, self._users, self._lock = most_per_user, dict[str, str](), threading.Lock()

    def __contains__(self, shown: str) -> bool:
        return shown in self._users

    def note(self, shown: str, username: str) -> None:
        """Remember what was shown of a user, and forget what is too old."""
        with self._lock:
            known = {other: name for other, name in self._users.items() if other != shown} | {shown: username}
            own = [other for other, name in known.items() if name == username]
            for old in [*own[: -self._most], *list(known)[:-MAX_TOKENS_REMEMBERED]]:
                known.pop(old, None)
            self._users = known


class RateLimit:
    """Counts requests of each client in one-minute windows."""

    def __init__(self, requests_per_minute: int) -> None:
        self._limit = requests_per_minute
        self._window, self._counts = -1, dict[str, int]()
        self._lock = threading.Lock()

    def seconds_to_wait(self, client: str, now: float) -> float:
        """Count a request; return 0.0, or the seconds after which the client may ask again."""
        with self._lock:
            if int(now // 60) != self._window:
                self._window, self._counts = int(now // 60), {}
            if client not in self._counts and len(self._counts) >= MAX_CLIENTS_REMEMBERED:
                client = ""  # in a flood, all addresses share one count
            self._counts[client] = self._counts.get(client, 0) + 1
            return 0.0 if self._counts[client] <= self._limit else 60.0 - now % 60


def build_application(service: AdmissionService, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """Return the service's HTTP interface: `POST /token`, and `GET /`."""
    application = FastAPI(title="Admission service", docs_url=None, redoc_url=None, openapi_url=None)
    strangers, members = (RateLimit(service.options.requests_per_minute) for _ in range(2))
    for_strangers, for_members = (ThreadPoolExecutor(NUM_THREADS) for _ in range(2))

    @application.get("/")
    def describe() -> dict[str, object]:
        return dict(
            service="dalle-collab authorization",
            repository=service.repository,
            run_id=service.run_id,
            authorization_key=service.key.public,
            lifetime_seconds=service.options.lifetime_seconds,
            lists_problem=service.lists.problem,
            time=clock(),
        )

    @application.post("/token")
    async def token(request: Request) -> JSONResponse:
        now = clock()
        try:
            # Junk costs nobody anything: only what would be asked of the Hub counts.
            asked = await _request_in(request)
            if service.has_confirmed(shown := service.shown(asked)):
                wait, whose, threads = members.seconds_to_wait(shown, now), "of your peer", for_members
            else:
                address = network_of(request.client.host) if request.client else ""
                wait, whose, threads = strangers.seconds_to_wait(address, now), "from your address", for_strangers
            if wait:
                raise NotAdmitted(429, "too_many", f"Too many requests {whose}. Try again in {wait:.0f} s.")
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(threads, service.admit, asked, now)
        except NotAdmitted as refusal:
            logger.info("Refused: %s.", refusal.reason)
            return JSONResponse(dict(reason=refusal.reason, message=str(refusal)), refusal.status)
        return JSONResponse(dict(token=text, lifetime_seconds=service.options.lifetime_seconds))

    return application


async def _request_in(request: Request) -> AdmissionRequest:
    content = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS_TO_SEND):
            async for chunk in request.stream():
                content += chunk
                if len(content) > AdmissionRequest.MOST_BYTES:
                    raise NotAdmitted(
                        413, "bad_request", f"The request is longer than {AdmissionRequest.MOST_BYTES} bytes."
                    )
    except TimeoutError:
        raise NotAdmitted(408, "bad_request", f"The request took longer than {MAX_SECONDS_TO_SEND:.0f} s.") from None
    try:
        return read_statement(AdmissionRequest, bytes(content))
    except StatementRefusedError as error:
        raise NotAdmitted(400, "bad_request", f"The request is invalid: {error}. {UPDATE}") from None
