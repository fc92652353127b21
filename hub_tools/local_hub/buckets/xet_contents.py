"""Contents that came through Xet: xorbs in the object store, and which of their chunks make up which file.

All that a client claims is worked out again from the bytes, so nobody can put other bytes under another's hash. A xorb
is kept for good: clients remember what they have uploaded and do not send it twice.
"""

import json
import sqlite3
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..protocol.hub_error import HTTPStatus, HubError, bad_request
from .xet_formats import EMPTY_FILE, Chunk, FileRecipe, Term, file_hash

CHUNK = struct.Struct("<32sII")
MAX_SHARD_CHUNKS = 1 << 19
"""Files of about 32 GiB."""


@dataclass(frozen=True, kw_only=True)
class XetFile:
    """A content that a bucket's file can have."""

    hash: str
    size: int
    terms: tuple[Term, ...]


def has_xorb(connection: sqlite3.Connection, name: str) -> bool:
    """Say whether a xorb is here."""
    return connection.execute("SELECT 1 FROM xorbs WHERE hash=?", (name,)).fetchone() is not None


def record_xorb(connection: sqlite3.Connection, name: str, sha256: str, size: int, chunks: Sequence[Chunk]) -> None:
    """Remember a xorb whose body is in the object store under `sha256`."""
    packed = b"".join(CHUNK.pack(chunk.hash, chunk.end, chunk.length) for chunk in chunks)
    connection.execute("INSERT OR IGNORE INTO xorbs VALUES (?, ?, ?, ?)", (name, sha256, size, packed))


def record_files(connection: sqlite3.Connection, bucket: int, recipes: Sequence[FileRecipe]) -> None:
    """Remember what files consist of, and that they were uploaded to this bucket; raises a 400 for a false recipe."""
    # One small shard could name the same thousands of chunks a million times.
    if (num_chunks := sum(term.end - term.first for recipe in recipes for term in recipe.terms)) > MAX_SHARD_CHUNKS:
        raise bad_request(f"The shard's files have {num_chunks} chunks, this Hub takes {MAX_SHARD_CHUNKS} at a time")
    for recipe in recipes:
        chunks = [chunk for term in recipe.terms for chunk in _chunks_of(connection, term)]
        if recipe.hash != file_hash(chunks):
            raise bad_request(f"The chunks listed for file {recipe.hash} do not make up that file")
        terms = json.dumps([(term.xorb, term.first, term.end) for term in recipe.terms])
        size = sum(chunk.length for chunk in chunks)
        connection.execute("INSERT OR IGNORE INTO xet_files VALUES (?, ?, ?)", (recipe.hash, size, terms))
        # The bucket may have been deleted while the upload ran.
        query = "INSERT OR IGNORE INTO xet_uploads SELECT id, ? FROM buckets WHERE id=?"
        connection.execute(query, (recipe.hash, bucket))


def uploaded_size(connection: sqlite3.Connection, bucket: int, name: object) -> int | None:
    """Return the bytes of a content that was uploaded to this bucket; None if none of that hash was."""
    if name == EMPTY_FILE:
        return 0
    query = """SELECT size FROM xet_files JOIN xet_uploads ON xet_uploads.hash = xet_files.hash
               WHERE bucket=? AND xet_files.hash=?"""
    row = connection.execute(query, (bucket, str(name))).fetchone()
    return row["size"] if row else None


def file_in_bucket(connection: sqlite3.Connection, bucket: int, name: str) -> XetFile:
    """Return a content if a file of this bucket has it, else raise the 404."""
    query = """SELECT * FROM xet_files WHERE hash=?2 AND EXISTS
               (SELECT 1 FROM bucket_files WHERE bucket=?1 AND hash=?2)"""
    row = connection.execute(query, (bucket, name)).fetchone()
    if row is None:
        raise HubError(HTTPStatus.NOT_FOUND, f"No file of this bucket has the hash {name}")
    return XetFile(hash=name, size=row["size"], terms=tuple(Term(*term) for term in json.loads(row["terms"])))


def xorb_sha256(connection: sqlite3.Connection, name: str) -> str | None:
    """Return under which digest a xorb's body is in the object store; None if the xorb is not here."""
    row = connection.execute("SELECT sha256 FROM xorbs WHERE hash=?", (name,)).fetchone()
    return row["sha256"] if row else None


def terms_of(connection: sqlite3.Connection, file: XetFile, start: int, end: int) -> tuple[int, list[tuple[Term, int]]]:
    """Return the terms of the chunks that hold the file's bytes from `start` to before `end`, each with its length.

    The first number is how many bytes to skip in them.
    """
    found: list[tuple[Term, int]] = []
    position = skipped = 0
    for term in file.terms:
        wanted: list[tuple[int, int]] = []
        for index, chunk in enumerate(_chunks_of(connection, term), term.first):
            if position < end and position + chunk.length > start:
                if not wanted and not found:
                    skipped = start - position
                wanted.append((index, chunk.length))
            position += chunk.length
        if wanted:
            part = Term(term.xorb, wanted[0][0], wanted[-1][0] + 1)
            found.append((part, sum(length for _, length in wanted)))
    return skipped, found


def joined(terms: Iterable[Term]) -> list[Term]:
    """Return terms with the same chunks, each of them once: clients fail on ranges that overlap."""
    result: list[Term] = []
    for term in sorted(terms, key=lambda it: (it.xorb, it.first, it.end)):
        if result and result[-1].xorb == term.xorb and term.first <= result[-1].end:
            result[-1] = Term(term.xorb, result[-1].first, max(term.end, result[-1].end))
        else:
            result.append(term)
    return result


def bytes_of(connection: sqlite3.Connection, term: Term) -> tuple[int, int]:
    """Return where a term's chunks are in the body of their xorb: the first byte, and the last that is theirs."""
    chunks = _chunks_of(connection, Term(term.xorb, 0, term.end))
    return (chunks[term.first - 1].end if term.first else 0), chunks[-1].end - 1


def spans_of(connection: sqlite3.Connection, file: XetFile) -> list[tuple[str, int, int]]:
    """Return where a file's chunks are, in order: digest of a xorb's body, first byte in it, last byte."""
    spans = []
    for term in file.terms:
        sha256 = xorb_sha256(connection, term.xorb)
        assert sha256 is not None, "a recipe was checked against its xorbs, which are kept for good"
        spans.append((sha256, *bytes_of(connection, term)))
    return spans


def _chunks_of(connection: sqlite3.Connection, term: Term) -> list[Chunk]:
    row = connection.execute("SELECT chunks FROM xorbs WHERE hash=?", (term.xorb,)).fetchone()
    packed = row["chunks"] if row else b""
    if not 0 <= term.first < term.end <= len(packed) // CHUNK.size:
        raise bad_request(f"There are no chunks {term.first} to {term.end} of xorb {term.xorb} here: upload it first")
    return [Chunk(*values) for values in CHUNK.iter_unpack(packed[term.first * CHUNK.size : term.end * CHUNK.size])]
