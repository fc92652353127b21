"""Requests about files: listings, downloads with ranges, and which way a file is to be uploaded."""

import base64
import fnmatch
import mimetypes
import sqlite3
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from ..protocol.client_paths import check_path_in_repository
from ..protocol.hub_error import bad_request, entry_not_found
from ..store.history import resolve_revision
from ..store.lfs_files import is_deleted
from ..store.storage import HubStorage
from ..store.trees import find_entry, list_tree, paths_info, with_last_commits
from .cards import CardError, front_matter
from .request_parts import AccessOf, Decoded, JsonObject

router = APIRouter()
API = "/api/{kind}/{namespace}/{name}"
ITEMS_PER_PAGE = 1000
LARGE_BYTES = 1 << 20
LFS_SUFFIXES = frozenset(
    {".safetensors", ".parquet", ".arrow", ".bin", ".ckpt", ".h5", ".npy", ".npz", ".onnx", ".png", ".jpg", ".jpeg"}
    | {".webp", ".gif", ".pt", ".pth", ".tar", ".gz", ".zip", ".zst", ".whl", ".mp4", ".wav", ".msgpack"}
)
# A browser may show pictures; nothing that a browser would run is ever sent as such.
SHOWN_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})


@router.get(API + "/tree/{revision}")
@router.get(API + "/tree/{revision}/{path:path}")
def tree(
    access: AccessOf,
    revision: Decoded,
    request: Request,
    path: Decoded = "",
    recursive: bool = False,
    expand: bool = False,
    cursor: str = "",
    limit: int = ITEMS_PER_PAGE,
) -> JSONResponse:
    """List a folder, a page at a time; EntryNotFound for a folder that is not there."""
    limit = min(max(1, limit), ITEMS_PER_PAGE)
    with access.reading() as (connection, repository):
        commit = resolve_revision(connection, repository, revision)
        items = list_tree(connection, commit, path.strip("/"), recursive=recursive)
        following = [item for item in items if item["path"] > cursor]
        page = with_last_commits(connection, following[:limit], expand=expand)
    if len(following) <= limit:
        return JSONResponse(page)
    url = request.url.include_query_params(cursor=page[-1]["path"])
    return JSONResponse(page, headers={"Link": f'<{url}>; rel="next"'})


async def paths_form(request: Request) -> dict:
    """Return the form in the body: `paths`, which may be repeated, and `expand`."""
    async with request.form(max_fields=10_000) as form:
        return {"paths": [str(path) for path in form.getlist("paths")], "expand": str(form.get("expand", ""))}


@router.post(API + "/paths-info/{revision}")
def paths(form: Annotated[dict, Depends(paths_form)], access: AccessOf, revision: Decoded) -> JSONResponse:
    """Describe the files and folders at the given paths, leaving out what is not there."""
    with access.reading() as (connection, repository):
        commit = resolve_revision(connection, repository, revision)
        found = paths_info(connection, commit, form["paths"])
        return JSONResponse(with_last_commits(connection, found, expand=form["expand"].lower() == "true"))


@router.post(API + "/preupload/{revision}")
def preupload(payload: JsonObject, access: AccessOf, revision: Decoded, create_pr: bool = False) -> dict:
    """Say for each file whether it goes inside the commit or through LFS, and what the repository has there now."""
    files = payload.get("files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise bad_request("preupload needs a list of files")
    with access.reading("" if create_pr else "upload to") as (connection, repository):
        commit = resolve_revision(connection, repository, revision)
        ignore = payload.get("gitIgnore") or _stored_gitignore(connection, access.storage, commit)
        return {"files": [_upload_mode(connection, commit, file, ignore) for file in files]}


@router.post("/api/validate-yaml")
def validate_yaml(payload: JsonObject) -> JSONResponse:
    """Check the YAML block of a README."""
    try:
        front_matter(str(payload.get("content") or ""))
    except CardError as error:
        body = {"errors": [{"message": str(error)}], "warnings": [], "error": str(error)}
        return JSONResponse(body, status_code=HTTPStatus.BAD_REQUEST)
    return JSONResponse({"errors": [], "warnings": []})


# The lowest is tried first: a dataset may be named `resolve`, which its address must not be taken for.
@router.api_route("/{namespace}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
@router.api_route("/{namespace}/{name}/raw/{revision}/{path:path}", methods=["GET", "HEAD"])
@router.api_route("/datasets/{namespace}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
@router.api_route("/datasets/{namespace}/{name}/raw/{revision}/{path:path}", methods=["GET", "HEAD"])
@router.api_route("/spaces/{namespace}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
@router.api_route("/spaces/{namespace}/{name}/raw/{revision}/{path:path}", methods=["GET", "HEAD"])
def file(access: AccessOf, revision: Decoded, path: Decoded) -> Response:
    """Send a file, whole or in part."""
    with access.reading() as (connection, repository):
        commit = resolve_revision(connection, repository, revision)
        entry = find_entry(connection, commit, path)
        if entry is not None and is_deleted(connection, repository.id, entry["sha256"]):
            entry = None
    headers = {"X-Repo-Commit": commit["oid"]}
    if entry is None:
        refusal = entry_not_found(path)
        return JSONResponse(refusal.body(), status_code=refusal.status, headers={**refusal.headers(), **headers})
    headers |= {
        "ETag": f'"{entry["sha256"] if entry["is_lfs"] else entry["oid"]}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f"inline; filename*=utf-8''{quote(PurePosixPath(path).name)}",
    }
    content = access.storage.objects.path_of(entry["sha256"])
    return FileResponse(content, headers=headers, media_type=_media_type(path, is_lfs=bool(entry["is_lfs"])))


def _media_type(path: str, *, is_lfs: bool) -> str:
    guessed = mimetypes.guess_type(path)[0]
    if guessed in SHOWN_TYPES:
        return str(guessed)
    return "application/octet-stream" if is_lfs else "text/plain; charset=utf-8"


def _upload_mode(connection: sqlite3.Connection, commit: sqlite3.Row, file: dict, ignore: str) -> dict:
    path = check_path_in_repository(file.get("path"))
    entry = find_entry(connection, commit, path)
    mode = "lfs" if _goes_through_lfs(path, file) else "regular"
    described = {"path": path, "uploadMode": mode, "shouldIgnore": _is_ignored(path, ignore)}
    if entry is not None:
        described["oid"] = entry["sha256"] if mode == "lfs" else entry["oid"]
    return described


def _goes_through_lfs(path: str, file: dict) -> bool:
    size = file.get("size")
    if not isinstance(size, int) or size < 0:
        raise bad_request(f"The size of {path} is missing")
    try:
        sample = base64.b64decode(str(file.get("sample") or ""))
    except ValueError as error:
        raise bad_request(f"The sample of {path} is not valid base64") from error
    return size > 0 and (size >= LARGE_BYTES or PurePosixPath(path).suffix.lower() in LFS_SUFFIXES or b"\0" in sample)


def _stored_gitignore(connection: sqlite3.Connection, storage: HubStorage, commit: sqlite3.Row) -> str:
    entry = find_entry(connection, commit, ".gitignore")
    if entry is None or entry["size"] > LARGE_BYTES:
        return ""
    return storage.objects.path_of(entry["sha256"]).read_text("utf-8", "replace")


def _is_ignored(path: str, gitignore: str) -> bool:
    """Apply the common part of git's rules: names, folders, globs, and exceptions with '!'; the last match decides."""
    ignored = False
    for line in map(str.strip, str(gitignore).splitlines()):
        if line and not line.startswith("#"):
            ignored = not line.startswith("!") if _matches(path, line.removeprefix("!")) else ignored
    return ignored


def _matches(path: str, pattern: str) -> bool:
    anchored, only_folders = "/" in pattern.rstrip("/"), pattern.endswith("/")
    pattern, parts = pattern.strip("/"), path.split("/")
    for length in range(1, len(parts) + (0 if only_folders else 1)):
        subject = "/".join(parts[:length]) if anchored else parts[length - 1]
        if fnmatch.fnmatchcase(subject, pattern):
            return True
    return False
