"""Repositories: finding one that the caller may see, creating and deleting them."""

import sqlite3
from dataclasses import dataclass
from http import HTTPStatus

from ..protocol.client_paths import check_name
from ..protocol.hub_error import HubError, bad_request, not_offered, repository_not_found
from .accounts import Caller, check_can_change, check_can_create, namespace_kind, record_creator
from .database import timestamp

TYPES = ("model", "dataset", "space")
SPACE_SDKS = ("gradio", "streamlit", "docker", "static")
URL_PREFIXES = {"model": "", "dataset": "datasets/", "space": "spaces/"}


@dataclass(frozen=True, kw_only=True)
class Repository:
    """One repository as the database has it."""

    id: int
    type: str
    namespace: str
    name: str
    private: bool
    sdk: str | None
    hardware: str | None
    sleep_seconds: int | None
    stage: str
    created_at: str

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def url_path(self) -> str:
        """The path of its page, without the leading slash."""
        return URL_PREFIXES[self.type] + self.full_name


def find_repository(connection: sqlite3.Connection, repo_type: str, full_name: str) -> Repository | None:
    """Return the repository `namespace/name`, whoever asks, or None."""
    namespace, _, name = full_name.partition("/")
    query = "SELECT * FROM repositories WHERE type=? AND namespace=? AND name=?"
    row = connection.execute(query, (repo_type, namespace, name)).fetchone()
    return repository_of_row(row) if row else None


def repository_of_row(row: sqlite3.Row) -> Repository:
    """Return the repository of a full row of the table."""
    return Repository(**{**dict(row), "private": bool(row["private"])})


def readable_repository(connection: sqlite3.Connection, caller: Caller, repo_type: str, full_name: str) -> Repository:
    """Return the repository if the caller may read it; a hidden one looks exactly like a missing one."""
    repository = find_repository(connection, repo_type, full_name)
    if repository is None or not may_read(connection, caller, repository):
        raise repository_not_found(full_name, anonymous=caller.user is None)
    return repository


def writable_repository(
    connection: sqlite3.Connection, caller: Caller, repo_type: str, full_name: str, *, action: str, role: str = "write"
) -> Repository:
    """Return the repository if the caller may change it, else raise the 401, 403 or 404 that says why not."""
    repository = readable_repository(connection, caller, repo_type, full_name)
    made, action = ("repository", repository.id), f"{action} {full_name}"
    check_can_change(connection, caller, repository.namespace, made, action=action, role=role)
    return repository


def may_read(connection: sqlite3.Connection, caller: Caller, repository: Repository) -> bool:
    """Say whether the caller may read the repository."""
    return not repository.private or caller.role_in(connection, repository.namespace) is not None


def create_repository(
    connection: sqlite3.Connection,
    caller: Caller,
    repo_type: str,
    full_name: str,
    *,
    private: bool = False,
    sdk: str | None = None,
) -> Repository:
    """Create a repository without commits. Raises a 409 when the name is taken, which carries the `url`."""
    namespace, _, name = full_name.partition("/")
    check_name(name, "repository")
    _check_type(repo_type, sdk)
    _check_namespace_for(connection, caller, namespace, full_name)
    existing = find_repository(connection, repo_type, full_name)
    if existing:
        raise HubError(HTTPStatus.CONFLICT, f"You already created this {repo_type} repo: {full_name}", name=full_name)
    connection.execute(
        "INSERT INTO repositories (type, namespace, name, private, sdk, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (repo_type, namespace, name, private, sdk, timestamp()),
    )
    created = find_repository(connection, repo_type, full_name)
    assert created is not None
    record_creator(connection, caller, "repository", created.id)
    return created


def delete_repository(connection: sqlite3.Connection, caller: Caller, repo_type: str, full_name: str) -> Repository:
    """Remove a repository with its history, and return what it was."""
    repository = writable_repository(connection, caller, repo_type, full_name, action="delete", role="admin")
    # References point at commits without cascading, so that a commit in use cannot be deleted by accident.
    connection.execute("DELETE FROM refs WHERE repository=?", (repository.id,))
    connection.execute("DELETE FROM repositories WHERE id=?", (repository.id,))
    return repository


def change_settings(connection: sqlite3.Connection, repository: Repository, settings: dict) -> None:
    """Apply the settings that a Hub repository has: its visibility. Gates are not offered."""
    if settings.get("gated"):
        raise not_offered("gated repositories: make the repository private and add members to its organization")
    private = wants_private(settings)
    if private is not None:
        connection.execute("UPDATE repositories SET private=? WHERE id=?", (private, repository.id))


def wants_private(payload: dict) -> bool | None:
    """Return the visibility that a request asks for, or None where it asks for none."""
    if payload.get("visibility") is not None:
        return payload["visibility"] != "public"
    private = payload.get("private")
    return None if private is None else bool(private)


def list_repositories(connection: sqlite3.Connection, caller: Caller, repo_type: str | None = None) -> list[Repository]:
    """Return the repositories that the caller may read, newest first."""
    query = "SELECT * FROM repositories WHERE ?1 IS NULL OR type=?1 ORDER BY id DESC"
    every = map(repository_of_row, connection.execute(query, (repo_type,)).fetchall())
    return [repository for repository in every if may_read(connection, caller, repository)]


def _check_type(repo_type: str, sdk: str | None) -> None:
    if repo_type not in TYPES:
        raise bad_request(f"Invalid repository type {repo_type!r}: use {', '.join(TYPES)}")
    if repo_type == "space" and sdk not in SPACE_SDKS:
        raise bad_request(f"Invalid Space SDK {sdk!r}: use {', '.join(SPACE_SDKS)}")


def _check_namespace_for(connection: sqlite3.Connection, caller: Caller, namespace: str, full_name: str) -> None:
    check_can_create(connection, caller, namespace, action=f"create {full_name}")
    assert namespace_kind(connection, namespace) is not None
