"""The same drawings on this machine over HTTP, for programs that speak OpenAI's images interface and nothing else.

Any page in a browser here can send requests to localhost, and one that resolves its own name to 127.0.0.1 can read the
answers: so every request needs the key, a Host that is this machine's, and no Origin of somebody else.
"""

import base64
import hmac
import io
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from torch import Tensor

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.admission.service import RateLimit
from pipelines.image_codes.thumbnails import to_picture
from pipelines.serving.draw.checkpoints import ServedCheckpoints
from pipelines.serving.draw.engine import DrawEngine, Job
from pipelines.serving.draw.requests import DrawRequest, Wish

LOOPBACK = "127.0.0.1"
ASKER = "this machine"
MOST_BODY_BYTES = 2**16
MOST_PROMPT_CHARACTERS = 4000
MOST_PICTURES = 16
MOST_AT_ONCE = 4
REQUESTS_PER_MINUTE = 120
SECONDS_TO_DRAW = 3600.0


class RefusedRequestError(ValueError):
    """A request that is not answered, with the status and OpenAI's kind of error."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


@dataclass(frozen=True, kw_only=True)
class PictureRequest:
    """What a program asks for."""

    prompt: str
    number: int
    seed: int
    options: SamplingOptions

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PictureRequest":
        """Check the body of a request; raises `RefusedRequestError`."""
        known = {"prompt", "n", "seed", "temperature", "top_k", "top_p", "guidance_scale"}
        ignored = {"model", "size", "quality", "style", "user", "background", "output_format", "response_format"}
        if unknown := sorted(set(values) - known - ignored):
            raise _bad(f"Unknown: {', '.join(unknown)[:100]}. Known: {', '.join(sorted(known))}.")
        if values.get("response_format", "b64_json") != "b64_json":
            raise _bad("response_format must be b64_json: pictures are not kept here, so they have no URL.")
        prompt, number, seed = values.get("prompt"), values.get("n", 1), values.get("seed", 0)
        if not isinstance(prompt, str) or not prompt.strip() or len(prompt) > MOST_PROMPT_CHARACTERS:
            raise _bad(f"prompt must be a text of 1 to {MOST_PROMPT_CHARACTERS} characters.")
        if type(number) is not int or not 1 <= number <= MOST_PICTURES:
            raise _bad(f"n must be a whole number from 1 to {MOST_PICTURES}.")
        if type(seed) is not int or not -(2**63) <= seed < 2**63:
            raise _bad("seed must be a whole number of 64 bits.")
        sampling = {name: values[name] for name in known & set(values) - {"prompt", "n", "seed"}}
        if any(type(value) not in (int, float) or abs(value) > 2**31 for value in sampling.values()):
            raise _bad(f"{', '.join(sorted(sampling))} must be numbers.")
        try:
            options = SamplingOptions.from_mapping(sampling)
        except (ValueError, TypeError) as error:
            raise _bad(str(error)) from error
        return cls(prompt=prompt, number=number, seed=seed, options=options)


class LocalDrawing:
    """Draws with what is served to others, as one asker among them."""

    def __init__(self, checkpoints: ServedCheckpoints, engine: DrawEngine) -> None:
        self._checkpoints, self._engine = checkpoints, engine
        self._places, self._decoding = threading.BoundedSemaphore(MOST_AT_ONCE), threading.Lock()

    def pictures(self, asked: PictureRequest) -> list[bytes]:
        """Return pictures as PNG files; raises `RefusedRequestError` if too many are being drawn."""
        if not self._places.acquire(blocking=False):
            raise RefusedRequestError(429, "rate_limit_error", f"{MOST_AT_ONCE} requests are being drawn; try later.")
        try:
            with self._checkpoints.in_use() as used:
                return self._draw(asked, used)
        finally:
            self._places.release()

    def _draw(self, asked: PictureRequest, used: set[str]) -> list[bytes]:
        checkpoint = self._checkpoints.current
        used.add(checkpoint.revision)
        parts, news = checkpoint.parts, queue.Queue[Tensor | Exception | None]()
        wish = Wish(
            revision=checkpoint.revision,
            precision=self._checkpoints.precision,
            tokenizer=checkpoint.tokenizer,
            input_ids=torch.as_tensor(parts.processor(text=[asked.prompt])["input_ids"]),
            seed=asked.seed,
            options=asked.options,
            every=parts.model.config.image_grid_size,
        )
        job = Job(
            asker=ASKER,
            model=parts.model,
            request=DrawRequest(wish=wish, candidates=range(asked.number)),
            tell=news.put,
        )
        self._engine.submit(job)
        codes = []
        try:
            while (what := news.get(timeout=SECONDS_TO_DRAW)) is not None:
                if isinstance(what, Exception):
                    raise RefusedRequestError(500, "server_error", f"The model cannot draw: {what}")
                codes.append(what)
        except queue.Empty:
            raise RefusedRequestError(503, "server_error", "The drawing took too long.") from None
        finally:
            self._engine.cancel(job)
        with self._decoding, torch.no_grad():
            images = parts.codec.decode(torch.cat(codes, dim=1).long().to(parts.model.device))
        return [_png(image) for image in images]


def build_application(
    name: str, key: str, pictures: Callable[[PictureRequest], list[bytes]], *, clock: Callable[[], float] = time.time
) -> FastAPI:
    """Return the HTTP interface of a run's drawings: `POST /v1/images/generations` and `GET /v1/models`."""
    application = FastAPI(title=name, docs_url=None, redoc_url=None, openapi_url=None)
    limit = RateLimit(REQUESTS_PER_MINUTE)

    def check(request: Request) -> None:
        _check_is_local(request)
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), key.encode()):
            raise RefusedRequestError(
                401, "authentication_error", "Show the key that `dalle-collab serve --http` prints, as bearer token."
            )
        if wait := limit.seconds_to_wait(ASKER, clock()):
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
        asked = PictureRequest.from_mapping(await _json_of(request))
        drawn = await run_in_threadpool(pictures, asked)
        return dict(created=int(clock()), data=[dict(b64_json=base64.b64encode(png).decode()) for png in drawn])

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


async def _json_of(request: Request) -> Mapping[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise _bad("The body must be application/json.")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BODY_BYTES:
            raise RefusedRequestError(413, "invalid_request_error", f"The body has more than {MOST_BODY_BYTES} bytes.")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _bad("The body is not a JSON object.")
    return values


def _bad(text: str) -> RefusedRequestError:
    return RefusedRequestError(400, "invalid_request_error", text)


def _png(image: Tensor) -> bytes:
    file = io.BytesIO()
    to_picture(image).save(file, format="PNG")
    return file.getvalue()
