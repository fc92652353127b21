"""Commits on top of exactly the commit that was read, so that writers do not undo each other's work."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from pipelines.training.repository.snapshot import RunSnapshot

NUM_ATTEMPTS = 8


class HeadMovedError(OSError):
    """Somebody else has committed since the head was read: read it again and decide again."""


def commit_on(head: RunSnapshot, operations: Sequence[Any], message: str) -> str:
    """Commit on top of the head that was read; return the commit's id.

    Raises:
        HeadMovedError: the repository has a newer commit; nothing was changed.
    """
    try:
        info = HfApi().create_commit(head.repository, operations, commit_message=message, parent_commit=head.commit)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise HeadMovedError(f"{head.repository} has moved on from {head.commit}.") from error
        raise
    return info.oid


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
        head = RunSnapshot.read(repository, in_cache=False)
        operations = changes(head)
        if not operations:
            return None
        before_commit()
        try:
            return commit_on(head, operations, message)
        except HeadMovedError:
            continue
    raise ConnectionError(f"Others keep committing to {repository}; {NUM_ATTEMPTS} attempts failed. Try again.")
