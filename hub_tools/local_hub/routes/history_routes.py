"""Requests about commits, branches and tags."""

from http import HTTPStatus
from pathlib import Path
from typing import Literal

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..store.commits import apply_commit, commit_lines, read_commit_request
from ..store.history import create_reference, delete_reference, list_commits, list_references, resolve_revision
from ..store.pull_requests import REFERENCES, check_may_open, open_pull_request
from .request_parts import AccessOf, Decoded, JsonObject, OpenRepository, endpoint_of, receive_body

router = APIRouter(prefix="/api/{kind}/{namespace}/{name}")
COMMITS_PER_PAGE = 100
MOST_BYTES_OF_A_PULL_REQUEST = 16 << 20


@router.post("/commit/{revision}")
async def commit(access: AccessOf, revision: Decoded, request: Request, create_pr: bool = False) -> JSONResponse:
    """Commit the body's operations, all or none. 412 when the branch has moved past the client's `parentCommit`.

    With `create_pr` they become a pull request, for which reading is enough.
    """
    # Before the body is read: a caller who may not write cannot fill the disk.
    await anyio.to_thread.run_sync(_check_may_commit, access, create_pr)
    with access.storage.objects.incoming_file() as (path, file):
        await receive_body(request, file.write, max_bytes=MOST_BYTES_OF_A_PULL_REQUEST if create_pr else None)
        file.flush()
        made = await anyio.to_thread.run_sync(_commit_body, access, revision, path, create_pr)
    page = f"{endpoint_of(request)}/{made['url_path']}"
    answer = {"success": True, "commitOid": made["oid"], "commitUrl": f"{page}/commit/{made['oid']}", "hookOutput": ""}
    return JSONResponse(answer | ({"pullRequestUrl": f"{page}/discussions/{made['num']}"} if create_pr else {}))


@router.get("/commits/{revision}")
def commits(access: AccessOf, revision: Decoded, request: Request, before: int | None = None) -> JSONResponse:
    """List a revision's commits, newest first, a page at a time."""
    with access.reading() as (connection, repository):
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
def refs(access: AccessOf) -> dict:
    """List branches, tags and pull requests."""
    with access.reading() as (connection, repository):
        branches = list_references(connection, repository, "branch")
        tags = list_references(connection, repository, "tag")
    return {
        "branches": [
            _reference("refs/heads/", row["name"], row["oid"])
            for row in branches
            if not row["name"].startswith(REFERENCES)
        ],
        "tags": [_reference("refs/tags/", row["name"], row["oid"]) for row in tags],
        "converts": [],
        "pullRequests": [
            _reference("", row["name"], row["oid"]) for row in branches if row["name"].startswith(REFERENCES)
        ],
    }


@router.post("/branch/{branch}")
def create_branch(payload: JsonObject, access: AccessOf, branch: Decoded) -> Response:
    """Create a branch at `startingPoint` (main if not given)."""
    with access.writing("add a branch to") as (connection, repository):
        start = resolve_revision(connection, repository, str(payload.get("startingPoint") or "main"))
        create_reference(connection, repository, "branch", branch, start)
    return Response(status_code=HTTPStatus.CREATED)


@router.post("/tag/{revision}")
def create_tag(payload: JsonObject, access: AccessOf, revision: Decoded) -> Response:
    """Tag a revision with `tag` and an optional `message`."""
    with access.writing("add a tag to") as (connection, repository):
        target = resolve_revision(connection, repository, revision)
        message = payload.get("message")
        create_reference(connection, repository, "tag", payload.get("tag"), target, message and str(message))
    return Response(status_code=HTTPStatus.CREATED)


@router.delete("/branch/{target}")
def remove_branch(access: AccessOf, target: Decoded) -> Response:
    """Delete a branch other than main."""
    return _remove(access, "branch", target)


@router.delete("/tag/{target}")
def remove_tag(access: AccessOf, target: Decoded) -> Response:
    """Delete a tag."""
    return _remove(access, "tag", target)


def _remove(access: OpenRepository, reference: Literal["branch", "tag"], target: str) -> Response:
    with access.writing(f"delete a {reference} of") as (connection, repository):
        delete_reference(connection, repository, reference, target)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _check_may_commit(access: OpenRepository, create_pr: bool) -> None:
    if create_pr:
        check_may_open(access.caller)
    with access.reading("" if create_pr else "commit to"):
        pass


def _commit_body(access: OpenRepository, revision: str, path: Path, create_pr: bool) -> dict:
    with path.open("rb") as body:
        asked = read_commit_request(commit_lines(body), access.storage.objects)
    # Checked again inside the transaction: the repository may have been deleted meanwhile.
    with access.writing("" if create_pr else "commit to") as (connection, repository):
        if create_pr:
            num, made = open_pull_request(connection, access.caller, repository, asked)
        else:
            num, made = 0, apply_commit(connection, access.caller, repository, revision, asked)
    return {"oid": made["oid"], "url_path": repository.url_path, "num": num}


def _reference(prefix: str, name: str, oid: str) -> dict:
    return {"name": name, "ref": prefix + name, "targetCommit": oid}
