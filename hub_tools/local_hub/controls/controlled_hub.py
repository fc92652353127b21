"""The embedded Hub's application with faults, limits and counts around it, and the requests by which tests set them."""

import asyncio
import hmac
import math
import time
from dataclasses import dataclass
from email.utils import format_datetime
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import unquote

import anyio.to_thread
from fastapi import APIRouter, Body, Depends, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..buckets.xet_routes import user_of_token
from ..protocol.hub_error import HubError, bad_request, forbidden
from ..routes.request_parts import HubSettings, Storage, caller_of
from ..store.storage import HubStorage
from .hub_controls import CONTROL_PATH, MAX_SECONDS, HubFault, RateLimits
from .request_meter import RequestMeter, kind_of

MAX_FAULTS = 100
MAX_FULL_BUCKETS = 10_000

router = APIRouter(prefix=CONTROL_PATH)


@dataclass
class _Active:
    """A fault that has not ended."""

    fault: HubFault
    end: float
    left: float


class ControlledHub:
    """Counts each request, and answers it, fails it or passes it on as the present faults and limits have it."""

    def __init__(
        self,
        application: ASGIApp,
        storage: HubStorage,
        settings: HubSettings,
        *,
        control_token: str = "",
        rate_limits: RateLimits | None = None,
    ) -> None:
        """Without a `control_token` there are no faults."""
        self.application = application
        self.storage = storage
        self.settings = settings
        self.control_token = control_token
        self.meter = RequestMeter(rate_limits)
        self.faults: list[_Active] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        path = unquote(scope["raw_path"].decode("ascii", "replace"))
        if path.startswith(f"{CONTROL_PATH}/"):
            await self.application(scope, receive, self._with_headers(send, {}))
            return
        user = await anyio.to_thread.run_sync(self._user_of, scope, path)
        delay, fault = self._strike(path, scope["method"], user)
        if fault is not None and fault.kind == "away":
            await _close(receive)
            return
        standing = self.meter.count(user, (scope.get("client") or ("", 0))[0], kind_of(path))
        send = self._with_headers(send, standing.headers)
        await asyncio.sleep(delay)
        if fault is not None and fault.kind == "refuse":
            await _refusal(fault)(scope, receive, send)
        elif standing.is_over:
            message = f"Too many requests: wait {standing.headers['Retry-After']} seconds"
            await _answer(HubError(HTTPStatus.TOO_MANY_REQUESTS, message), {})(scope, receive, send)
        elif fault is not None:
            length = int(dict(scope["headers"]).get(b"content-length", b"2"))
            heard = _half(receive, length) if fault.kind == "break_body" else receive
            await self.application(scope, heard, _say_nothing)
            await _close(receive)
        else:
            await self.application(scope, receive, send)

    def add(self, fault: HubFault) -> None:
        """Have a fault from now on. Raises a 400 where there are too many."""
        if len(self.faults) >= MAX_FAULTS:
            raise bad_request(f"There are {MAX_FAULTS} faults already: clear them")
        end = float("inf") if fault.lasts_seconds is None else time.monotonic() + fault.lasts_seconds
        self.faults.append(_Active(fault, end, float("inf") if fault.num_requests is None else fault.num_requests))

    def _strike(self, path: str, method: str, user: str) -> tuple[float, HubFault | None]:
        """Return how late to answer a request, and which other fault strikes it."""
        delay, struck = 0.0, None
        self.faults = [it for it in self.faults if it.left > 0 and it.end > time.monotonic()]
        for active in self.faults:
            fault = active.fault
            if (fault.user is not None and fault.user.lower() != user.lower()) or not fnmatchcase(path, fault.path):
                continue
            if fault.kind == "break_body" and method not in ("PUT", "POST"):
                continue
            if fault.kind == "late":
                delay += fault.seconds
            elif struck is None:
                struck = fault
            else:
                continue
            active.left -= 1
        return delay, struck

    def _user_of(self, scope: Scope, path: str) -> str:
        """Return who makes a request, "" where no token says so."""
        request = Request(scope)
        if path.startswith("/xet/"):
            return user_of_token(request, self.settings)
        try:
            return caller_of(request, self.storage).user or ""
        except HubError:
            return ""

    def _with_headers(self, send: Send, headers: dict[str, str]) -> Send:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {"Date": format_datetime(self.storage.now(), usegmt=True), **headers}
                added = [(name.lower().encode(), value.encode()) for name, value in own.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return with_headers


def controlled_of(request: Request) -> ControlledHub:
    """Return what is controlled. Raises the 403 for another token than the one for that."""
    controlled: ControlledHub = request.app.state.controlled
    given = request.headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {controlled.control_token}".encode()):
        raise forbidden("This Hub is controlled only with its control token: LocalHub(root, controlled=True).controls")
    return controlled


Controlled = Annotated[ControlledHub, Depends(controlled_of)]


@router.post("/faults")
async def add_fault(controlled: Controlled, fault: HubFault) -> dict:
    """Have a fault from now on."""
    controlled.add(fault)
    return {}


@router.delete("/faults")
async def clear_faults(controlled: Controlled, storage: Storage) -> dict:
    """End all faults."""
    controlled.faults.clear()
    storage.full_buckets.clear()
    storage.clock_offset_seconds = 0.0
    return {}


@router.put("/clock")
async def set_clock(
    controlled: Controlled,
    storage: Storage,
    offset_seconds: Annotated[float, Body(embed=True, ge=-MAX_SECONDS, le=MAX_SECONDS)],
) -> dict:
    """Set the clock ahead."""
    storage.clock_offset_seconds = offset_seconds
    return {}


@router.put("/full-buckets")
async def fill_bucket(
    controlled: Controlled,
    storage: Storage,
    name: Annotated[str, Body(embed=True, max_length=200)],
    is_full: Annotated[bool, Body(embed=True)] = True,
) -> dict:
    """Refuse files added to a bucket, or no longer."""
    if not is_full:
        storage.full_buckets.discard(name.lower())
        return {}
    if len(storage.full_buckets) >= MAX_FULL_BUCKETS:
        raise bad_request(f"There are {MAX_FULL_BUCKETS} full buckets already: clear them")
    storage.full_buckets.add(name.lower())
    return {}


@router.get("/requests")
async def request_counts(controlled: Controlled) -> dict:
    """Return the counts of requests."""
    return controlled.meter.by_user()


@router.delete("/requests")
async def reset_request_counts(controlled: Controlled) -> dict:
    """Return the counts of requests and begin anew."""
    counted = controlled.meter.by_user()
    controlled.meter.counts.clear()
    return counted


def _refusal(fault: HubFault) -> JSONResponse:
    wait = math.ceil(fault.seconds)
    headers = {"Retry-After": str(wait)} if wait else {}
    error = HubError(HTTPStatus(fault.status), f"The Hub was told to answer {fault.status}")
    return _answer(error, headers)


def _answer(error: HubError, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers={**error.headers(), **headers})


def _half(receive: Receive, length: int) -> Receive:
    """Return what hears half of a body of `length` bytes, and then that the client has gone."""
    left = length // 2

    async def half() -> Message:
        nonlocal left
        body = (await receive()).get("body", b"")[:left] if left > 0 else b""
        left -= len(body)
        return {"type": "http.request", "body": body, "more_body": True} if body else {"type": "http.disconnect"}

    return half


async def _say_nothing(message: Message) -> None:
    """Take an answer that nobody gets."""


async def _close(receive: Receive) -> None:
    """Close a request's connection without an answer, and wait until it is closed."""
    # ASGI has no word for this: the server's object whose method `receive` is has the connection.
    server_side: Any = receive
    server_side.__self__.transport.abort()
    while (await receive())["type"] != "http.disconnect":
        pass
