"""The Hub's one database: who may do what, which repositories there are, and which commits they consist of.

A commit becomes visible in one SQLite transaction (write-ahead log, synchronous), after its contents are on disk.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ..protocol.hub_error import disk_full

SCHEMA_VERSION = 1
BUSY_TIMEOUT_SECONDS = 30

SCHEMA = """
CREATE TABLE users (name TEXT PRIMARY KEY COLLATE NOCASE, created_at TEXT NOT NULL) STRICT;
CREATE TABLE organizations (name TEXT PRIMARY KEY COLLATE NOCASE, created_at TEXT NOT NULL) STRICT;
CREATE TABLE members (
    organization TEXT NOT NULL REFERENCES organizations(name) ON DELETE CASCADE,
    user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('read', 'contributor', 'write', 'admin')),
    PRIMARY KEY (organization, user)
) STRICT;
CREATE TABLE tokens (
    sha256 TEXT PRIMARY KEY,
    user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('read', 'contributor', 'write')),
    created_at TEXT NOT NULL
) STRICT;
CREATE TABLE repositories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL CHECK (type IN ('model', 'dataset', 'space')),
    namespace TEXT NOT NULL COLLATE NOCASE,
    name TEXT NOT NULL COLLATE NOCASE,
    private INTEGER NOT NULL,
    sdk TEXT,
    hardware TEXT,
    sleep_seconds INTEGER,
    stage TEXT NOT NULL DEFAULT 'STOPPED',
    created_at TEXT NOT NULL,
    UNIQUE (type, namespace, name)
) STRICT;
CREATE TABLE commits (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    oid TEXT NOT NULL,
    parent INTEGER,
    author TEXT NOT NULL,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (repository, oid)
) STRICT;
CREATE TABLE entries (
    commit_id INTEGER NOT NULL REFERENCES commits(id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    oid TEXT NOT NULL,
    is_lfs INTEGER NOT NULL,
    changed_in INTEGER NOT NULL,
    PRIMARY KEY (commit_id, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_content ON entries (sha256);
CREATE TABLE refs (
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('branch', 'tag')),
    name TEXT NOT NULL,
    commit_id INTEGER NOT NULL REFERENCES commits(id),
    message TEXT,
    PRIMARY KEY (repository, kind, name)
) STRICT;
CREATE TABLE uploads (
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (repository, sha256)
) STRICT, WITHOUT ROWID;
CREATE TABLE space_settings (
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('secret', 'variable')),
    key TEXT NOT NULL,
    value TEXT,
    description TEXT,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (repository, kind, key)
) STRICT;
"""

ADDED_TABLES = """
CREATE TABLE IF NOT EXISTS deleted_contents (
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (repository, sha256)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS buckets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL COLLATE NOCASE,
    name TEXT NOT NULL COLLATE NOCASE,
    private INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (namespace, name)
) STRICT;
CREATE TABLE IF NOT EXISTS bucket_files (
    bucket INTEGER NOT NULL REFERENCES buckets(id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    hash TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    uploaded_at TEXT NOT NULL,
    PRIMARY KEY (bucket, path)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS creators (
    kind TEXT NOT NULL CHECK (kind IN ('repository', 'bucket')),
    id INTEGER NOT NULL,
    user TEXT NOT NULL COLLATE NOCASE,
    token TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pull_requests (
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    num INTEGER NOT NULL,
    title TEXT NOT NULL,
    author TEXT NOT NULL COLLATE NOCASE,
    status TEXT NOT NULL CHECK (status IN ('open', 'closed', 'merged')),
    base INTEGER NOT NULL,
    merge_oid TEXT,
    created_at TEXT NOT NULL,
    PRIMARY KEY (repository, num)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pull_request_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    repository INTEGER NOT NULL REFERENCES repositories(id) ON DELETE CASCADE,
    num INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('comment', 'status-change', 'commit')),
    author TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL COLLATE NOCASE,
    user TEXT NOT NULL,
    spec TEXT NOT NULL,
    stage TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS xorbs (
    hash TEXT PRIMARY KEY,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    chunks BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS xet_files (hash TEXT PRIMARY KEY, size INTEGER NOT NULL, terms TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS xet_uploads (
    bucket INTEGER NOT NULL REFERENCES buckets(id) ON DELETE CASCADE,
    hash TEXT NOT NULL,
    PRIMARY KEY (bucket, hash)
) STRICT, WITHOUT ROWID;
"""
"""Tables that roots made by an earlier version lack, created when these are opened."""


class Database:
    """Opens a connection for each piece of work: SQLite connections belong to one thread, requests come on many."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the tables where they are missing. Raises ValueError for a root of another version."""
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise ValueError(
                    f"{self.path} has format {version}, this Hub knows {SCHEMA_VERSION}. "
                    "Update the package: pip install -U dalle-collab"
                )
            if version == 0:
                for statement in filter(str.strip, SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            for statement in filter(str.strip, ADDED_TABLES.split(";")):
                connection.execute(statement)
            for table in ("members", "tokens"):
                _let_in_contributors(connection, table)
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees one consistent state of the Hub throughout."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the one connection that may write now; all its changes are committed, or dropped on an exception."""
        with self._connection() as connection, _full_disk_as_answer():
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as it:
            it.row_factory = sqlite3.Row
            it.execute("PRAGMA foreign_keys=ON")
            it.execute("PRAGMA synchronous=FULL")
            yield it


def timestamp(at: datetime | None = None) -> str:
    """Return a time, the current one if none is given, as the Hub writes it, in UTC with milliseconds."""
    return (at or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _let_in_contributors(connection: sqlite3.Connection, table: str) -> None:
    """Make a table anew that an earlier version made, whose check refuses the role; nothing refers to its rows."""
    (made,) = connection.execute("SELECT sql FROM sqlite_master WHERE name=?", (table,)).fetchone()
    if "'contributor'" not in made:
        connection.execute(f"ALTER TABLE {table} RENAME TO former")
        connection.execute(made.replace("('read', ", "('read', 'contributor', "))
        connection.execute(f"INSERT INTO {table} SELECT * FROM former")
        connection.execute("DROP TABLE former")


@contextlib.contextmanager
def _full_disk_as_answer() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise disk_full(error) from error
        raise
