"""Requests about Spaces: secrets, variables, hardware, runtime."""

from fastapi import APIRouter

from ..store.accounts import Caller
from ..store.repositories import find_repository, readable_repository, writable_repository
from ..store.space_settings import (
    delete_setting,
    list_settings,
    put_secret,
    put_variable,
    runtime_of,
    set_hardware,
)
from ..store.storage import HubStorage
from .request_parts import CallerOf, Decoded, JsonObject, Storage

router = APIRouter(prefix="/api/spaces/{namespace}/{name}")


@router.get("/runtime")
def read_runtime(namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Return the hardware that a Space asks for; this Hub runs none."""
    with storage.database.reading() as connection:
        return runtime_of(readable_repository(connection, caller, "space", f"{namespace}/{name}"))


@router.get("/secrets")
def read_secrets(namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """List names and descriptions of secrets to those who may change them; values are never sent."""
    return _list(namespace, name, caller, storage, "secret")


@router.get("/variables")
def read_variables(namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """List variables."""
    return _list(namespace, name, caller, storage, "variable")


@router.post("/secrets")
def write_secret(payload: JsonObject, namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Set a secret."""
    with storage.database.writing() as connection:
        repository = writable_repository(connection, caller, "space", f"{namespace}/{name}", action="set a secret of")
        put_secret(connection, storage, repository, payload)
    return {}


@router.post("/variables")
def write_variable(payload: JsonObject, namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Set a variable."""
    with storage.database.writing() as connection:
        repository = writable_repository(connection, caller, "space", f"{namespace}/{name}", action="set a variable of")
        put_variable(connection, repository, payload)
        return list_settings(connection, repository, "variable")


@router.delete("/secrets")
def remove_secret(payload: JsonObject, namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Remove a secret."""
    return _remove(namespace, name, caller, storage, "secret", payload)


@router.delete("/variables")
def remove_variable(payload: JsonObject, namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Remove a variable."""
    return _remove(namespace, name, caller, storage, "variable", payload)


@router.post("/hardware")
def change_hardware(payload: JsonObject, namespace: Decoded, name: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Set the hardware that a Space asks for, and after how many idle seconds it should sleep."""
    full_name = f"{namespace}/{name}"
    with storage.database.writing() as connection:
        repository = writable_repository(connection, caller, "space", full_name, action="set the hardware of")
        set_hardware(connection, repository, str(payload.get("flavor")), payload.get("sleepTimeSeconds"))
        changed = find_repository(connection, "space", full_name)
        assert changed is not None
        return runtime_of(changed)


def _list(namespace: str, name: str, caller: Caller, storage: HubStorage, kind: str) -> dict:
    with storage.database.reading() as connection:
        repository = writable_repository(
            connection, caller, "space", f"{namespace}/{name}", action=f"list the {kind}s of"
        )
        return list_settings(connection, repository, kind)


def _remove(namespace: str, name: str, caller: Caller, storage: HubStorage, kind: str, payload: dict) -> dict:
    with storage.database.writing() as connection:
        repository = writable_repository(
            connection, caller, "space", f"{namespace}/{name}", action=f"remove a {kind} of"
        )
        delete_setting(connection, storage, repository, kind, payload.get("key"))
        return list_settings(connection, repository, kind)
