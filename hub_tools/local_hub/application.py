"""The web application of the embedded Hub: all routes over one storage."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from .buckets import bucket_routes, xet_routes
from .controls import controlled_hub
from .controls.hub_controls import RateLimits
from .jobs import job_routes
from .protocol.hub_error import HubError, disk_full
from .routes import (
    account_routes,
    content_routes,
    history_routes,
    lfs_file_routes,
    page_routes,
    pull_request_routes,
    repository_routes,
    space_routes,
    upload_routes,
)
from .routes.page_routes import problem_page
from .routes.request_parts import HubSettings
from .store.object_store import DISK_FULL_ERRORS
from .store.storage import HubStorage

logger = logging.getLogger(__name__)
HEADERS_FOR_PAGES = ("X-Repo-Commit", "X-Error-Code", "X-Error-Message", "ETag")


def build_application(
    storage: HubStorage, settings: HubSettings, *, control_token: str = "", rate_limits: RateLimits | None = None
) -> ASGIApp:
    """Return the ASGI application that serves this storage.

    Who has the `control_token`, if there is one, may have it fail. With either of the two it dates its answers itself.
    """
    application = FastAPI(title="Embedded Hub", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    application.state.storage = storage
    application.state.settings = settings
    application.add_exception_handler(HubError, _answer_refusal)
    application.add_exception_handler(RequestValidationError, _answer_invalid_request)
    application.add_exception_handler(HTTPException, _answer_http_error)
    application.add_exception_handler(ClientDisconnect, _answer_nobody)
    application.add_exception_handler(OSError, _answer_os_error)
    # Earlier routes win: fixed words come before repository names.
    for routes in (
        *([controlled_hub] if control_token else []),
        account_routes,
        xet_routes,
        bucket_routes,
        job_routes,
        upload_routes,
        repository_routes,
        history_routes,
        pull_request_routes,
        lfs_file_routes,
        space_routes,
        content_routes,
        page_routes,
    ):
        application.include_router(routes.router)
    hub = EncodedPaths(application)
    if not (control_token or rate_limits):
        return hub
    controlled = controlled_hub.ControlledHub(
        hub, storage, settings, control_token=control_token, rate_limits=rate_limits
    )
    application.state.controlled = controlled
    return controlled


class EncodedPaths:
    """Routes on the path as it was sent: a decoded '%2F' would look like a separator.

    Pages of other origins may read files, as on huggingface.co, and nothing else of this Hub.
    """

    def __init__(self, application: FastAPI) -> None:
        self.application = application
        self.files = CORSMiddleware(
            application, allow_origins=["*"], allow_methods=["GET", "HEAD"], expose_headers=HEADERS_FOR_PAGES
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        is_file = "/resolve/" in scope.get("path", "")
        await (self.files if is_file else self.application)(scope, receive, send)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HubError)
    return _refusal(request, error.body(), error.status, error.headers())


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return JSONResponse({"error": f"Invalid request: {problems}"}, status_code=HTTPStatus.BAD_REQUEST)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"The embedded Hub has no {request.method} {request.url.path}"
    known = error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
    return _refusal(request, {"error": message if known else error.detail}, error.status_code)


def _refusal(
    request: Request, body: Mapping[str, object], status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer a client with JSON, a person's browser with a page."""
    if "text/html" in request.headers.get("accept", ""):
        return problem_page(str(body["error"]), status, headers or {})
    return JSONResponse(body, status_code=status, headers=headers)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    logger.info("The client disconnected during %s %s", request.method, request.url.path)
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _answer_os_error(request: Request, error: Exception) -> Response:
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return await _answer_refusal(request, disk_full(error.strerror))
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "The Hub failed; see its log"}, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)
