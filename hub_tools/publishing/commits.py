"""The one way from here into a repository: each commit on top of a head that was read, tried again, made once.

A Hub that is busy refuses commits that could be made a minute later, and the answer to one that was made can get lost.
So before a commit is tried again, the history is read: what names its parent is, if anything, the parent's next commit.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TypeVar

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.sha import git_hash

from hub_tools.hub_client import NotTheHubError, is_outage
from hub_tools.waiting.outages import through_outages

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 160.0
"""The Hub counts requests in windows of five minutes; for the end of one it waits twice as long."""

PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
NUM_ATTEMPTS = 20
MOST_PATHS = 500
"""That the Hub is asked about at once."""

Operation = CommitOperationAdd | CommitOperationDelete | CommitOperationCopy
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit on the Hub: its address for people, and its id."""

    url: str
    oid: str


class HeadMovedError(OSError):
    """Somebody else has committed since the head was read: read it again and decide again."""


def propose_commit(repository: str, operations: Sequence[Operation], *, title: str, description: str) -> int | None:
    """Open a pull request with one commit; return its number, None: the Hub has named none.

    Raises:
        HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer, or refuses.
    """
    made = HfApi().create_commit(
        repository, operations, commit_message=title, commit_description=description, create_pr=True
    )
    return made.pr_num


def patiently(ask: Callable[[], Value]) -> Value:
    """Return what `ask`, which may be repeated, returns; try again for some minutes while the Hub that answers is busy.

    A Hub that cannot be reached at all is an error at once: its address may be wrong.
    """
    return through_outages(
        ask,
        PAUSES_SECONDS,
        limit_seconds=PATIENCE_SECONDS,
        is_passing=lambda error: _may_pass(error) and not isinstance(error, httpx2.ConnectError),
        what="The Hub does not answer properly",
    )


@contextlib.contextmanager
def understood_answers() -> Iterator[None]:
    """Turn what the client raises for JSON that is none, or not what it expects, into a ConnectionError."""
    try:
        yield
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ConnectionError("The Hub's answer cannot be understood. Try again in a few minutes") from error


def commit_on(
    parent: str,
    repository: str,
    operations: Sequence[Operation],
    message: str,
    *,
    repo_type: str | None = None,
    api: HfApi | None = None,
    limit_seconds: float = PATIENCE_SECONDS,
) -> Commit:
    """Commit on top of exactly this commit, and return the new one; where nothing differs from the head, the head.

    While the Hub is down or busy it is tried again for `limit_seconds`, with a line each time.

    Raises:
        HeadMovedError: the repository has a newer commit, and it is not this one; nothing was changed.
        HfHubHTTPError, httpx2.HTTPError, OSError: the Hub refuses, or was busy for too long.
    """
    place, attempts = _Place(api or HfApi(), repository, repo_type), itertools.count()

    def attempt() -> Commit:
        fresh = operations
        if next(attempts):
            if (made := place.made_on(parent, operations)) is not None:
                return made
            fresh = _copies(operations)
        try:
            with understood_answers():
                new = place.api.create_commit(
                    repository, fresh, commit_message=message, repo_type=repo_type, parent_commit=parent
                )
                return Commit(url=new.commit_url, oid=new.oid)
        except HfHubHTTPError as error:
            if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
                raise
            if (made := place.made_on(parent, operations)) is not None:
                return made
            # No other commit has come in between: one is being made.
            raise ConnectionError(f"{repository} is busy with another commit. Try again in a few minutes") from error

    return through_outages(
        attempt, PAUSES_SECONDS, limit_seconds=limit_seconds, is_passing=_may_pass, what=f"{repository} took no commit"
    )


def commit_over(
    parent: str,
    repository: str,
    operations: Sequence[Operation],
    message: str,
    *,
    repo_type: str | None = None,
    api: HfApi | None = None,
) -> Commit:
    """Commit on top of this commit as `commit_on` does, or of newer ones that have not touched the same files.

    Raises:
        ValueError: others have changed one of these files since.
        ConnectionError: others were faster every time.
    """
    api = api or HfApi()
    place, head, left = _Place(api, repository, repo_type), parent, list(operations)

    def attempt() -> Commit:
        nonlocal head, left
        try:
            return commit_on(head, repository, left, message, repo_type=repo_type, api=api)
        except HeadMovedError:
            head, left = patiently(lambda: place.on_newest(head, left))
            raise

    return on_newer_heads(repository, attempt)


def on_newer_heads(repository: str, attempt: Callable[[], Value]) -> Value:
    """Return what `attempt` returns, which is repeated after a HeadMovedError: it reads the head, or has read it.

    Raises ConnectionError if others were faster every time.
    """
    for _ in range(NUM_ATTEMPTS):
        with contextlib.suppress(HeadMovedError):
            return attempt()
    raise ConnectionError(f"Others keep committing to {repository}; {NUM_ATTEMPTS} attempts failed. Try again.")


@dataclasses.dataclass(frozen=True)
class _Place:
    api: HfApi
    repository: str
    repo_type: str | None

    def head(self) -> str:
        return str(self.api.repo_info(self.repository, repo_type=self.repo_type).sha)

    def made_on(self, parent: str, operations: Sequence[Operation]) -> Commit | None:
        """Return the commit on top of the parent if it is this one, None if there is none; else HeadMovedError."""
        if (head := self.head()) == parent:
            return None
        history = self.api.list_repo_commits(self.repository, repo_type=self.repo_type, revision=head)
        following = [after.commit_id for after, before in itertools.pairwise(history) if before.commit_id == parent]
        if not following or not self._has(operations, following[0]):
            raise HeadMovedError(f"{self.repository} has moved on from {parent}.")
        oid, kind = following[0], "" if self.repo_type in (None, "model") else f"{self.repo_type}s/"
        logger.info("The commit %s of %s was made, though the Hub did not say so.", oid, self.repository)
        url = f"{self.api.endpoint}/{kind}{self.repository}/commit/{oid}"
        return Commit(url=url, oid=oid)

    def on_newest(self, parent: str, operations: Sequence[Operation]) -> tuple[str, list[Operation]]:
        """Return the head, and what is left to do there; ValueError if others have changed one of these files."""
        head, paths = self.head(), [operation.path_in_repo for operation in operations]
        before, now = self._identities(paths, parent), self._identities(paths, head)
        for operation in operations:
            path = operation.path_in_repo
            if path in now and before.get(path) != now[path] and not _is(operation, now[path]):
                raise ValueError(
                    f"{path} of {self.repository} was changed by somebody else while this was published: look at "
                    f"commit {head[:12]}, then run the same command again"
                )
        return head, _copies(
            it for it in operations if it.path_in_repo in now or not isinstance(it, CommitOperationDelete)
        )

    def _has(self, operations: Sequence[Operation], revision: str) -> bool:
        """Tell whether a commit has all files that were to be added, and none that were to be deleted."""
        found = self._identities([operation.path_in_repo for operation in operations], revision)
        return all(isinstance(it, CommitOperationCopy) or _is(it, found.get(it.path_in_repo, "")) for it in operations)

    def _identities(self, paths: Sequence[str], revision: str) -> dict[str, str]:
        parts = [list(paths[start : start + MOST_PATHS]) for start in range(0, len(paths), MOST_PATHS)]
        found = [
            item
            for part in parts
            for item in self.api.get_paths_info(self.repository, part, revision=revision, repo_type=self.repo_type)
        ]
        return {it.path: it.lfs.sha256 if it.lfs else it.blob_id for it in found if isinstance(it, RepoFile)}


def _copies(operations: Iterable[Operation]) -> list[Operation]:
    """Return operations as they were before the client noted in them what it found on the Hub."""
    return [dataclasses.replace(operation) for operation in operations]


def _is(operation: Operation, identity: str) -> bool:
    """Tell whether a file of the repository, known by its SHA-256 or Git's digest, is what an operation leaves there.

    An empty identity is that of a file that is not there.
    """
    if isinstance(operation, CommitOperationAdd) and len(identity) == 64:
        return bool(operation.upload_info.sha256.hex() == identity)
    if isinstance(operation, CommitOperationAdd) and identity:
        with operation.as_file() as file:
            return git_hash(file.read()) == identity
    return isinstance(operation, CommitOperationDelete) and not identity


def _may_pass(error: Exception) -> bool:
    return is_outage(error) and not isinstance(error, NotTheHubError)
