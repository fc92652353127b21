"""Requests about Jobs. The embedded Hub has no machines: a Job stays in the queue until it is cancelled.

Of secrets only the names are kept.
"""

import json
import secrets
import sqlite3
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ..protocol.hub_error import HubError, bad_request
from ..routes.request_parts import CallerOf, Decoded, JsonObject, Storage
from ..store.accounts import check_can_write, namespace_kind
from ..store.database import timestamp

router = APIRouter(prefix="/api/jobs")
API = "/{namespace}/{job}"
MAX_SPEC_BYTES = 256 << 10
MAX_QUEUED = 1000
MAX_SECONDS = 30 * 24 * 3600
NOTE = "The embedded Hub keeps Jobs and runs none"
HARDWARE = {
    "cpu-basic": ("CPU Basic", "2 vCPU", "16 GB", None, 167),
    "t4-small": ("Nvidia T4 - small", "4 vCPU", "15 GB", ("1", "T4", "16 GB"), 6667),
}
"""By name: words for people, and millionths of a dollar for a minute."""


@router.get("/hardware")
def hardware() -> list[dict]:
    """List the hardware that Jobs may ask for."""
    return [
        {
            "name": name,
            "prettyName": title,
            "cpu": cpu,
            "ram": ram,
            "accelerator": gpu
            and {"type": "gpu", "model": gpu[1], "quantity": gpu[0], "vram": gpu[2], "manufacturer": "Nvidia"},
            "unitCostMicroUSD": cost,
            "unitCostUSD": cost / 1e6,
            "unitLabel": "minute",
        }
        for name, (title, cpu, ram, gpu, cost) in HARDWARE.items()
    ]


@router.post("/{namespace}")
def submit(namespace: Decoded, payload: JsonObject, caller: CallerOf, storage: Storage) -> dict:
    """Take a Job into the queue."""
    spec = _checked(payload)
    with storage.database.writing() as connection:
        check_can_write(connection, caller, namespace, action=f"run Jobs in {namespace}", role="write")
        (queued,) = connection.execute("SELECT count(*) FROM jobs WHERE namespace=?", (namespace,)).fetchone()
        if queued >= MAX_QUEUED:
            raise HubError(HTTPStatus.TOO_MANY_REQUESTS, f"{namespace} has {queued} Jobs already: cancel some")
        name = secrets.token_hex(12)
        row = (name, namespace, str(caller.user), json.dumps(spec), "SCHEDULING", timestamp())
        connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)", row)
        return _describe(connection, _find(connection, namespace, name))


@router.get("/{namespace}")
def listing(namespace: Decoded, caller: CallerOf, storage: Storage) -> list[dict]:
    """List the Jobs of a namespace, newest first."""
    with storage.database.reading() as connection:
        check_can_write(connection, caller, namespace, action=f"see Jobs of {namespace}", role="read")
        query = "SELECT * FROM jobs WHERE namespace=? ORDER BY rowid DESC"
        return [_describe(connection, row) for row in connection.execute(query, (namespace,))]


@router.get(API)
def inspect(namespace: Decoded, job: Decoded, caller: CallerOf, storage: Storage) -> dict:
    """Describe one Job."""
    with storage.database.reading() as connection:
        check_can_write(connection, caller, namespace, action=f"see Jobs of {namespace}", role="read")
        return _describe(connection, _find(connection, namespace, job))


@router.post(API + "/cancel")
def cancel(namespace: Decoded, job: Decoded, caller: CallerOf, storage: Storage) -> JSONResponse:
    """Take a Job out of the queue."""
    with storage.database.writing() as connection:
        check_can_write(connection, caller, namespace, action=f"cancel Jobs of {namespace}", role="write")
        found = _find(connection, namespace, job)
        connection.execute("UPDATE jobs SET stage='CANCELED' WHERE id=?", (found["id"],))
    return JSONResponse({})


def _checked(payload: dict) -> dict:
    """Return what is kept of a Job; raises a 400 for what the public Hub would not run either."""
    command, environment, hidden = (payload.get(name) for name in ("command", "environment", "secrets"))
    image, flavor, limit = payload.get("dockerImage"), payload.get("flavor"), payload.get("timeoutSeconds")
    if not isinstance(image, str) or not image:
        raise bad_request("A Job needs a Docker image")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise bad_request("A Job's command is a list of words")
    if not isinstance(flavor, str) or flavor not in HARDWARE:
        raise bad_request(f"There is no hardware {flavor!r}: use {', '.join(HARDWARE)}")
    if limit is not None and not (type(limit) is int and 0 < limit <= MAX_SECONDS):
        raise bad_request(f"Invalid time-out {limit!r}: give 1 to {MAX_SECONDS} seconds")
    for what in (environment or {}, hidden or {}, payload.get("labels") or {}):
        if not isinstance(what, dict) or not all(isinstance(value, str) for value in what.values()):
            raise bad_request("Variables, secrets and labels are texts by their names")
    spec = {
        "dockerImage": image,
        "command": command,
        "environment": environment or {},
        "secrets": dict.fromkeys(hidden or {}, ""),
        "flavor": flavor,
        "labels": payload.get("labels") or {},
        "timeoutSeconds": limit,
    }
    if len(json.dumps(spec)) > MAX_SPEC_BYTES:
        raise bad_request(f"A Job's description has more than {MAX_SPEC_BYTES} bytes")
    return spec


def _find(connection: sqlite3.Connection, namespace: str, job: str) -> sqlite3.Row:
    row = connection.execute("SELECT * FROM jobs WHERE namespace=? AND id=?", (namespace, job)).fetchone()
    if row is None:
        raise HubError(HTTPStatus.NOT_FOUND, f"{namespace} has no Job {job}")
    return row


def _describe(connection: sqlite3.Connection, row: sqlite3.Row) -> dict:
    kind = namespace_kind(connection, row["namespace"])
    return {
        **json.loads(row["spec"]),
        "id": row["id"],
        "createdAt": row["created_at"],
        "owner": {"id": row["namespace"], "name": row["namespace"], "type": kind},
        "initiator": {"type": "user", "id": row["user"], "name": row["user"]},
        "status": {"stage": row["stage"], "message": NOTE},
    }
