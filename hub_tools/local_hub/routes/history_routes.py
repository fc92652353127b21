"""Requests about commits, branches and tags."""

from http import HTTPStatus
from pathlib import Path

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..protocol.hub_error import not_offered
from ..store.accounts import Caller
from ..store.commits import apply_commit, commit_lines, read_commit_request
from ..store.history import create_reference, delete_reference, list_commits, list_references, resolve_revision
from ..store.repositories import readable_repository, writable_repository
from ..store.storage import HubStorage
from .request_parts import (
    Address,
    CallerOf,
    Decoded,
    JsonObject,
    RepositoryAddress,
    Storage,
    endpoint_of,
    receive_body,
)

router = APIRouter(prefix="/api/{kind}/{namespace}/{name}")
COMMITS_PER_PAGE = 100


@router.post("/commit/{revision}")
async def commit(
    address: Address, revision: Decoded, request: Request, caller: CallerOf, storage: Storage, create_pr: bool = False
) -> JSONResponse:
    """Commit the body's operations, all or none. 412 when the branch has moved past the client's `parentCommit`."""
    if create_pr:
        raise not_offered("pull requests: commit to a branch instead")
    # Before the body is read: a caller who may not write cannot fill the disk.
    await anyio.to_thread.run_sync(_check_may_commit, storage, caller, address)
    with storage.objects.incoming_file() as (path, file):
        await receive_body(request, file.write)
        file.flush()
        made = await anyio.to_thread.run_sync(_commit_body, storage, caller, address, revision, path)
    url = f"{endpoint_of(request)}/{made['url_path']}/commit/{made['oid']}"
    return JSONResponse({"success": True, "commitOid": made["oid"], "commitUrl": url, "hookOutput": ""})


@router.get("/commits/{revision}")
def commits(
    address: Address, revision: Decoded, request: Request, caller: CallerOf, storage: Storage, before: int | None = None
) -> JSONResponse:
    """List a revision's commits, newest first, a page at a time."""
    with storage.database.reading() as connection:
        repository = readable_repository(connection, caller, address.type, address.full_name)
        head = resolve_revision(connection, repository, revision)
        rows = list_commits(connection, head, COMMITS_PER_PAGE + 1, before)
    shown = [
        {
            "id": row["oid"],
            "title": row["title"],
            "message": row["description"],
            "date": row["created_at"],
            "authors": [{"user": row["author"]}],
            "formatted": {"title": row["title"], "message": row["description"]},
        }
        for row in rows[:COMMITS_PER_PAGE]
    ]
    if len(rows) <= COMMITS_PER_PAGE:
        return JSONResponse(shown)
    following = request.url.include_query_params(before=rows[COMMITS_PER_PAGE - 1]["id"])
    return JSONResponse(shown, headers={"Link": f'<{following}>; rel="next"'})


@router.get("/refs")
def refs(address: Address, caller: CallerOf, storage: Storage) -> dict:
    """List branches and tags."""
    with storage.database.reading() as connection:
        repository = readable_repository(connection, caller, address.type, address.full_name)
        branches = list_references(connection, repository, "branch")
        tags = list_references(connection, repository, "tag")
    return {
        "branches": [_reference("refs/heads/", row["name"], row["oid"]) for row in branches],
        "tags": [_reference("refs/tags/", row["name"], row["oid"]) for row in tags],
        "converts": [],
        "pullRequests": [],
    }


@router.post("/branch/{branch}")
def create_branch(
    payload: JsonObject, address: Address, branch: Decoded, caller: CallerOf, storage: Storage
) -> Response:
    """Create a branch at `startingPoint` (main if not given)."""
    with storage.database.writing() as connection:
        repository = writable_repository(connection, caller, address.type, address.full_name, action="add a branch to")
        start = resolve_revision(connection, repository, str(payload.get("startingPoint") or "main"))
        create_reference(connection, repository, "branch", branch, start)
    return Response(status_code=HTTPStatus.CREATED)


@router.delete("/branch/{branch}")
def delete_branch(address: Address, branch: Decoded, caller: CallerOf, storage: Storage) -> Response:
    """Delete a branch other than main."""
    return _delete_reference(address, "branch", branch, caller, storage)


@router.post("/tag/{revision}")
def create_tag(
    payload: JsonObject, address: Address, revision: Decoded, caller: CallerOf, storage: Storage
) -> Response:
    """Tag a revision with `tag` and an optional `message`."""
    with storage.database.writing() as connection:
        repository = writable_repository(connection, caller, address.type, address.full_name, action="add a tag to")
        target = resolve_revision(connection, repository, revision)
        message = payload.get("message")
        create_reference(connection, repository, "tag", payload.get("tag"), target, message and str(message))
    return Response(status_code=HTTPStatus.CREATED)


@router.delete("/tag/{tag}")
def delete_tag(address: Address, tag: Decoded, caller: CallerOf, storage: Storage) -> Response:
    """Delete a tag."""
    return _delete_reference(address, "tag", tag, caller, storage)


@router.api_route("/discussions{rest:path}", methods=["GET", "POST"])
def discussions(rest: str) -> None:
    """Say that there are none."""
    raise not_offered("discussions or pull requests: commit to a branch instead")


def _check_may_commit(storage: HubStorage, caller: Caller, address: RepositoryAddress) -> None:
    with storage.database.reading() as connection:
        writable_repository(connection, caller, address.type, address.full_name, action="commit to")


def _commit_body(storage: HubStorage, caller: Caller, address: RepositoryAddress, revision: str, path: Path) -> dict:
    with path.open("rb") as body:
        asked = read_commit_request(commit_lines(body), storage.objects)
    with storage.database.writing() as connection:
        # Checked again inside the transaction: the repository may have been deleted meanwhile.
        repository = writable_repository(connection, caller, address.type, address.full_name, action="commit to")
        made = apply_commit(connection, caller, repository, revision, asked)
    return {"oid": made["oid"], "url_path": repository.url_path}


def _delete_reference(
    address: RepositoryAddress, kind: str, name: str, caller: Caller, storage: HubStorage
) -> Response:
    with storage.database.writing() as connection:
        repository = writable_repository(
            connection, caller, address.type, address.full_name, action=f"delete a {kind} of"
        )
        delete_reference(connection, repository, kind, name)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _reference(prefix: str, name: str, oid: str) -> dict:
    return {"name": name, "ref": prefix + name, "targetCommit": oid}
