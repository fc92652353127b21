"""Requests about Spaces: secrets, variables, hardware, runtime."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from ..store.repositories import find_repository
from ..store.space_settings import delete_setting, list_settings, put_setting, runtime_of, set_hardware
from .request_parts import AccessOf, JsonObject

router = APIRouter(prefix="/api/spaces/{namespace}/{name}")


def kind_of(request: Request) -> str:
    """Return whether a request is about a `secret` or a `variable`."""
    return request.scope["path"].rpartition("/")[2].removesuffix("s")


Kind = Annotated[str, Depends(kind_of)]


@router.get("/runtime")
def read_runtime(access: AccessOf) -> dict:
    """Return the hardware that a Space asks for; this Hub runs none."""
    with access.reading() as (_, repository):
        return runtime_of(repository)


@router.get("/secrets")
@router.get("/variables")
def read_settings(access: AccessOf, kind: Kind) -> dict:
    """List variables, or names and descriptions of secrets, to those who may change them; secrets are never sent."""
    with access.reading(f"list the {kind}s of") as (connection, repository):
        return list_settings(connection, repository, kind)


@router.post("/secrets")
@router.post("/variables")
def write_setting(payload: JsonObject, access: AccessOf, kind: Kind) -> dict:
    """Set a secret or a variable."""
    with access.writing(f"set a {kind} of") as (connection, repository):
        put_setting(connection, access.storage, repository, kind, payload)
        return list_settings(connection, repository, kind)


@router.delete("/secrets")
@router.delete("/variables")
def remove_setting(payload: JsonObject, access: AccessOf, kind: Kind) -> dict:
    """Remove a secret or a variable."""
    with access.writing(f"remove a {kind} of") as (connection, repository):
        delete_setting(connection, access.storage, repository, kind, payload.get("key"))
        return list_settings(connection, repository, kind)


@router.post("/hardware")
def change_hardware(payload: JsonObject, access: AccessOf) -> dict:
    """Set the hardware that a Space asks for, and after how many idle seconds it should sleep."""
    with access.writing("set the hardware of") as (connection, repository):
        set_hardware(connection, repository, str(payload.get("flavor")), payload.get("sleepTimeSeconds"))
        changed = find_repository(connection, "space", repository.full_name)
        assert changed is not None
        return runtime_of(changed)
