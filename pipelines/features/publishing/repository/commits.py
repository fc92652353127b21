"""Commits on top of exactly the commit that was read, so that writers do not undo each other's work."""

from collections.abc import Callable, Sequence

from hub_tools.publishing.commits import Operation, commit_on, on_newer_heads, patiently
from pipelines.features.publishing.repository.snapshot import RunSnapshot


def commit_changes(
    repository: str,
    changes: Callable[[RunSnapshot], Sequence[Operation]],
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

    def attempt() -> str | None:
        head = patiently(lambda: RunSnapshot.read(repository, in_cache=False))
        operations = changes(head)
        if not operations:
            return None
        before_commit()
        return commit_on(head.commit, repository, operations, message).oid

    return on_newer_heads(repository, attempt)
