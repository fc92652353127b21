"""Pull requests: commits of people who may only read, on references of their own, until somebody merges them."""

import difflib
import sqlite3
from http import HTTPStatus

from ..protocol.hub_error import HubError, forbidden, login_needed
from .accounts import Caller, check_can_change
from .commits import CommitRequest, apply_commit
from .database import timestamp
from .history import DEFAULT_BRANCH, add_commit, find_reference, set_reference
from .object_store import ObjectStore
from .repositories import Repository
from .trees import entries_below

PER_PAGE = 10
REFERENCES = "refs/pr/"


def check_may_open(caller: Caller) -> None:
    """Raise the 401 or 403 unless the caller may open pull requests where he may read."""
    if caller.user is None:
        raise login_needed("open a pull request")
    if caller.token_role == "read":
        raise forbidden(f"Token {caller.token_name!r} of {caller.user} may only read: it may open no pull request")


def open_pull_request(
    connection: sqlite3.Connection, caller: Caller, repository: Repository, request: CommitRequest
) -> tuple[int, sqlite3.Row]:
    """Commit to a reference of its own, beside main; return the pull request's number and the commit's row."""
    base = find_reference(connection, repository, "branch", DEFAULT_BRANCH)
    assert base is not None
    query = "SELECT coalesce(max(num), 0) + 1 FROM pull_requests WHERE repository=?"
    num = connection.execute(query, (repository.id,)).fetchone()[0]
    connection.execute(
        "INSERT INTO pull_requests VALUES (?, ?, ?, ?, 'open', ?, NULL, ?)",
        (repository.id, num, request.title, caller.user, base["id"], timestamp()),
    )
    set_reference(connection, repository, "branch", f"{REFERENCES}{num}", base)
    commit = apply_commit(connection, caller, repository, f"{REFERENCES}{num}", request)
    add_event(connection, caller, repository, num, "comment", request.description)
    add_event(connection, caller, repository, num, "commit", commit["oid"])
    return num, commit


def find_pull_request(connection: sqlite3.Connection, repository: Repository, num: int) -> sqlite3.Row:
    """Return the row of a pull request, else raise a 404."""
    query = "SELECT * FROM pull_requests WHERE repository=? AND num=?"
    row = connection.execute(query, (repository.id, num)).fetchone()
    if row is None:
        raise HubError(HTTPStatus.NOT_FOUND, f"{repository.full_name} has no pull request {num}")
    return row


def list_pull_requests(
    connection: sqlite3.Connection, repository: Repository, *, status: str, author: str | None, page: int
) -> tuple[int, list[sqlite3.Row]]:
    """Return how many there are, `open`, `closed` or `all`, and the rows of a page, newest first."""
    where = {"open": "status='open'", "closed": "status<>'open'"}.get(status, "1")
    query = f"FROM pull_requests WHERE repository=?1 AND {where} AND (?2 IS NULL OR author=?2)"
    count = connection.execute(f"SELECT count(*) {query}", (repository.id, author)).fetchone()[0]
    query = f"SELECT * {query} ORDER BY num DESC LIMIT ?3 OFFSET ?4"
    return count, connection.execute(query, (repository.id, author, PER_PAGE, page * PER_PAGE)).fetchall()


def add_event(
    connection: sqlite3.Connection, caller: Caller, repository: Repository, num: int, kind: str, content: str
) -> sqlite3.Row:
    """Add a `comment`, a `status-change` or a `commit`, and return its row."""
    cursor = connection.execute(
        "INSERT INTO pull_request_events (repository, num, kind, author, content, created_at) VALUES (?,?,?,?,?,?)",
        (repository.id, num, kind, caller.user, content, timestamp()),
    )
    return connection.execute("SELECT * FROM pull_request_events WHERE id=?", (cursor.lastrowid,)).fetchone()


def events_of(connection: sqlite3.Connection, repository: Repository, num: int) -> list[sqlite3.Row]:
    """Return the rows of what has happened to a pull request, oldest first."""
    query = "SELECT * FROM pull_request_events WHERE repository=? AND num=? ORDER BY id"
    return connection.execute(query, (repository.id, num)).fetchall()


def change_status(
    connection: sqlite3.Connection, caller: Caller, repository: Repository, pull_request: sqlite3.Row, status: str
) -> sqlite3.Row:
    """Open or close a pull request, or note that it is merged; its author and writers may. Return the event's row."""
    if caller.user is None or status == "merged" or caller.user.lower() != pull_request["author"].lower():
        made, action = ("repository", repository.id), f"change a pull request of {repository.full_name}"
        check_can_change(connection, caller, repository.namespace, made, action=action, role="write")
    if pull_request["status"] == "merged":
        raise forbidden(f"The pull request {pull_request['num']} is merged")
    num = pull_request["num"]
    query = "UPDATE pull_requests SET status=? WHERE repository=? AND num=?"
    connection.execute(query, (status, repository.id, num))
    return add_event(connection, caller, repository, num, "status-change", status)


def merge(connection: sqlite3.Connection, caller: Caller, repository: Repository, pull_request: sqlite3.Row) -> None:
    """Commit to main what the pull request changes. Raises the 401, 403 or 409 that says why not."""
    change_status(connection, caller, repository, pull_request, "merged")
    if conflicts := conflicting_paths(connection, repository, pull_request):
        raise HubError(HTTPStatus.CONFLICT, f"main has other changes of {', '.join(conflicts)}")
    head, num = find_reference(connection, repository, "branch", DEFAULT_BRANCH), pull_request["num"]
    title = f"{pull_request['title']} (#{num})"
    commit = add_commit(connection, repository, parent=head, author=str(caller.user), title=title)
    for path, (_, row) in _changes(connection, repository, pull_request).items():
        connection.execute("DELETE FROM entries WHERE commit_id=? AND path=?", (commit["id"], path))
        if row is not None:
            changed = {**dict(row), "commit_id": commit["id"], "changed_in": commit["id"]}
            connection.execute(f"INSERT INTO entries VALUES ({','.join('?' * len(changed))})", tuple(changed.values()))
    set_reference(connection, repository, "branch", DEFAULT_BRANCH, commit)
    query = "UPDATE pull_requests SET merge_oid=? WHERE repository=? AND num=?"
    connection.execute(query, (commit["oid"], repository.id, num))


def conflicting_paths(connection: sqlite3.Connection, repository: Repository, pull_request: sqlite3.Row) -> list[str]:
    """Return the files that both main and the pull request have changed since it was opened."""
    head = find_reference(connection, repository, "branch", DEFAULT_BRANCH)
    assert head is not None
    on_main = {row["path"]: row["oid"] for row in entries_below(connection, head, "")}
    changes = _changes(connection, repository, pull_request)
    return [
        path
        for path, (old, new) in changes.items()
        if on_main.get(path) not in (old and old["oid"], new and new["oid"])
    ]


def diff_of(
    connection: sqlite3.Connection, objects: ObjectStore, repository: Repository, pull_request: sqlite3.Row
) -> str:
    """Return what the pull request changes, as git says it."""

    def lines(row: sqlite3.Row | None) -> list[str]:
        if row is None:
            return []
        return objects.path_of(row["sha256"]).read_text("utf-8", "replace").splitlines(keepends=True)

    parts = []
    for path, (old, new) in _changes(connection, repository, pull_request).items():
        names = f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null"
        parts.append(f"diff --git a/{path} b/{path}\n")
        if not (old and new):
            parts.append(f"{'new' if new else 'deleted'} file mode 100644\n")
        if (old and old["is_lfs"]) or (new and new["is_lfs"]):
            parts.append(f"Binary files {names[0]} and {names[1]} differ\n")
            continue
        for line in difflib.unified_diff(lines(old), lines(new), *names):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _changes(
    connection: sqlite3.Connection, repository: Repository, pull_request: sqlite3.Row
) -> dict[str, tuple[sqlite3.Row | None, sqlite3.Row | None]]:
    """Return the entries before and after, by path, of the files that the pull request changes."""
    base = connection.execute("SELECT * FROM commits WHERE id=?", (pull_request["base"],)).fetchone()
    head = find_reference(connection, repository, "branch", f"{REFERENCES}{pull_request['num']}")
    assert head is not None
    old, new = ({row["path"]: row for row in entries_below(connection, commit, "")} for commit in (base, head))
    changed = sorted(
        path
        for path in old.keys() | new.keys()
        if (path in old) != (path in new) or old[path]["oid"] != new[path]["oid"]
    )
    return {path: (old.get(path), new.get(path)) for path in changed}
