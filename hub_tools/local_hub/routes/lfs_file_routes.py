"""Requests about large contents across a repository's commits: list them, delete them for good."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from ..protocol.hub_error import bad_request, not_offered
from ..store.lfs_files import delete_contents, list_contents
from .request_parts import AccessOf, JsonObject

router = APIRouter(prefix="/api/{kind}/{namespace}/{name}/lfs-files")


@router.get("")
def listing(access: AccessOf) -> JSONResponse:
    """List all large contents that are kept."""
    with access.reading() as (connection, repository):
        rows = list_contents(connection, repository)
    return JSONResponse(
        [
            {
                "fileOid": row["sha256"],
                "filename": row["path"],
                "oid": row["sha256"],
                "pushedAt": row["pushed_at"],
                "ref": "main",
                "size": row["size"],
            }
            for row in rows
        ]
    )


@router.post("/batch")
def delete(payload: JsonObject, access: AccessOf) -> Response:
    """Delete contents for good; the commits that name them stay as they are."""
    deletions = payload.get("deletions")
    if not isinstance(deletions, dict) or not isinstance(deletions.get("sha"), list):
        raise bad_request("Deleting large contents needs a list `deletions.sha`")
    if deletions.get("rewriteHistory"):
        raise not_offered("rewriting a history: pass rewrite_history=False")
    with access.writing("delete contents of") as (connection, repository):
        delete_contents(connection, access.storage.objects, repository, map(str, deletions["sha"]))
    return Response(status_code=200)
