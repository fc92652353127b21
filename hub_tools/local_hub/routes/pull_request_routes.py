"""Requests about pull requests: list, read, comment, close and merge them. They are opened by a commit."""

import sqlite3

from fastapi import APIRouter

from ..protocol.hub_error import bad_request, not_offered
from ..store.history import DEFAULT_BRANCH
from ..store.pull_requests import (
    PER_PAGE,
    add_event,
    change_status,
    check_may_open,
    conflicting_paths,
    diff_of,
    events_of,
    find_pull_request,
    list_pull_requests,
    merge,
)
from ..store.repositories import Repository
from .request_parts import AccessOf, JsonObject

router = APIRouter(prefix="/api/{kind}/{namespace}/{name}/discussions")


@router.get("")
def list_all(
    access: AccessOf, type: str = "all", status: str = "all", author: str | None = None, p: int = 0
) -> dict[str, object]:
    """List the pull requests, newest first, a page at a time; there are no other discussions."""
    with access.reading() as (connection, repository):
        count, rows = list_pull_requests(connection, repository, status=status, author=author, page=max(0, p))
        found = [_described(repository, row) for row in rows]
    if type == "discussion":
        count, found = 0, []
    return {"discussions": found, "count": count, "start": max(0, p) * PER_PAGE}


@router.post("")
def create() -> None:
    """Say that there are no discussions without a commit."""
    raise not_offered("discussions and empty pull requests: commit with create_pr")


@router.get("/{num}")
def details(access: AccessOf, num: int, diff: bool = False) -> dict[str, object]:
    """Describe a pull request, with its events, and what it changes if that is asked for."""
    with access.reading() as (connection, repository):
        row = find_pull_request(connection, repository, num)
        changes = {"base": f"refs/heads/{DEFAULT_BRANCH}"}
        described = {
            **_described(repository, row),
            "events": [_event(one) for one in events_of(connection, repository, num)],
            "changes": changes | ({"mergeCommitId": row["merge_oid"]} if row["merge_oid"] else {}),
            "filesWithConflicts": conflicting_paths(connection, repository, row) if row["status"] == "open" else [],
        }
        if diff:
            described["diff"] = diff_of(connection, access.storage.objects, repository, row)
    return described


@router.post("/{num}/comment")
def comment(payload: JsonObject, access: AccessOf, num: int) -> dict[str, object]:
    """Add a comment; whoever may open pull requests may."""
    if not (text := str(payload.get("comment") or "")):
        raise bad_request("The comment is empty")
    check_may_open(access.caller)
    with access.writing("") as (connection, repository):
        find_pull_request(connection, repository, num)
        event = add_event(connection, access.caller, repository, num, "comment", text)
    return {"newMessage": _event(event)}


@router.post("/{num}/status")
def status(payload: JsonObject, access: AccessOf, num: int) -> dict[str, object]:
    """Close a pull request, or open it again, with a comment if there is one."""
    if payload.get("status") not in ("open", "closed"):
        raise bad_request(f"The status is {payload.get('status')!r}; expected open or closed")
    check_may_open(access.caller)
    with access.writing("") as (connection, repository):
        row = find_pull_request(connection, repository, num)
        if payload.get("comment"):
            add_event(connection, access.caller, repository, num, "comment", str(payload["comment"]))
        event = change_status(connection, access.caller, repository, row, payload["status"])
    return {"newStatus": _event(event)}


@router.post("/{num}/merge")
def merge_one(access: AccessOf, num: int) -> dict[str, object]:
    """Commit to main what the pull request changes."""
    with access.writing("") as (connection, repository):
        merge(connection, access.caller, repository, find_pull_request(connection, repository, num))
    return {}


def _described(repository: Repository, row: sqlite3.Row) -> dict[str, object]:
    return {
        "title": row["title"],
        "num": row["num"],
        "author": {"name": row["author"], "type": "user"},
        "createdAt": row["created_at"],
        "status": row["status"],
        "repo": {"name": repository.full_name, "type": repository.type},
        "isPullRequest": True,
    }


def _event(row: sqlite3.Row) -> dict[str, object]:
    kind, content = row["kind"], row["content"]
    data = {
        "comment": {"edited": False, "hidden": False, "latest": {"raw": content}},
        "status-change": {"status": content},
        "commit": {"oid": content, "subject": ""},
    }
    author = {"name": row["author"], "type": "user"}
    return {"id": str(row["id"]), "type": kind, "createdAt": row["created_at"], "author": author, "data": data[kind]}
