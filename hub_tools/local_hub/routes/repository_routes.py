"""Creating, describing, listing and deleting repositories."""

import sqlite3
from http import HTTPStatus
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from ..protocol.hub_error import HubError, bad_request
from ..store.accounts import Caller
from ..store.commits import GITATTRIBUTES, first_commit, store_small_file
from ..store.history import resolve_revision
from ..store.object_store import ObjectStore
from ..store.repositories import (
    Repository,
    change_settings,
    create_repository,
    delete_repository,
    list_repositories,
    wants_private,
)
from ..store.space_settings import apply_space_payload, forget_space, runtime_of
from ..store.trees import describe_file, entries_below
from .cards import card_of_commit, tags_of_card
from .request_parts import KINDS, AccessOf, CallerOf, JsonObject, Storage, endpoint_of

router = APIRouter()


@router.post("/api/repos/create")
def create(payload: JsonObject, request: Request, caller: CallerOf, storage: Storage) -> Response:
    """Create a repository with its first commit on main; 409 with the url if it already exists."""
    repo_type = payload.get("type") or "model"
    full_name = _named(payload, caller)
    attributes = store_small_file(storage.objects, ".gitattributes", GITATTRIBUTES)
    try:
        with storage.database.writing() as connection:
            private = bool(wants_private(payload))
            repository = create_repository(
                connection, caller, repo_type, full_name, private=private, sdk=payload.get("sdk")
            )
            first_commit(connection, repository, str(caller.user), [attributes])
            apply_space_payload(connection, storage, repository, payload)
    except HubError as error:
        if error.status == HTTPStatus.CONFLICT:
            error.fields["url"] = _url(request, repo_type, full_name)
        raise
    return JSONResponse({"url": _url(request, repo_type, full_name), "name": full_name, "id": full_name})


@router.delete("/api/repos/delete")
def delete(payload: JsonObject, caller: CallerOf, storage: Storage) -> Response:
    """Delete a repository with its history."""
    with storage.database.writing() as connection:
        repository = delete_repository(connection, caller, payload.get("type") or "model", _named(payload, caller))
    forget_space(storage, repository)
    return Response("OK")


@router.put("/api/{kind}/{namespace}/{name}/settings")
def settings(payload: JsonObject, access: AccessOf) -> dict:
    """Change a repository's visibility."""
    with access.writing("change the settings of", role="admin") as (connection, repository):
        change_settings(connection, repository, payload)
    return {}


@router.get("/api/{kind}/{namespace}/{name}")
@router.get("/api/{kind}/{namespace}/{name}/revision/{revision}")
def info(access: AccessOf, request: Request, blobs: bool = False) -> dict:
    """Describe a repository at a revision."""
    revision = unquote(request.path_params.get("revision", "main"))
    with access.reading() as (connection, repository):
        commit = resolve_revision(connection, repository, revision)
        rows = entries_below(connection, commit, "")
        siblings = [_sibling(row, blobs=blobs) for row in rows]
        described = describe(connection, access.storage.objects, repository, commit["oid"])
    used = sum({row["sha256"]: row["size"] for row in rows}.values())
    return {**described, "siblings": siblings, "usedStorage": used}


@router.get("/api/{kind}")
def list_all(
    kind: str,
    request: Request,
    caller: CallerOf,
    storage: Storage,
    author: str | None = None,
    search: str | None = None,
    filter: Annotated[list[str] | None, Query()] = None,
    limit: int = 1000,
    skip: int = 0,
) -> Response:
    """List the repositories that the caller may see, newest first."""
    if kind not in KINDS:
        raise HubError(HTTPStatus.NOT_FOUND, f"There is no API for {kind}: use {', '.join(KINDS)}")
    with storage.database.reading() as connection:
        found = list_repositories(connection, caller, KINDS[kind])
        found = [it for it in found if author is None or it.namespace.lower() == author.lower()]
        found = [it for it in found if search is None or search.lower() in it.full_name.lower()]
        described = [describe(connection, storage.objects, it) for it in found]
    described = [it for it in described if set(filter or ()) <= set(it["tags"])]
    limit = max(1, limit)
    following = request.url.include_query_params(skip=skip + limit, limit=limit)
    headers = {"Link": f'<{following}>; rel="next"'} if len(described) > skip + limit else {}
    return JSONResponse(described[skip : skip + limit], headers=headers)


def describe(
    connection: sqlite3.Connection, objects: ObjectStore, repository: Repository, revision: str = "main"
) -> dict:
    """Return what listings say about a repository at a revision."""
    commit = resolve_revision(connection, repository, revision)
    card = card_of_commit(connection, objects, commit)
    described = {
        "_id": str(repository.id),
        "id": repository.full_name,
        "author": repository.namespace,
        "sha": commit["oid"],
        "createdAt": repository.created_at,
        "lastModified": commit["created_at"],
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": tags_of_card(card),
        "cardData": card,
    }
    extra: dict[str, object]
    if repository.type == "model":
        extra = {"modelId": repository.full_name}
        extra |= {key: card[key] for key in ("pipeline_tag", "library_name", "model-index") if card.get(key)}
    elif repository.type == "space":
        subdomain = repository.full_name.replace("/", "-").replace(".", "-").lower()
        extra = {"sdk": card.get("sdk") or repository.sdk, "subdomain": subdomain, "runtime": runtime_of(repository)}
    else:
        extra = {"description": str(card.get("pretty_name") or "")}
    return {**described, **extra}


def _sibling(row: sqlite3.Row, *, blobs: bool) -> dict:
    if not blobs:
        return {"rfilename": row["path"]}
    described = describe_file(row)
    sibling = {"rfilename": row["path"], "size": row["size"], "blobId": row["oid"]}
    if "lfs" in described:
        lfs = described["lfs"]
        sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return sibling


def _named(payload: dict, caller: Caller) -> str:
    name = payload.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request("The name of the repository is missing")
    return name if "/" in name else f"{payload.get('organization') or caller.user or '-'}/{name}"


def _url(request: Request, repo_type: str, full_name: str) -> str:
    prefix = {"dataset": "datasets/", "space": "spaces/"}.get(repo_type, "")
    return f"{endpoint_of(request)}/{prefix}{full_name}"
