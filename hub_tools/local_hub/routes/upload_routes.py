"""Requests of git LFS uploads: ask for addresses, send contents whole or in parts, and have them verified."""

import hashlib
from http import HTTPStatus
from pathlib import Path

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..protocol.hub_error import HubError, bad_request, not_offered
from ..store.commits import SHA256_PATTERN
from ..store.lfs_files import UploadGrant, grant_of_query, is_available, new_grant, record_upload
from ..store.object_store import digest_of_file, disk_full_as_answer
from ..store.repositories import Repository
from ..store.storage import HubStorage
from .request_parts import (
    AccessOf,
    HubSettings,
    JsonObject,
    Settings,
    Storage,
    endpoint_of,
    hashing_writer,
    now,
    receive_body,
)

router = APIRouter()
NO_XET = "Xet storage. Switch it off in the client: set HF_HUB_DISABLE_XET=1"


@router.post("/{namespace}/{name}.git/info/lfs/objects/batch")
@router.post("/{kind}/{namespace}/{name}.git/info/lfs/objects/batch")
def batch(payload: JsonObject, request: Request, access: AccessOf, hub: Settings) -> JSONResponse:
    """Hand out upload addresses for contents of a repository."""
    if payload.get("operation") != "upload":
        raise not_offered("LFS downloads: fetch files from /resolve/")
    objects = [_announced(item) for item in payload.get("objects") or ()]
    objects_here = access.storage.objects
    with access.reading("upload to") as (connection, repository):
        present = [is_available(connection, objects_here, access.caller, repository, *each) for each in objects]
    described = [
        {"oid": sha256, "size": size} if here else _with_addresses(repository, sha256, size, endpoint_of(request), hub)
        for (sha256, size), here in zip(objects, present, strict=True)
    ]
    body = {"transfer": "basic", "objects": described, "hash_algo": "sha256"}
    return JSONResponse(body, media_type="application/vnd.git-lfs+json")


@router.put("/lfs/object")
async def receive_object(request: Request, storage: Storage, hub: Settings) -> Response:
    """Take a content in one piece; it is kept only if its digest and size are the announced ones."""
    grant = grant_of_query(request.query_params, hub.signing_key, now())
    digest = hashlib.sha256()
    with storage.objects.incoming_file() as (path, file):
        received = await receive_body(request, hashing_writer(file, digest.update), max_bytes=grant.size)
        _check_content(grant, received, digest.hexdigest())
        await anyio.to_thread.run_sync(storage.objects.adopt, path, file, grant.sha256)
    await anyio.to_thread.run_sync(_record, storage, grant)
    return Response(headers={"ETag": f'"{grant.sha256}"'})


@router.put("/lfs/part/{number}")
async def receive_part(number: int, request: Request, storage: Storage, hub: Settings) -> Response:
    """Take one part of a content; parts may arrive in any order and more than once."""
    grant = grant_of_query(request.query_params, hub.signing_key, now())
    if not 1 <= number <= grant.num_parts:
        raise bad_request(f"There is no part {number}: this upload has parts 1 to {grant.num_parts}")
    start = (number - 1) * grant.part_bytes
    expected = min(grant.part_bytes, grant.size - start)
    digest = hashlib.sha256()
    whole = _parts_path(storage, grant)
    whole.touch(mode=0o600)
    with disk_full_as_answer(), whole.open("r+b") as file:
        file.seek(start)
        received = await receive_body(request, hashing_writer(file, digest.update), max_bytes=expected)
    if received != expected:
        raise bad_request(f"Part {number} has {received} bytes, expected {expected}: send it again")
    return Response(headers={"ETag": f'"{digest.hexdigest()}"'})


@router.post("/lfs/complete")
def complete(request: Request, storage: Storage, hub: Settings) -> dict:
    """Join the parts of a content; it is kept only if its digest and size are the announced ones."""
    grant = grant_of_query(request.query_params, hub.signing_key, now())
    path = _parts_path(storage, grant)
    if not path.exists():
        raise bad_request("None of the parts has arrived: start the upload again")
    try:
        _check_content(grant, path.stat().st_size, digest_of_file(path))
        with disk_full_as_answer(), path.open("r+b") as file:
            storage.objects.adopt(path, file, grant.sha256)
    finally:
        path.unlink(missing_ok=True)
    _record(storage, grant)
    return {}


@router.post("/lfs/verify")
def verify(payload: JsonObject, request: Request, storage: Storage, hub: Settings) -> dict:
    """Say whether an uploaded content is here."""
    grant = grant_of_query(request.query_params, hub.signing_key, now())
    if payload.get("oid") != grant.sha256 or not storage.objects.has(grant.sha256, grant.size):
        raise HubError(HTTPStatus.NOT_FOUND, f"The content {grant.sha256} has not arrived: start the upload again")
    return {"message": "Object verified"}


@router.get("/api/{kind}/{namespace}/{name}/xet-{access}-token/{revision:path}")
def no_xet(kind: str, namespace: str, name: str, access: str, revision: str) -> None:
    """Tell clients that forgot to switch Xet off how to do it."""
    raise not_offered(NO_XET)


def _announced(item: object) -> tuple[str, int]:
    sha256, size = (item.get("oid"), item.get("size")) if isinstance(item, dict) else (None, None)
    if not isinstance(sha256, str) or not SHA256_PATTERN.fullmatch(sha256) or not isinstance(size, int) or size < 0:
        raise bad_request("Each LFS object needs a sha256 oid and a size in bytes")
    return sha256, size


def _with_addresses(repository: Repository, sha256: str, size: int, endpoint: str, hub: HubSettings) -> dict:
    grant = new_grant(repository, sha256, size, part_bytes=hub.part_bytes, now=now())
    query = grant.query(hub.signing_key)
    upload: dict = {"href": f"{endpoint}/lfs/object?{query}"}
    if grant.num_parts:
        parts = {str(number): f"{endpoint}/lfs/part/{number}?{query}" for number in range(1, grant.num_parts + 1)}
        upload = {"href": f"{endpoint}/lfs/complete?{query}", "header": {"chunk_size": str(grant.part_bytes), **parts}}
    actions = {"upload": upload, "verify": {"href": f"{endpoint}/lfs/verify?{query}"}}
    return {"oid": sha256, "size": size, "authenticated": True, "actions": actions}


def _check_content(grant: UploadGrant, size: int, sha256: str) -> None:
    if size != grant.size or sha256 != grant.sha256:
        raise bad_request(
            f"The content received has {size} bytes and sha256 {sha256}, "
            f"expected {grant.size} bytes and {grant.sha256}: send it again"
        )


def _record(storage: HubStorage, grant: UploadGrant) -> None:
    with storage.database.writing() as connection:
        record_upload(connection, grant.repository, grant.sha256, grant.size)


def _parts_path(storage: HubStorage, grant: UploadGrant) -> Path:
    return storage.objects.incoming / f"{grant.upload}.parts"
