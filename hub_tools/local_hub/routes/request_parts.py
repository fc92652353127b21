"""What the routes need of a request: the storage, the caller, the repository's address, and its body as a stream."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, BinaryIO
from urllib.parse import unquote

import anyio.to_thread
from fastapi import Depends, Request
from pydantic import AfterValidator

from ...foreign.json_texts import parse_json
from ..protocol.hub_error import HTTPStatus, HubError, bad_request, invalid_token
from ..store.accounts import Caller, caller_with_token
from ..store.object_store import READ_BYTES
from ..store.repositories import Repository, readable_repository, writable_repository
from ..store.storage import HubStorage

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
MAX_JSON_BYTES = 64 << 20

# The application passes paths on still percent-encoded, so that a branch called "a/b" stays one segment.
Decoded = Annotated[str, AfterValidator(unquote)]


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """The settings of the running server."""

    signing_key: bytes
    """Signs upload addresses."""

    part_bytes: int
    """Contents larger than this are uploaded in parts of this size."""


def storage_of(request: Request) -> HubStorage:
    """Return the storage of the Hub that serves this request."""
    return request.app.state.storage


def settings_of(request: Request) -> HubSettings:
    """Return the settings of the Hub that serves this request."""
    return request.app.state.settings


Storage = Annotated[HubStorage, Depends(storage_of)]
Settings = Annotated[HubSettings, Depends(settings_of)]


def caller_of(request: Request, storage: Storage) -> Caller:
    """Return who makes the request. Raises the 401 for a token that this Hub does not know."""
    header = request.headers.get("authorization")
    if header is None:
        return Caller()
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise invalid_token()
    with storage.database.reading() as connection:
        return caller_with_token(connection, token.strip())


@dataclass(frozen=True, kw_only=True)
class OpenRepository:
    """The repository that a request is about, and who makes it; whether they may is found out when it is opened."""

    storage: HubStorage
    caller: Caller
    type: str
    full_name: str

    @contextlib.contextmanager
    def reading(self, action: str = "") -> Iterator[tuple[sqlite3.Connection, Repository]]:
        """Yield one consistent state and the repository, which the caller may read, or even do this with."""
        with self.storage.database.reading() as connection:
            yield connection, self._repository(connection, action, "write")

    @contextlib.contextmanager
    def writing(self, action: str, *, role: str = "write") -> Iterator[tuple[sqlite3.Connection, Repository]]:
        """Yield the connection that may write now and the repository, which the caller may change."""
        with self.storage.database.writing() as connection:
            yield connection, self._repository(connection, action, role)

    def _repository(self, connection: sqlite3.Connection, action: str, role: str) -> Repository:
        if not action:
            return readable_repository(connection, self.caller, self.type, self.full_name)
        return writable_repository(connection, self.caller, self.type, self.full_name, action=action, role=role)


def access_of(request: Request, storage: Storage) -> OpenRepository:
    """Return what a request is about, by its path: `/api/KIND/...`, or a page's, where a model has no prefix."""
    given, words = request.path_params, request.scope["path"].split("/")
    word = words[2] if words[1] == "api" else words[1]
    kind = given.get("kind") or (word if word in KINDS else "models")
    if kind not in KINDS:
        raise HubError(HTTPStatus.NOT_FOUND, f"There is no API for {kind}: use {', '.join(KINDS)}")
    name = f"{unquote(given['namespace'])}/{unquote(given['name'])}"
    if words[1] != "api":  # as git and its LFS ask
        name = name.removesuffix(".git")
    return OpenRepository(storage=storage, caller=caller_of(request, storage), type=KINDS[kind], full_name=name)


async def json_object(request: Request) -> dict:
    """Return the JSON object in the body, whatever its content type says; {} for an empty body."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_JSON_BYTES:
            raise HubError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is longer than {MAX_JSON_BYTES} bytes")
    try:
        value = parse_json(content) if content else {}
    except ValueError as error:
        raise bad_request("The body is not valid JSON") from error
    if not isinstance(value, dict):
        raise bad_request("The body is not a JSON object")
    return value


async def receive_body(request: Request, write: Callable[[bytes], object], *, max_bytes: int | None = None) -> int:
    """Give the body to `write` in pieces of about 1 MiB, off the event loop, and return its length in bytes."""
    pending, received = bytearray(), 0
    async for chunk in request.stream():
        received += len(chunk)
        if max_bytes is not None and received > max_bytes:
            raise HubError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is longer than the {max_bytes} bytes announced"
            )
        pending += chunk
        if len(pending) >= READ_BYTES:
            await anyio.to_thread.run_sync(write, bytes(pending))
            pending.clear()
    await anyio.to_thread.run_sync(write, bytes(pending))
    return received


def hashing_writer(file: BinaryIO, update: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a function that writes to `file` and gives the same bytes to `update`, a hashlib object's method."""

    def write(piece: bytes) -> None:
        update(piece)
        file.write(piece)

    return write


def endpoint_of(request: Request) -> str:
    """Return the address by which the client reached this Hub, without a trailing slash."""
    return str(request.base_url).rstrip("/")


def now() -> float:
    """Return the present Unix time in seconds."""
    return time.time()


CallerOf = Annotated[Caller, Depends(caller_of)]
AccessOf = Annotated[OpenRepository, Depends(access_of)]
JsonObject = Annotated[dict, Depends(json_object)]
