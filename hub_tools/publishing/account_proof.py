"""Proof of a Hub account to an admission service that must not see the account's token.

The volunteer writes a file into a public repository of his, and the service looks whether it is there. Only the account
can put it there. Its name is a digest of what it is for, and of a nonce that nobody else knows but the service: it says
nothing to others, and is worth nothing elsewhere.
"""

from functools import cached_property

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from .commits import commit_over, patiently

PROOF_REPOSITORY = "dalle-collab-proof"
PROOF_TEXT = (
    b"Shows an admission service of dalle-collab whose a peer is. Without the file the peer is not admitted again.\n"
)
HUB_ERRORS = (HfHubHTTPError, httpx2.HTTPError, OSError)


class NoRightsError(ValueError):
    """The token of the Hub account does not suffice; the message says for what, and what to do."""


def is_placed(api: HfApi, username: str, name: str) -> bool:
    """Tell whether a user's repository has the file, as `api` sees it.

    Raises:
        huggingface_hub.errors.HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer.
    """
    response = get_session().post(
        f"{api.endpoint}/api/models/{username}/{PROOF_REPOSITORY}/paths-info/main",
        data={"paths": [name]},
        headers=build_hf_headers(token=api.token),
        follow_redirects=False,  # to the repository of somebody else, who has it from this user
    )
    if response.is_redirect or response.status_code in (401, 403, 404):
        return False
    hf_raise_for_status(response)
    found = response.json()
    return isinstance(found, list) and {"file"} == {item.get("type") for item in found if item.get("path") == name}


class HubAccount:
    """The volunteer's account, which `api` has the token of."""

    def __init__(self, api: HfApi) -> None:
        self.api = api
        self._placed = set[str]()

    @property
    def username(self) -> str:
        """The account's name.

        Raises:
            NoRightsError: the Hub does not know the token.
            huggingface_hub.errors.HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer.
        """
        return str(self._described["name"])

    def place(self, name: str) -> None:
        """Put a file of this name into the account's public repository, once; create the repository if need be.

        Raises:
            NoRightsError: the token may not do that.
            huggingface_hub.errors.HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer.
        """
        if name in self._placed:
            return
        repository = f"{self.username}/{PROOF_REPOSITORY}"
        try:
            try:
                self._upload(repository, name)
            except RepositoryNotFoundError:
                self.api.create_repo(repository, private=False, exist_ok=True)
                self._upload(repository, name)
        except HfHubHTTPError as error:
            if error.response.status_code not in (401, 403, 404):
                raise
            # Not `from error`: the client's error may show the request's headers.
            raise NoRightsError(
                f"your Hub token may not write to {repository}, where a file is to show the admission service that you "
                f"are {self.username}. Create that public repository, and a fine-grained token that may write to it "
                f"alone: {self.api.endpoint}/settings/tokens; then: hf auth login"
            ) from None
        self._placed.add(name)

    def _upload(self, repository: str, name: str) -> None:
        proof = CommitOperationAdd(path_in_repo=name, path_or_fileobj=PROOF_TEXT)
        head = str(patiently(lambda: self.api.repo_info(repository)).sha)
        commit_over(head, repository, [proof], "Show whose a peer is", api=self.api)

    @cached_property
    def _described(self) -> dict:
        try:
            return self.api.whoami()
        except HfHubHTTPError as error:
            if error.response.status_code not in (401, 403):
                raise
            raise NoRightsError(
                f"the Hub at {self.api.endpoint} does not know your token. Create one, and log in: hf auth login"
            ) from None
