"""A stranger asks to contribute to an open run, and waits until its auxiliary peer admits him."""

import contextlib
import itertools
import logging
import time

import httpx2
from huggingface_hub import CommitOperationAdd, DiscussionComment, HfApi

from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error
from hub_tools.printing.printable import one_line
from hub_tools.publishing.commits import propose_commit
from pipelines.features.open_runs.join_request import volunteer_file, volunteer_path
from pipelines.features.open_runs.volunteer_list import listed_volunteers

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH = 2.0, 30.0, 1.3
MOST_OWN = 50
MOST_COMMENT = 400


class RequestRefusedError(ValueError):
    """The run's organiser, or its auxiliary peer, has refused a request to contribute."""


def ask_to_contribute(repository: str, user: str) -> None:
    """Ask by a pull request, unless the user is admitted or has asked before, and wait for the answer.

    Raises:
        RequestRefusedError: the user is barred, or the pull request was closed.
        HfHubHTTPError, httpx2.HTTPError, OSError: the Hub refuses; while it is away, this waits.
    """
    if _is_admitted(repository, user):
        return
    if (num := _own_request(repository, user)) is None:
        num = _ask(repository, user)
    url = f"{HfApi().endpoint}/{repository}/discussions/{num}"
    logger.warning("Your request to contribute waits for the auxiliary peer of %s: %s", repository, url)
    seconds = FIRST_POLL_SECONDS
    while True:
        time.sleep(seconds)
        seconds = min(seconds * POLL_GROWTH, LONGEST_POLL_SECONDS)
        try:
            # In this order: it is closed after the user was admitted.
            is_open = HfApi().get_discussion_details(repository, num).status in ("open", "draft")
            if _is_admitted(repository, user):
                return
            if not is_open:
                raise RequestRefusedError(f"Your request {url} was closed: {_last_words(repository, num, user)}")
        except (OSError, httpx2.HTTPError) as error:
            if not is_outage(error):
                raise
            logger.info("The Hub does not answer: %s", explain_error(error))


def _is_admitted(repository: str, user: str) -> bool:
    listed = listed_volunteers(repository)
    if user in listed.barred:
        raise RequestRefusedError(
            f"The organiser of {repository} has barred {user}: see {volunteer_path(user)} in its repository. Ask him."
        )
    return user in listed.admitted


def _own_request(repository: str, user: str) -> int | None:
    own = HfApi().get_repo_discussions(
        repository, author=user, discussion_type="pull_request", discussion_status="open"
    )
    titles = {one.num: one.title for one in itertools.islice(own, MOST_OWN) if one.author == user}
    return next((num for num, title in titles.items() if title == _title(user)), None)


def _ask(repository: str, user: str) -> int:
    addition = CommitOperationAdd(volunteer_path(user), volunteer_file(repository, user))
    words = "Asks to contribute to this run. Its auxiliary peer answers; there is nothing to review."
    if (number := propose_commit(repository, [addition], title=_title(user), description=words)) is None:
        raise ConnectionError(f"The Hub has opened no pull request on {repository}. Try again in a few minutes.")
    return number


def _title(user: str) -> str:
    return f"Volunteer {user}"


def _last_words(repository: str, num: int, user: str) -> str:
    words = "its organiser gives no reason."
    with contextlib.suppress(OSError, httpx2.HTTPError):
        for event in HfApi().get_discussion_details(repository, num).events:
            if isinstance(event, DiscussionComment) and event.author != user:
                words = one_line(event.content, MOST_COMMENT)
    return words
