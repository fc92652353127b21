"""Who contributes to an open run without being a member: the files in its repository, a listing without downloads."""

import itertools
from dataclasses import dataclass

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile

from hub_tools.run_files import VOLUNTEERS_FOLDER
from pipelines.features.open_runs.join_request import is_admitted

MOST_VOLUNTEERS = 1000
"""Strangers that a run has; each costs who closes the rounds one of the resolver's requests a round."""

MOST_FILES = 5000


@dataclass(frozen=True, kw_only=True)
class ListedVolunteers:
    """What a run's repository says of strangers."""

    admitted: frozenset[str]
    barred: frozenset[str]
    """Users, and whatever else files there are named after, whose file does not admit them."""


def listed_volunteers(repository: str, revision: str | None = None) -> ListedVolunteers:
    """Return the strangers whom a run's repository admits, and those whom it bars.

    Raises:
        HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer, or refuses.
    """
    admitted, others = [], []
    try:
        tree = HfApi().list_repo_tree(repository, VOLUNTEERS_FOLDER, revision=revision)
        for file in itertools.islice(tree, MOST_FILES):
            user = is_admitted(repository, file.path, file.blob_id) if isinstance(file, RepoFile) else None
            if user is not None:
                admitted.append(user)
            else:
                others.append(file.path.removeprefix(f"{VOLUNTEERS_FOLDER}/").removesuffix(".yaml"))
    except EntryNotFoundError:  # nobody has asked yet
        pass
    return ListedVolunteers(admitted=frozenset(admitted[:MOST_VOLUNTEERS]), barred=frozenset(others))
