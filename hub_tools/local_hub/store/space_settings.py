"""Secrets, variables and hardware of Spaces. This Hub stores them; it runs no Space itself.

Values of secrets are in one file per Space, readable only by the owner of the root, never in the database, and no
request can read them.
"""

import json
import os
import sqlite3
from pathlib import Path

from ..protocol.client_paths import NAME_PATTERN
from ..protocol.hub_error import bad_request
from .database import timestamp
from .repositories import Repository
from .storage import HubStorage


def apply_space_payload(
    connection: sqlite3.Connection, storage: HubStorage, repository: Repository, payload: dict
) -> None:
    """Apply the Space settings that a create request carries; other repositories have none."""
    if repository.type != "space":
        return
    for kind in ("variable", "secret"):
        for item in payload.get(f"{kind}s") or ():
            put_setting(connection, storage, repository, kind, item)
    if payload.get("hardware") is not None:
        set_hardware(connection, repository, str(payload["hardware"]), payload.get("sleepTimeSeconds"))


def put_setting(
    connection: sqlite3.Connection, storage: HubStorage, repository: Repository, kind: str, item: dict
) -> None:
    """Set a secret or variable: `{key, value, description?}`. A secret's value is written beside the database."""
    key, value = _key_and_value(item)
    if kind == "secret":
        _write_secret_values(storage, repository, {**_read_secret_values(storage, repository), key: value})
    text = item.get("description")
    shown = None if kind == "secret" else value
    row = (repository.id, kind, key, shown, None if text is None else str(text), timestamp())
    connection.execute("INSERT OR REPLACE INTO space_settings VALUES (?, ?, ?, ?, ?, ?)", row)


def delete_setting(
    connection: sqlite3.Connection, storage: HubStorage, repository: Repository, kind: str, key: object
) -> None:
    """Remove a secret or variable, if it exists."""
    connection.execute(
        "DELETE FROM space_settings WHERE repository=? AND kind=? AND key=?", (repository.id, kind, str(key))
    )
    if kind == "secret":
        values = _read_secret_values(storage, repository)
        _write_secret_values(storage, repository, {name: value for name, value in values.items() if name != key})


def list_settings(connection: sqlite3.Connection, repository: Repository, kind: str) -> dict[str, dict]:
    """Return the secrets (without values) or the variables of a Space, by key."""
    query = "SELECT * FROM space_settings WHERE repository=? AND kind=? ORDER BY key"
    rows = connection.execute(query, (repository.id, kind)).fetchall()
    return {row["key"]: _describe(row) for row in rows}


def set_hardware(connection: sqlite3.Connection, repository: Repository, flavor: str, sleep_seconds: object) -> None:
    """Remember which hardware a Space asks for."""
    seconds = sleep_seconds if isinstance(sleep_seconds, int) else repository.sleep_seconds
    connection.execute(
        "UPDATE repositories SET hardware=?, sleep_seconds=? WHERE id=?", (flavor, seconds, repository.id)
    )


def runtime_of(repository: Repository) -> dict:
    """Return what clients read as a Space's runtime."""
    hardware = repository.hardware or "cpu-basic"
    return {
        "stage": repository.stage,
        "hardware": {"current": None, "requested": hardware},
        "gcTimeout": repository.sleep_seconds,
        "storage": None,
        "devMode": False,
    }


def forget_space(storage: HubStorage, repository: Repository) -> None:
    """Remove the values of a deleted Space's secrets."""
    _secrets_path(storage, repository).unlink(missing_ok=True)


def _key_and_value(item: object) -> tuple[str, str]:
    if not isinstance(item, dict) or not isinstance(item.get("value"), str):
        raise bad_request("A secret or variable is an object with a key and a text value")
    key = item.get("key")
    if not isinstance(key, str) or not NAME_PATTERN.fullmatch(key):
        raise bad_request(f"Invalid name {key!r} of a secret or variable: use letters, digits and '_'")
    return key, item["value"]


def _describe(row: sqlite3.Row) -> dict:
    described = {"key": row["key"], "description": row["description"], "updatedAt": row["updated_at"]}
    return described if row["kind"] == "secret" else {**described, "value": row["value"]}


def _secrets_path(storage: HubStorage, repository: Repository) -> Path:
    return storage.root / "space_secrets" / f"{repository.id}.json"


def _read_secret_values(storage: HubStorage, repository: Repository) -> dict[str, str]:
    path = _secrets_path(storage, repository)
    return json.loads(path.read_text()) if path.exists() else {}


def _write_secret_values(storage: HubStorage, repository: Repository, values: dict[str, str]) -> None:
    path = _secrets_path(storage, repository)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with storage.objects.incoming_file() as (temporary, file):
        temporary.chmod(0o600)
        file.write(json.dumps(values).encode())
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)
