"""The files of one commit: listings of folders, single entries, and the digests that git and LFS would give them."""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator

from ..protocol.hub_error import entry_not_found


def git_blob_oid(content: bytes) -> str:
    """Return git's digest of a file's content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """Return the pointer file that git would hold in place of an LFS content."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def find_entry(connection: sqlite3.Connection, commit: sqlite3.Row, path: str) -> sqlite3.Row | None:
    """Return the entry of the file at `path`, or None."""
    query = "SELECT * FROM entries WHERE commit_id=? AND path=?"
    return connection.execute(query, (commit["id"], path)).fetchone()


def entries_below(connection: sqlite3.Connection, commit: sqlite3.Row, folder: str) -> list[sqlite3.Row]:
    """Return the entries of all files in a folder and its subfolders, by path; "" is the whole commit."""
    arguments: tuple[object, ...]
    if not folder:
        query, arguments = "SELECT * FROM entries WHERE commit_id=? ORDER BY path", (commit["id"],)
    else:
        # '0' is the character after '/': the half-open interval holds exactly the paths below the folder.
        query = "SELECT * FROM entries WHERE commit_id=? AND path >= ? AND path < ? ORDER BY path"
        arguments = (commit["id"], f"{folder}/", f"{folder}0")
    return connection.execute(query, arguments).fetchall()


def list_tree(connection: sqlite3.Connection, commit: sqlite3.Row, folder: str, *, recursive: bool) -> list[dict]:
    """Return files and folders below `folder` as the Hub describes them, by path. Raises a 404 for a missing folder."""
    rows = entries_below(connection, commit, folder)
    if folder and not rows:
        raise entry_not_found(folder)
    depth = folder.count("/") + 1 if folder else 0
    shown = list(_folders(rows, depth, recursive=recursive))
    shown += [describe_file(row) for row in rows if recursive or row["path"].count("/") == depth]
    return sorted(shown, key=lambda item: item["path"])


def paths_info(connection: sqlite3.Connection, commit: sqlite3.Row, paths: Iterable[str]) -> list[dict]:
    """Return what is at each of the paths, leaving out those where nothing is."""
    found = []
    for path in paths:
        entry = find_entry(connection, commit, path)
        if entry is not None:
            found.append(describe_file(entry))
        elif below := entries_below(connection, commit, path.strip("/")):
            found.append(_describe_folder(path.strip("/"), below))
    return found


def describe_file(row: sqlite3.Row) -> dict:
    """Return one file as the Hub's listings describe it."""
    described = {"type": "file", "path": row["path"], "size": row["size"], "oid": row["oid"]}
    if row["is_lfs"]:
        pointer_size = len(lfs_pointer(row["sha256"], row["size"]))
        described["lfs"] = {"oid": row["sha256"], "size": row["size"], "pointerSize": pointer_size}
    return {**described, "_changed_in": row["changed_in"]}


def with_last_commits(connection: sqlite3.Connection, items: list[dict], *, expand: bool) -> list[dict]:
    """Return the items ready to send; expanded ones say which commit changed them last."""
    return [_with_last_commit(connection, item, expand=expand) for item in items]


def _with_last_commit(connection: sqlite3.Connection, item: dict, *, expand: bool) -> dict:
    sent = {key: value for key, value in item.items() if not key.startswith("_")}
    if expand:
        row = connection.execute("SELECT * FROM commits WHERE id=?", (item["_changed_in"],)).fetchone()
        # A squash forgets the commits before it; a file then was last changed by the squash itself.
        sent["lastCommit"] = row and {"id": row["oid"], "title": row["title"], "date": row["created_at"]}
    return sent


def _folders(rows: list[sqlite3.Row], depth: int, *, recursive: bool) -> Iterator[dict]:
    below: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        parts = row["path"].split("/")
        deepest = len(parts) if recursive else min(len(parts), depth + 2)
        for length in range(depth + 1, deepest):
            below.setdefault("/".join(parts[:length]), []).append(row)
    for path, inside in below.items():
        yield _describe_folder(path, inside)


def _describe_folder(path: str, below: list[sqlite3.Row]) -> dict:
    digest = hashlib.sha1(usedforsecurity=False)
    for row in below:
        digest.update(f"{row['path'].removeprefix(path)}\0{row['oid']}\n".encode())
    changed_in = max(row["changed_in"] for row in below)
    return {"type": "directory", "path": path, "size": 0, "oid": digest.hexdigest(), "_changed_in": changed_in}
