"""Commits, branches and tags: which state of a repository a revision means."""

import hashlib
import json
import re
import sqlite3
from http import HTTPStatus

from ..protocol.client_paths import check_reference_name
from ..protocol.hub_error import HubError, bad_request, revision_not_found
from .database import timestamp
from .repositories import Repository

COMMIT_PATTERN = re.compile(r"[0-9a-f]{7,40}")
DEFAULT_BRANCH = "main"


def resolve_revision(connection: sqlite3.Connection, repository: Repository, revision: str) -> sqlite3.Row:
    """Return the commit row of a branch, a tag, or a commit id (its first 7 digits are enough), else raise a 404."""
    row = find_reference(connection, repository, "branch", revision) or find_reference(
        connection, repository, "tag", revision
    )
    if row is None and COMMIT_PATTERN.fullmatch(revision):
        query = "SELECT * FROM commits WHERE repository=? AND oid >= ? AND oid < ? ORDER BY id DESC LIMIT 2"
        found = connection.execute(query, (repository.id, revision, revision + "g")).fetchall()
        row = found[0] if len(found) == 1 else None
    if row is None:
        raise revision_not_found(revision)
    return row


def find_reference(connection: sqlite3.Connection, repository: Repository, kind: str, name: str) -> sqlite3.Row | None:
    """Return the commit row that a branch or tag points at, or None."""
    query = """SELECT commits.* FROM refs JOIN commits ON commits.id = refs.commit_id
               WHERE refs.repository=? AND refs.kind=? AND refs.name=?"""
    return connection.execute(query, (repository.id, kind, name.removeprefix("refs/heads/"))).fetchone()


def add_commit(
    connection: sqlite3.Connection,
    repository: Repository,
    *,
    parent: sqlite3.Row | None,
    author: str,
    title: str,
    description: str = "",
) -> sqlite3.Row:
    """Add a commit that starts with its parent's files, and return its row. No branch points at it yet."""
    moment = timestamp()
    # The id is made before the files are known: the position in the repository makes it unique.
    count = connection.execute("SELECT count(*) FROM commits WHERE repository=?", (repository.id,)).fetchone()[0]
    identity = [repository.id, repository.created_at, count, parent and parent["oid"], author, title, moment]
    oid = hashlib.sha1(json.dumps(identity).encode(), usedforsecurity=False).hexdigest()
    cursor = connection.execute(
        "INSERT INTO commits (repository, oid, parent, author, title, description, created_at) VALUES (?,?,?,?,?,?,?)",
        (repository.id, oid, parent and parent["id"], author, title, description, moment),
    )
    if parent is not None:
        connection.execute(
            """INSERT INTO entries SELECT ?, path, sha256, size, oid, is_lfs, changed_in
               FROM entries WHERE commit_id=?""",
            (cursor.lastrowid, parent["id"]),
        )
    return connection.execute("SELECT * FROM commits WHERE id=?", (cursor.lastrowid,)).fetchone()


def set_reference(
    connection: sqlite3.Connection,
    repository: Repository,
    kind: str,
    name: str,
    commit: sqlite3.Row,
    message: str | None = None,
) -> None:
    """Point a branch or tag at a commit, creating it if needed."""
    connection.execute(
        "INSERT OR REPLACE INTO refs VALUES (?, ?, ?, ?, ?)", (repository.id, kind, name, commit["id"], message)
    )


def create_reference(
    connection: sqlite3.Connection,
    repository: Repository,
    kind: str,
    name: object,
    commit: sqlite3.Row,
    message: str | None = None,
) -> None:
    """Create a branch or tag. Raises a 409 when there is one of that name."""
    checked = check_reference_name(name)
    if find_reference(connection, repository, kind, checked):
        raise HubError(HTTPStatus.CONFLICT, f"Reference already exists: {kind} {checked}")
    set_reference(connection, repository, kind, checked, commit, message)


def delete_reference(connection: sqlite3.Connection, repository: Repository, kind: str, name: str) -> None:
    """Delete a branch or tag; its commits stay reachable by their ids. Raises a 404 when there is none."""
    if kind == "branch" and name == DEFAULT_BRANCH:
        raise bad_request("The branch main cannot be deleted")
    query = "DELETE FROM refs WHERE repository=? AND kind=? AND name=?"
    if connection.execute(query, (repository.id, kind, name)).rowcount == 0:
        raise revision_not_found(name)


def list_references(connection: sqlite3.Connection, repository: Repository, kind: str) -> list[sqlite3.Row]:
    """Return the rows (name, oid) of all branches or tags, by name."""
    query = """SELECT refs.name AS name, commits.oid AS oid FROM refs JOIN commits ON commits.id = refs.commit_id
               WHERE refs.repository=? AND refs.kind=? ORDER BY refs.name"""
    return connection.execute(query, (repository.id, kind)).fetchall()


def list_commits(connection: sqlite3.Connection, commit: sqlite3.Row, limit: int, before: int | None = None) -> list:
    """Return up to `limit` rows of the commit and its ancestors, newest first; `before` is an id to continue below."""
    query = """WITH RECURSIVE line(id, parent) AS (
                   SELECT id, parent FROM commits WHERE id=?1
                   UNION ALL SELECT commits.id, commits.parent FROM commits JOIN line ON commits.id = line.parent)
               SELECT commits.* FROM line JOIN commits USING (id)
               WHERE ?2 IS NULL OR commits.id < ?2 ORDER BY commits.id DESC LIMIT ?3"""
    return connection.execute(query, (commit["id"], before, limit)).fetchall()
