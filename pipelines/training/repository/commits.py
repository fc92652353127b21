"""Commits on top of exactly the commit that was read, so that writers undo nothing of each other's work."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from pipelines.training.repository.snapshot import RunSnapshot

NUM_ATTEMPTS = 8


class HeadMovedError(OSError):
    """Somebody else has committed since the head was read: read it again and decide anew."""


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
    """Commit what `changes` asks for in view of the newest commit; return the new commit, None if it asks for nothing.

    Others publish at the same time: a commit that came in between is read, and `changes` is asked anew.
    `before_commit` is called before each attempt.

    Raises:
        ConnectionError: others were quicker every time.
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
    raise ConnectionError(f"Others commit to {repository} all the time; {NUM_ATTEMPTS} attempts failed. Try again.")
