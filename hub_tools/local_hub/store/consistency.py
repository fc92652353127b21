"""Is everything that the Hub refers to really on its disk, and what on its disk is unused?"""

from dataclasses import dataclass, field
from pathlib import Path

from .object_store import digest_of_file
from .storage import HubStorage


@dataclass(frozen=True, kw_only=True)
class ConsistencyReport:
    """What a check of a Hub's root found."""

    problems: tuple[str, ...] = field(default=())
    """One line for each missing or damaged thing; empty for a sound Hub."""

    num_commits: int = 0
    """Commits checked."""

    num_contents: int = 0
    """Contents that commits and buckets refer to."""

    unused: tuple[str, ...] = field(default=())
    """Digests of contents that no commit refers to: interrupted uploads, deleted repositories."""


def check_consistency(root: Path | str) -> ConsistencyReport:
    """Compare every content with its digest, and every commit and branch with what it refers to. Changes nothing."""
    storage = _existing(Path(root))
    with storage.database.reading() as connection:
        problems = [f"database: {row[0]}" for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        problems += [f"database: dangling {row[0]} row" for row in connection.execute("PRAGMA foreign_key_check")]
        contents = dict(
            connection.execute(
                """SELECT DISTINCT sha256, size FROM entries JOIN commits ON commits.id = entries.commit_id
                   WHERE (commits.repository, sha256) NOT IN (SELECT repository, sha256 FROM deleted_contents)"""
            ).fetchall()
        )
        contents |= dict(connection.execute("SELECT sha256, size FROM xorbs").fetchall())
        num_commits = connection.execute("SELECT count(*) FROM commits").fetchone()[0]
        without_main = connection.execute(
            """SELECT namespace || '/' || name FROM repositories WHERE NOT EXISTS
               (SELECT 1 FROM refs WHERE repository = repositories.id AND kind='branch' AND refs.name='main')"""
        ).fetchall()
    problems += [f"repository {row[0]} has no branch main" for row in without_main]
    problems += [problem for sha256, size in contents.items() if (problem := _content_problem(storage, sha256, size))]
    unused = sorted(set(storage.objects.all_digests()) - set(contents))
    return ConsistencyReport(
        problems=tuple(problems), num_commits=num_commits, num_contents=len(contents), unused=tuple(unused)
    )


def remove_unused(root: Path | str) -> int:
    """Remove contents that no commit refers to, and return how many. Raises ValueError while a server uses the root."""
    storage = _existing(Path(root))
    with storage.sole_server():
        unused = check_consistency(root).unused
        with storage.database.writing() as connection:
            connection.executemany("DELETE FROM uploads WHERE sha256=?", [(sha256,) for sha256 in unused])
        for sha256 in unused:
            storage.objects.path_of(sha256).unlink()
    return len(unused)


def _existing(root: Path) -> HubStorage:
    storage = HubStorage(root)
    if not storage.database.path.is_file():
        raise ValueError(
            f"{root} is not the root of a Hub: it has no {storage.database.path.name}. Give the right --root"
        )
    return storage


def _content_problem(storage: HubStorage, sha256: str, size: int) -> str | None:
    path = storage.objects.path_of(sha256)
    if not path.is_file():
        return f"content {sha256} is missing"
    if path.stat().st_size != size:
        return f"content {sha256} has {path.stat().st_size} bytes, expected {size}"
    return None if digest_of_file(path) == sha256 else f"content {sha256} is damaged"
