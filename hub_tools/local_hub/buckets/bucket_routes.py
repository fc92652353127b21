"""Requests about buckets: create, describe, list, change and delete them."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from ...foreign.json_texts import collection_paused
from ..protocol.hub_error import HubError, bad_request, entry_not_found, forbidden, login_needed
from ..routes.request_parts import CallerOf, Decoded, JsonObject, Storage, endpoint_of, receive_body
from ..store.accounts import namespace_kind
from ..store.database import timestamp
from ..store.object_store import ObjectStore
from ..store.repositories import wants_private
from ..store.storage import HubStorage
from .bucket_store import (
    Bucket,
    apply_operations,
    buckets_of,
    create_bucket,
    delete_bucket,
    file_at,
    files_below,
    readable_bucket,
    writable_bucket,
)
from .xet_contents import file_in_bucket, spans_of
from .xet_formats import unpacked

router = APIRouter()
API = "/api/buckets/{namespace}/{name}"
ITEMS_PER_PAGE = 1000
MAX_BATCH_BYTES = 16 << 20
MAX_OPERATIONS = 10_000


def bucket_name(namespace: Decoded, name: Decoded) -> str:
    """Return the full name in a path."""
    return f"{namespace}/{name}"


Name = Annotated[str, Depends(bucket_name)]


@router.get("/api/buckets/{namespace}")
def list_buckets(
    namespace: Decoded,
    request: Request,
    caller: CallerOf,
    storage: Storage,
    search: str = "",
    cursor: str = "",
    limit: int = ITEMS_PER_PAGE,
) -> JSONResponse:
    """List a namespace's buckets that the caller may read, a page at a time; `me` is the caller's own namespace."""
    if namespace == "me":
        if caller.user is None:
            raise login_needed("list your buckets")
        namespace = caller.user
    limit = min(max(1, limit), ITEMS_PER_PAGE)
    with storage.database.reading() as connection:
        if namespace_kind(connection, namespace) is None:
            raise HubError(HTTPStatus.NOT_FOUND, f"There is no user or organization {namespace!r} on this Hub")
        rows = buckets_of(connection, caller, namespace, search=search, after=cursor, limit=limit + 1)
    page = [_describe_bucket(row, row["size"], row["num_files"]) for row in rows[:limit]]
    if len(rows) <= limit:
        return JSONResponse(page)
    url = request.url.include_query_params(cursor=rows[limit - 1]["name"])
    return JSONResponse(page, headers={"Link": f'<{url}>; rel="next"'})


@router.post(API)
def create(name: Name, payload: JsonObject, request: Request, caller: CallerOf, storage: Storage) -> JSONResponse:
    """Create a bucket; the namespace `me` is the caller's own."""
    full_name = f"{caller.user}/{name.removeprefix('me/')}" if name.startswith("me/") else name
    url = f"{endpoint_of(request)}/buckets/{full_name}"
    try:
        with storage.database.writing() as connection:
            create_bucket(connection, caller, full_name, private=bool(wants_private(payload)))
    except HubError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return JSONResponse({**error.body(), "url": url}, status_code=error.status, headers=error.headers())
    return JSONResponse({"url": url})


@router.get(API)
def info(name: Name, caller: CallerOf, storage: Storage) -> dict:
    """Describe a bucket."""
    with storage.database.reading() as connection:
        bucket = readable_bucket(connection, caller, name)
        files = files_below(connection, bucket)
    return _describe_bucket(asdict(bucket), sum(row["size"] for row in files), len(files))


@router.delete(API)
def delete(name: Name, caller: CallerOf, storage: Storage) -> Response:
    """Delete a bucket with its files."""
    with storage.database.writing() as connection:
        delete_bucket(connection, writable_bucket(connection, caller, name, action="delete", role="admin"))
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get(API + "/tree")
@router.get(API + "/tree/{path:path}")
def tree(
    name: Name,
    request: Request,
    caller: CallerOf,
    storage: Storage,
    path: Decoded = "",
    recursive: bool = False,
    cursor: str = "",
) -> JSONResponse:
    """List a folder, a page at a time."""
    with storage.database.reading() as connection:
        bucket = readable_bucket(connection, caller, name)
        prefix = path.strip("/")
        rows = files_below(connection, bucket, prefix)
    items = [_describe(row) for row in rows]
    if not recursive:
        items = sorted(_one_level(rows, prefix), key=lambda item: item["path"])
    following = [item for item in items if item["path"] > cursor]
    page = following[:ITEMS_PER_PAGE]
    if len(following) <= ITEMS_PER_PAGE:
        return JSONResponse(page)
    url = request.url.include_query_params(cursor=page[-1]["path"])
    return JSONResponse(page, headers={"Link": f'<{url}>; rel="next"'})


@router.post(API + "/paths-info")
def paths(name: Name, payload: JsonObject, caller: CallerOf, storage: Storage) -> list[dict]:
    """Describe the files at the given paths, leaving out what is not there."""
    wanted = payload.get("paths")
    if not isinstance(wanted, list) or len(wanted) > MAX_OPERATIONS:
        raise bad_request(f"paths-info needs a list of up to {MAX_OPERATIONS} paths")
    with storage.database.reading() as connection:
        bucket = readable_bucket(connection, caller, name)
        found = [file_at(connection, bucket, str(path)) for path in wanted]
    return [_describe(row) for row in found if row is not None]


async def batch_of(request: Request) -> list[dict[str, object]]:
    """Return the operations in the body, one JSON object in a line."""
    content = bytearray()
    await receive_body(request, content.extend, max_bytes=MAX_BATCH_BYTES)
    try:
        with collection_paused():
            operations = [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise bad_request("A line of the batch is not valid JSON") from error
    if not all(isinstance(operation, dict) for operation in operations) or len(operations) > MAX_OPERATIONS:
        raise bad_request(f"A batch is up to {MAX_OPERATIONS} JSON objects, one in a line")
    return operations


@router.post(API + "/batch")
def batch(
    name: Name, operations: Annotated[list[dict], Depends(batch_of)], caller: CallerOf, storage: Storage
) -> JSONResponse:
    """Change files, all as asked or none."""
    try:
        with storage.database.writing() as connection:
            bucket = writable_bucket(connection, caller, name, action="change")
            _check_space(storage, bucket, operations)
            if failed := apply_operations(connection, bucket, operations, storage.now()):
                raise _Refused(failed)
    except _Refused as refused:
        body = {"error": "Nothing was changed", "failed": refused.failed}
        return JSONResponse(body, status_code=HTTPStatus.UNPROCESSABLE_ENTITY)
    return JSONResponse({"success": True, "failed": []})


@router.api_route("/buckets/{namespace}/{name}/resolve/{path:path}", methods=["GET", "HEAD"])
def resolve(name: Name, path: Decoded, request: Request, caller: CallerOf, storage: Storage) -> Response:
    """Say which content a file has, which the client fetches through Xet; or send it, as to web pages."""
    with storage.database.reading() as connection:
        bucket = readable_bucket(connection, caller, name)
        row = file_at(connection, bucket, path)
        if row is None:
            raise entry_not_found(path)
        is_sent = request.method == "GET" and row["size"]
        spans = spans_of(connection, file_in_bucket(connection, bucket.id, row["hash"])) if is_sent else []
    route = f"{endpoint_of(request)}/api/buckets/{quote(bucket.full_name)}/xet-read-token"
    uploaded = datetime.fromisoformat(row["uploaded_at"])
    headers = {"ETag": f'"{row["hash"]}"', "Last-Modified": format_datetime(uploaded, usegmt=True)}
    known = [it.strip().removeprefix("W/") for it in request.headers.get("if-none-match", "").split(",")]
    if headers["ETag"] in known or "*" in known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    headers |= {"X-Xet-Hash": row["hash"], "X-Xet-Refresh-Route": route, "X-Linked-Size": str(row["size"])}
    if request.method == "HEAD":
        return Response(headers=headers)
    headers |= {"Content-Length": str(row["size"]), "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(_contents(storage.objects, spans), headers=headers, media_type="application/octet-stream")


def _contents(objects: ObjectStore, spans: list[tuple[str, int, int]]) -> Iterator[bytes]:
    """Yield the chunks in parts of xorbs, given by digest, first byte and last one."""
    for sha256, first, last in spans:
        with objects.path_of(sha256).open("rb") as xorb:
            xorb.seek(first)
            for _, content in unpacked(xorb.read(last - first + 1)):
                yield content


def _check_space(storage: HubStorage, bucket: Bucket, operations: list[dict[str, object]]) -> None:
    adds = any(operation.get("type") == "addFile" for operation in operations)
    if adds and bucket.full_name.lower() in storage.full_buckets:
        raise forbidden(f"Storage limit reached for bucket {bucket.full_name}: delete files, or ask for more storage")


class _Refused(Exception):
    """Takes back the transaction of a batch."""

    def __init__(self, failed: list[dict[str, str]]) -> None:
        super().__init__()
        self.failed = failed


def _one_level(rows: list[sqlite3.Row], prefix: str) -> Iterator[dict]:
    start, before = len(prefix) + 1 if prefix else 0, None
    for row in rows:
        folder, separator, _ = row["path"][start:].partition("/")
        if not separator:
            yield _describe(row)
        elif folder != before:
            before = folder
            yield {"type": "directory", "path": row["path"][:start] + folder, "uploadedAt": row["uploaded_at"]}


def _describe_bucket(bucket: Mapping[str, object] | sqlite3.Row, size: int, num_files: int) -> dict:
    return {
        "id": f"{bucket['namespace']}/{bucket['name']}",
        "private": bool(bucket["private"]),
        "createdAt": bucket["created_at"],
        "size": size,
        "totalFiles": num_files,
    }


def _describe(row: sqlite3.Row) -> dict:
    return {
        "type": "file",
        "path": row["path"],
        "size": row["size"],
        "xetHash": row["hash"],
        "mtime": timestamp(datetime.fromtimestamp(row["mtime"] / 1000, UTC)),
        "uploadedAt": row["uploaded_at"],
    }
