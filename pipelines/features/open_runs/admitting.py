"""Admitting strangers to an open run: the auxiliary peer looks for their pull requests, and answers them.

Thousands of pull requests cost no more than `MOST_LISTED` and `MOST_READ` say: the newest are seen first, so nobody
hides another's by opening many before it.
"""

import contextlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers

from hub_tools.endpoint import current_endpoint
from hub_tools.hub_client import is_outage, request_json
from hub_tools.one_line_errors import explain_error
from hub_tools.publishing.commits import commit_on, on_newer_heads, patiently
from pipelines.features.open_runs.join_request import RequestAnswer, answer_to, volunteer_file, volunteer_path
from pipelines.features.open_runs.volunteer_list import MOST_VOLUNTEERS, ListedVolunteers, listed_volunteers

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 60.0
SECONDS_OF_A_REQUEST = 30.0
MOST_LISTED = 500
MOST_READ = 20
MOST_TRIES = 3


class JoinRequestDesk:
    """Answers the pull requests of one run. Used by one thread."""

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._tries: Counter[int] = Counter()
        """How often each was read in vain; `MOST_TRIES`, and it is left to the organiser."""

    def look(self) -> None:
        """Answer the open pull requests.

        Raises:
            HfHubHTTPError, httpx2.HTTPError, OSError: the Hub does not answer, or refuses; the next look does the rest.
        """
        volunteers = listed_volunteers(self._repository)
        answers = {num: self._answer(num, volunteers) for num in self._unanswered()}
        admitted = {num: answer.admits for num, answer in answers.items() if answer.admits}
        new = sorted(set(admitted.values()) - volunteers.admitted)
        if len(new) + len(volunteers.admitted) > MOST_VOLUNTEERS:
            new = new[: MOST_VOLUNTEERS - len(volunteers.admitted)]
            logger.warning("%s has %d volunteers; others wait until one is removed.", self._repository, MOST_VOLUNTEERS)
        if new:
            self._admit(new)
        for num, user in admitted.items():
            if user in new or user in volunteers.admitted:
                self._close(num, f"{user} contributes to {self._repository}.")
        for num, answer in answers.items():
            if answer.closes_with:
                self._close(num, answer.closes_with)
            elif answer.leaves:
                self._tries[num] = MOST_TRIES
                url = f"{current_endpoint()}/{self._repository}/discussions/{num}"
                logger.warning("The pull request %s is left to the organiser: %s", url, answer.leaves)

    def _unanswered(self) -> list[int]:
        """Return the numbers of the newest pull requests that nobody has answered; one of each author."""
        found: dict[str, int] = {}
        open_ones = HfApi().get_repo_discussions(
            self._repository, discussion_type="pull_request", discussion_status="open"
        )
        for one in itertools.islice(open_ones, MOST_LISTED):
            is_new = one.is_pull_request and one.status == "open" and self._tries[one.num] < MOST_TRIES
            if is_new and len(found) < MOST_READ:
                found.setdefault(one.author, one.num)
        return sorted(found.values())

    def _answer(self, num: int, volunteers: ListedVolunteers) -> RequestAnswer:
        """Read a pull request with its changes, as far as they are short, in one request."""
        address = f"{current_endpoint()}/api/models/{self._repository}/discussions/{num}?diff=1"
        try:
            status, value = request_json("GET", address, seconds=SECONDS_OF_A_REQUEST, headers=build_hf_headers())
        except ValueError as error:
            return RequestAnswer(leaves=str(error))
        except (OSError, httpx2.HTTPError) as error:
            status, value = 0, explain_error(error)
        if status == HTTPStatus.OK and isinstance(value, dict):
            return answer_to(value, self._repository, volunteers.barred)
        # One that the Hub takes too long to describe does not keep the others waiting.
        self._tries[num] += 1
        logger.debug("The pull request %d of %s cannot be read: %d %.200r", num, self._repository, status, value)
        return RequestAnswer()

    def _admit(self, users: list[str]) -> None:
        api, more = HfApi(), f" and {len(users) - 1} more" if len(users) > 1 else ""

        def attempt() -> None:
            head = str(patiently(lambda: api.repo_info(self._repository)).sha)
            listed = listed_volunteers(self._repository, head)  # the organiser may have barred one meanwhile
            fresh = [user for user in users if user not in listed.admitted | listed.barred]
            files = [CommitOperationAdd(volunteer_path(user), volunteer_file(self._repository, user)) for user in fresh]
            if files:
                commit_on(head, self._repository, files, f"Volunteer {users[0]}{more}")

        on_newer_heads(self._repository, attempt)
        logger.info("%s admits %s%s.", self._repository, users[0], more)

    def _close(self, num: int, words: str) -> None:
        try:
            HfApi().change_discussion_status(self._repository, num, "closed", comment=words)
        except HfHubHTTPError as error:  # its author may have closed or deleted it
            if is_outage(error):
                raise
            self._tries[num] += 1
            logger.warning("The pull request %d cannot be closed: %s", num, explain_error(error))


@contextlib.contextmanager
def admitting_strangers(
    repository: str, may_admit: Callable[[], bool], seconds: float = SECONDS_BETWEEN_LOOKS
) -> Iterator[None]:
    """Answer pull requests in a thread for the duration of the block, as often as `seconds` says, while one may."""
    ended, desk = threading.Event(), JoinRequestDesk(repository)

    def work() -> None:
        said = ""
        while not ended.wait(seconds):
            try:
                if may_admit():
                    desk.look()
                said = ""
            except Exception as error:  # rounds are closed all the same
                is_known = isinstance(error, (OSError, ValueError, httpx2.HTTPError))
                words = explain_error(error) if is_known else repr(error)
                logger.log(logging.DEBUG if words == said else logging.WARNING, "Nobody could be admitted: %s", words)
                said = words

    thread = threading.Thread(target=work, name="join-requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)
