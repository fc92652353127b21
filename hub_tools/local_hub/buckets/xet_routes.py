"""Requests of the Xet client: tokens for a bucket's contents, uploads of xorbs and shards, where a file's bytes are.

The addresses lie below the `casUrl` that a token comes with. Reads and writes need a token of their own, bound to one
bucket; xorbs are fetched from signed addresses.
"""

import hashlib
import hmac
import re
from http import HTTPStatus
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse

from ..protocol.hub_error import HubError, bad_request, entry_not_found, forbidden, invalid_token
from ..routes.request_parts import CallerOf, HubSettings, Settings, Storage, endpoint_of, now, receive_body
from ..store.storage import HubStorage
from .bucket_routes import API, Name
from .bucket_store import readable_bucket, writable_bucket
from .xet_contents import bytes_of, file_in_bucket, has_xorb, joined, record_files, record_xorb, terms_of, xorb_sha256
from .xet_formats import MAX_SHARD_BYTES, MAX_XORB_BYTES, Term, read_shard, read_xorb, xorb_hash

router = APIRouter()
TOKEN_SECONDS = 3600
HASH_PATTERN = re.compile("[0-9a-f]{64}")
RANGE_PATTERN = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")


@router.get(API + "/xet-{access}-token")
def token(name: Name, access: str, request: Request, caller: CallerOf, storage: Storage, hub: Settings) -> JSONResponse:
    """Give a caller who may read or write a bucket a token for its contents."""
    with storage.database.reading() as connection:
        if access == "write":
            bucket = writable_bucket(connection, caller, name, action="upload to")
        elif access == "read":
            bucket = readable_bucket(connection, caller, name)
        else:
            raise bad_request(f"There are tokens for read and write, not for {access!r}")
    expires = int(now()) + TOKEN_SECONDS
    text = f"{caller.user or ''}.{bucket.id}.{access}.{expires}"
    body = {
        "casUrl": f"{endpoint_of(request)}/xet",
        "exp": expires,
        "accessToken": f"{text}.{_signature(hub.signing_key, text)}",
    }
    return JSONResponse(body)


def bucket_of_token(request: Request, hub: Settings) -> tuple[int, str]:
    """Return the bucket and the access that the request's token is for; raises the 401 for a forged or expired one."""
    _, bucket, access, expires = _signed_text(request, hub).rsplit(".", 3)
    if now() > int(expires):
        raise HubError(HTTPStatus.UNAUTHORIZED, "This token has expired: ask for a new one")
    return int(bucket), access


def user_of_token(request: Request, hub: HubSettings) -> str:
    """Return whose token for contents the request carries, "" where it has none of this Hub's."""
    try:
        return _signed_text(request, hub).rsplit(".", 3)[0]
    except HubError:
        return ""


Access = Annotated[tuple[int, str], Depends(bucket_of_token)]


def written_bucket(access: Access) -> int:
    """Return the bucket that the request's token may write."""
    if access[1] != "write":
        raise forbidden("This token may only read: a write token is needed to upload")
    return access[0]


Writing = Annotated[int, Depends(written_bucket)]


@router.post("/xet/v1/xorbs/default/{name}")
async def upload_xorb(name: str, request: Request, bucket: Writing, storage: Storage) -> dict:
    """Take a xorb; it is kept only if its chunks have the announced hash."""
    body = bytearray()
    await receive_body(request, body.extend, max_bytes=MAX_XORB_BYTES)
    return {"was_inserted": await anyio.to_thread.run_sync(_keep_xorb, storage, name, bytes(body))}


@router.post("/xet/v1/shards")
async def upload_shard(request: Request, bucket: Writing, storage: Storage) -> dict:
    """Take the recipes of files, whose chunks must be here and must make up those files."""
    body = bytearray()
    await receive_body(request, body.extend, max_bytes=MAX_SHARD_BYTES)
    await anyio.to_thread.run_sync(_keep_recipes, storage, bucket, bytes(body))
    return {"result": 1}


@router.get("/xet/v1/reconstructions/{name}")
def reconstruction(name: str, request: Request, access: Access, storage: Storage, hub: Settings) -> JSONResponse:
    """Say from which xorbs to fetch a file, or the range of it that is asked for."""
    with storage.database.reading() as connection:
        file = file_in_bucket(connection, access[0], name)
        start, end = _asked_range(request, file.size)
        skipped, found = terms_of(connection, file, start, end)
        to_fetch = [(term, bytes_of(connection, term)) for term in joined(term for term, _ in found)]
    fetch: dict[str, list[dict]] = {}
    for term, span in to_fetch:
        fetch.setdefault(term.xorb, []).append(_fetching(term, span, endpoint_of(request), hub.signing_key))
    terms = [{"hash": term.xorb, "unpacked_length": length, "range": _indices(term)} for term, length in found]
    return JSONResponse({"offset_into_first_range": skipped, "terms": terms, "fetch_info": fetch})


@router.get("/xet/xorb/{name}")
def xorb(name: str, expires: int, signature: str, storage: Storage, hub: Settings) -> FileResponse:
    """Send a xorb's body, whole or in part, to who has a signed address of it."""
    genuine = hmac.compare_digest(_signature(hub.signing_key, f"xorb.{name}.{expires}").encode(), signature.encode())
    if not genuine or now() > expires:
        raise forbidden("This address is not signed by this Hub, or has expired: ask for a new one")
    with storage.database.reading() as connection:
        sha256 = xorb_sha256(connection, name)
    if sha256 is None:
        raise entry_not_found(name)
    return FileResponse(storage.objects.path_of(sha256), media_type="application/octet-stream")


@router.api_route("/xet/{rest:path}", methods=["GET", "HEAD", "POST"])
def not_here(rest: str) -> None:
    """Let the client go on without what it asks for first: newer forms of the above, and what others have uploaded."""
    raise entry_not_found(rest)


def _keep_xorb(storage: HubStorage, name: str, body: bytes) -> bool:
    chunks = read_xorb(body)
    if not HASH_PATTERN.fullmatch(name) or xorb_hash(chunks) != name:
        raise bad_request(f"The xorb received has hash {xorb_hash(chunks)}, expected {name}: send it again")
    with storage.database.reading() as connection:
        if has_xorb(connection, name):
            return False
    stored = storage.objects.add_bytes(body[: chunks[-1].end])
    with storage.database.writing() as connection:
        record_xorb(connection, name, stored.sha256, stored.size, chunks)
    return True


def _keep_recipes(storage: HubStorage, bucket: int, body: bytes) -> None:
    recipes = read_shard(body)
    with storage.database.writing() as connection:
        record_files(connection, bucket, recipes)


def _asked_range(request: Request, size: int) -> tuple[int, int]:
    header = request.headers.get("range")
    if header is None:
        return 0, size
    asked = RANGE_PATTERN.fullmatch(header)
    if asked is None:
        raise bad_request(f"Invalid range {header!r}: use bytes=FIRST-LAST")
    start, end = int(asked[1]), min(int(asked[2]) + 1, size)
    if start >= end:
        raise HubError(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"The file has {size} bytes, not {header}")
    return start, end


def _fetching(term: Term, span: tuple[int, int], endpoint: str, key: bytes) -> dict:
    expires = int(now()) + TOKEN_SECONDS
    signature = _signature(key, f"xorb.{term.xorb}.{expires}")
    return {
        "range": _indices(term),
        "url": f"{endpoint}/xet/xorb/{term.xorb}?expires={expires}&signature={signature}",
        "url_range": {"start": span[0], "end": span[1]},
    }


def _indices(term: Term) -> dict[str, int]:
    return {"start": term.first, "end": term.end}


def _signed_text(request: Request, hub: HubSettings) -> str:
    text, _, signature = request.headers.get("authorization", "").removeprefix("Bearer ").rpartition(".")
    if not hmac.compare_digest(_signature(hub.signing_key, text).encode(), signature.encode()):
        raise invalid_token()
    return text


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, f"xet {text}".encode(), hashlib.sha256).hexdigest()
