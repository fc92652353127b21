"""OpenAI's HTTP interface on this machine, for what a run draws or writes.

Any page in a browser here can send requests to localhost, and one that resolves its own name to 127.0.0.1 can read the
answers: so every request needs the key, a Host that is this machine's, and no Origin of somebody else.
"""

import base64
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hub_tools.foreign.json_texts import parse_json
from pipelines.features.admission_service.service import RateLimit
from pipelines.features.serving.draw.http.picture_requests import PictureRequest
from pipelines.features.serving.draw.http.refused import RefusedRequestError, bad
from pipelines.features.serving.draw.http.text_answers import AnswerForm, WrittenTexts
from pipelines.features.serving.draw.http.text_requests import TextRequest

LOOPBACK = "127.0.0.1"
ANYBODY = "this machine"
MOST_BODY_BYTES = 2**16
REQUESTS_PER_MINUTE = 120


def build_application(
    name: str,
    key: str,
    *,
    pictures: Callable[[PictureRequest], list[bytes]] | None = None,
    texts: Callable[[TextRequest], Iterator[WrittenTexts]] | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """Return the HTTP interface of a run that draws pictures or writes texts; `texts` yields steps to the last one.

    `GET /v1/models`, and `POST /v1/images/generations`, or `/v1/completions` and `/v1/chat/completions`.
    """
    application = FastAPI(title=name, docs_url=None, redoc_url=None, openapi_url=None)
    limit = RateLimit(REQUESTS_PER_MINUTE)

    def check(request: Request) -> None:
        _check_is_local(request)
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), key.encode()):
            raise RefusedRequestError(
                401, "authentication_error", "Show the key that `dalle-collab serve --http` prints, as bearer token."
            )
        if wait := limit.seconds_to_wait(ANYBODY, clock()):
            raise RefusedRequestError(429, "rate_limit_error", f"Too many requests. Try again in {wait:.0f} s.")

    @application.exception_handler(RefusedRequestError)
    async def refuse(_request: Request, error: RefusedRequestError) -> JSONResponse:
        content = dict(error=dict(message=str(error), type=error.kind, param=None, code=None))
        return JSONResponse(content, error.status)

    @application.get("/v1/models")
    async def models(request: Request) -> dict[str, object]:
        check(request)
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": name.partition("/")[0]}]}

    @application.post("/v1/images/generations")
    async def generations(request: Request) -> dict[str, object]:
        check(request)
        if pictures is None:
            raise _not_here(name, "writes texts", "/v1/completions")
        asked = PictureRequest.from_mapping(await _json_of(request))
        drawn = await run_in_threadpool(pictures, asked)
        return dict(created=int(clock()), data=[dict(b64_json=base64.b64encode(png).decode()) for png in drawn])

    async def write(request: Request, *, is_chat: bool) -> Response:
        check(request)
        if texts is None:
            raise _not_here(name, "draws pictures", "/v1/images/generations")
        asked = TextRequest.from_mapping(await _json_of(request), is_chat=is_chat)
        steps, form = (
            texts(asked),
            AnswerForm(model=name, number=secrets.token_hex(12), created=int(clock()), is_chat=is_chat),
        )
        await run_in_threadpool(next, steps)  # a refusal is an answer of its own, not a piece of one
        if asked.is_streamed:
            return StreamingResponse(form.pieces(steps), media_type="text/event-stream")
        return JSONResponse(form.whole(await run_in_threadpool(_last, steps)))

    @application.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await write(request, is_chat=False)

    @application.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await write(request, is_chat=True)

    return application


def key_in(path: Path) -> str:
    """Return the key in a file that only its owner can read; it is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if key := path.read_text(encoding="utf-8").strip():
            return key
        raise ValueError(f"The key file {path} is empty. Delete it; a new key is then made.") from None
    key = secrets.token_urlsafe(24)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(key + "\n")
    return key


def _check_is_local(request: Request) -> None:
    """Refuse what a page in a browser can send: it names itself in Origin, or its own host in Host."""
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name not in (LOOPBACK, "localhost", "[::1]"):
        raise RefusedRequestError(403, "permission_error", "This server answers to localhost alone.")
    if request.headers.get("origin") is not None or request.headers.get("sec-fetch-site", "none") != "none":
        raise RefusedRequestError(403, "permission_error", "Requests from pages in a browser are not answered.")


async def _json_of(request: Request) -> Mapping[str, object]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise bad("The body must be application/json.")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BODY_BYTES:
            raise RefusedRequestError(413, "invalid_request_error", f"The body has more than {MOST_BODY_BYTES} bytes.")
    try:
        values = parse_json(content)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise bad("The body is not a JSON object.")
    return values


def _last(steps: Iterator[WrittenTexts]) -> WrittenTexts:
    *_, last = steps
    return last


def _not_here(name: str, what_it_does: str, path: str) -> RefusedRequestError:
    return RefusedRequestError(404, "invalid_request_error", f"{name} {what_it_does}: POST {path}")
