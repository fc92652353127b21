"""Commits on top of exactly the commit that was read, so that writers do not undo each other's work."""

from collections.abc import Callable, Sequence
from typing import Any

from hub_tools.publishing.commits import NUM_ATTEMPTS, HeadMovedError, commit_on, patiently
from pipelines.training.repository.snapshot import RunSnapshot


def commit_changes(
    repository: str,
    changes: Callable[[RunSnapshot], Sequence[Any]],
    message: str,
    *,
    before_commit: Callable[[], None] = lambda: None,
) -> str | None:
    """Commit what `changes` returns for the newest commit; return the new commit, None if there is nothing to change.

    Others publish at the same time: if a commit came in between, it is read and `changes` is called again.
    `before_commit` is called before each attempt.

    Raises:
        ConnectionError: others were faster every time.
    """
    for _ in range(NUM_ATTEMPTS):
        head = patiently(lambda: RunSnapshot.read(repository, in_cache=False))
        operations = changes(head)
        if not operations:
            return None
        before_commit()
        try:
            return commit_on(head.commit, repository, operations, message).oid
        except HeadMovedError:
            continue
    raise ConnectionError(f"Others keep committing to {repository}; {NUM_ATTEMPTS} attempts failed. Try again.")
