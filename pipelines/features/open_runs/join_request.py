"""A pull request by which a stranger asks to contribute to an open run, and what is answered: pure functions.

It adds one file that names the bucket in the stranger's own namespace. Nothing of it is ever merged: who admits him
commits the file that was expected, so whatever the pull request has become meanwhile is of no account.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from huggingface_hub.utils.sha import git_hash

from hub_tools.printing.printable import one_line
from hub_tools.run_files import VOLUNTEERS_FOLDER

USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
MOST_TITLE = 80


def own_bucket(repository: str, user: str) -> str:
    """Return the bucket in a user's own namespace in which he offers contributions to a run."""
    return f"{user}/{repository.replace('/', '.')}"


def volunteer_path(user: str) -> str:
    """Return where the run's repository says that a user contributes."""
    return f"{VOLUNTEERS_FOLDER}/{user}.yaml"


def volunteer_file(repository: str, user: str) -> bytes:
    """Return the only content of that file with which he does; with any other he is barred."""
    return f"bucket: {own_bucket(repository, user)}\n".encode()


def is_admitted(repository: str, path: str, digest: str) -> str | None:
    """Return whom a file of the run's repository admits, by Git's digest of its content; None: nobody."""
    user = path.removeprefix(f"{VOLUNTEERS_FOLDER}/").removesuffix(".yaml")
    if not USER.fullmatch(user) or path != volunteer_path(user):
        return None
    return user if git_hash(volunteer_file(repository, user)) == digest else None


@dataclass(frozen=True, kw_only=True)
class RequestAnswer:
    """What is done about a pull request."""

    admits: str = ""
    """The user who contributes from now on."""

    closes_with: str = ""
    """What the closed pull request is told."""

    leaves: str = ""
    """Why it is left to the organiser."""


def answer_to(request: Mapping[str, object], repository: str, barred: frozenset[str]) -> RequestAnswer:
    """Return what is to be done about an open pull request, given as the Hub describes it, with its changes.

    `barred` are those of whom the repository has another file than the one that admits them.
    """
    if request.get("status") != "open":
        return RequestAnswer()
    diff, author = request.get("diff"), request.get("author")
    # Not by `splitlines`: what it takes for the end of a line may be within one of the stranger's file.
    lines = diff.split("\n") if isinstance(diff, str) else []
    changed = [line for line in lines if line.startswith("diff --git ")]
    if len(changed) != 1 or not changed[0].startswith(f"diff --git a/{VOLUNTEERS_FOLDER}/"):
        title = one_line(request.get("title", ""), MOST_TITLE)
        return RequestAnswer(leaves=f"it changes {len(changed)} files and asks for something else: {title}")
    user = author.get("name") if isinstance(author, dict) else None
    if not isinstance(user, str) or not USER.fullmatch(user):
        return RequestAnswer(closes_with="The author of this pull request has no account any more.")
    if user in barred:
        return RequestAnswer(closes_with=f"The organiser of {repository} has barred {user}.")
    path, expected = volunteer_path(user), volunteer_file(repository, user).decode()
    body = lines[next((number for number, line in enumerate(lines) if line.startswith("@@")), len(lines)) + 1 :]
    added = "\n".join(line[1:] for line in body if line.startswith("+"))
    if changed[0] != f"diff --git a/{path} b/{path}" or added != expected.rstrip("\n"):
        return RequestAnswer(
            closes_with=f"Expected one new file, `{path}`, with the content `{expected.strip()}`. "
            f"This command asks so: `dalle-collab join {repository}`"
        )
    return RequestAnswer(admits=user)
