"""The files of rounds on the Hub: where they lie, how they are put and taken, and what time it is there.

A file costs one resolver request to take and none of the API's; the real Hub allows 5,000 of the former in 5 minutes
and 1,000 of the latter. What is put is visible as a whole or not at all.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from hub_tools.endpoint import current_endpoint
from hub_tools.hub_client import is_outage, is_refusal
from hub_tools.one_line_errors import explain_error
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.open_runs.join_request import own_bucket
from pipelines.features.open_runs.volunteer_list import listed_volunteers

logger = logging.getLogger(__name__)

NEWEST = "newest.json"
POINTER = "now.json"
SECONDS_OF_A_FILE = 120.0
"""How long one file may take, however slowly its bytes come."""

SECONDS_OF_SILENCE = 60.0
"""How long an answer, or the next of its bytes, may take to come."""

UPLOADS_THAT_FAIL_SOON = {"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1", "HF_XET_CLIENT_RETRY_BASE_DELAY": "500ms"}
"""Xet's own patience is 100 s; rounds try again by their own clock."""

MOST_BUCKETS = 10_000
SECONDS_OF_REFUSALS = 600.0
"""For how long the Hub may refuse what it has allowed before: a token expires, and its owner logs in again."""


class HubAwayError(ConnectionError):
    """The Hub did not answer as it should: the same may succeed later."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file as the Hub has sent it."""

    content: bytes
    etag: str
    modified: float | None
    """When it was put, by the Hub's clock, in seconds since 1970; None: the Hub does not say."""


class HubClock:
    """The Hub's time, by the answer that came fastest: this machine's own clock may be hours wrong, or be set."""

    def __init__(self) -> None:
        self._ahead, self._error, self._lock = time.time() - time.monotonic(), float("inf"), threading.Lock()

    def __call__(self) -> float:
        """Return seconds since 1970."""
        return time.monotonic() + self._ahead

    def note(self, date: str | None, sent: float, received: float) -> None:
        """Take the `Date` of an answer into account; `sent` and `received` are `time.monotonic`."""
        if date is None:
            return
        try:
            seconds = parsedate_to_datetime(date).timestamp() + 0.5  # it has whole seconds
        except (ValueError, TypeError):
            return
        error = (received - sent) / 2 + 0.5
        ahead = seconds - (sent + received) / 2
        with self._lock:
            # What is known gets old: clocks drift, and a machine that has slept may have stood still.
            if error <= self._error or abs(ahead - self._ahead) > error + self._error:
                self._ahead, self._error = ahead, error


class RoundFiles:
    """The files of one generation of a run. Any thread may use it.

    `run_bucket` has the lists, and copies of the contributions that count; each volunteer's own bucket what he offers.
    """

    def __init__(self, repository: str, run: TrainingRun) -> None:
        self.run_bucket, self.kept_rounds, self.window_seconds = run.bucket, run.kept_rounds, run.window_seconds
        self.clock = HubClock()
        self._refused_since: dict[str, float | None] = {}
        """When the Hub began to refuse what this process did before, by `time.monotonic`; None: it does not."""

        self._prefix = f"{run.run_id}/generation-{run.generation}"
        self._repository, self._is_open = repository, run.who_may_contribute == "everybody"
        self._namespace, _, self._name = repository.partition("/")
        self.strangers: frozenset[str] = frozenset()
        """Users of an open run whose bucket is in their own namespace, as far as this process knows."""

    def bucket_of(self, user: str) -> str:
        """Return the bucket in which a user offers his contributions."""
        return (
            own_bucket(self._repository, user) if user in self.strangers else f"{self._namespace}/{self._name}-{user}"
        )

    def list_path(self, publisher: str, number: int | None) -> str:
        """Return where a publisher, by the fingerprint of its key, puts the list of a round; None: its newest."""
        return f"{self._prefix}/rounds/{publisher}/{NEWEST if number is None else f'{number:08d}.json'}"

    def copy_path(self, number: int, digest: str) -> str:
        """Return where the run's bucket has a contribution that counts in a round."""
        return f"{self._prefix}/contributions/{number:08d}/{digest}"

    def presence_path(self, publisher: str) -> str:
        """Return where an auxiliary peer, by the fingerprint of its key, says that it is there."""
        return f"{self._prefix}/presence/{publisher}.json"

    def offer_path(self, number: int, digest: str) -> str:
        """Return where a volunteer's own bucket has it."""
        return f"{self._prefix}/offers/{number:08d}-{digest}"

    @property
    def pointer_path(self) -> str:
        """Where a volunteer's bucket says what he offers."""
        return f"{self._prefix}/{POINTER}"

    def make_bucket(self, user: str, *, private: bool) -> None:
        """Create this process's user's bucket if it is not there; a stranger's of an open run in his own namespace.

        Raises what `put` raises.
        """
        try:
            with _errors_named(self.bucket_of(user)):
                HfApi().create_bucket(self.bucket_of(user), private=private, exist_ok=True)
        except OSError as error:
            if not is_refusal(error) or user in self.strangers:
                raise
            if not self._is_open or private:
                role = f"To contribute, ask an admin of {self._namespace} for the role contributor"
                raise OSError(f"{error} {role}.") from error
            self.strangers |= {user}
            self.make_bucket(user, private=False)

    def volunteers(self) -> list[str]:
        """Return the users who have a bucket for this run, in the organisation or as admitted strangers.

        Raises HubAwayError, OSError.
        """
        start = f"{self._namespace}/{self._name}-"
        with _errors_named(self._namespace):
            found = []
            for number, bucket in enumerate(HfApi().list_buckets(namespace=self._namespace, search=self._name)):
                if number >= MOST_BUCKETS:
                    logger.warning("%s has more than %d buckets; the rest is not read.", self._namespace, MOST_BUCKETS)
                    break
                if bucket.id.startswith(start) and bucket.id != self.run_bucket:
                    found.append(bucket.id.removeprefix(start))
            if self._is_open:
                self.strangers = listed_volunteers(self._repository).admitted.difference(found)
        return [*found, *sorted(self.strangers)]

    def put(self, bucket: str, files: Mapping[str, bytes], *, delete: list[str] | None = None) -> None:
        """Put files into a bucket, all or none, and then delete others.

        Raises:
            HubAwayError: the Hub does not answer, or has begun to refuse what it allowed before.
            OSError: it refuses: the bucket is missing, full, or not this user's.
        """
        with self._passing_refusals(f"write to {bucket}"), _errors_named(bucket):
            HfApi().batch_bucket_files(bucket, add=[(content, path) for path, content in files.items()], delete=delete)

    def take(self, bucket: str, path: str, most_bytes: int, *, etag: str = "") -> Found | None:
        """Take a file; None if it is not there, or still the one with this `etag`.

        Raises:
            HubAwayError: the Hub does not answer, or not in time, or has begun to refuse the run's bucket.
            OSError, ValueError: it refuses, or the file has more than `most_bytes`.
        """
        url = f"{current_endpoint()}/buckets/{bucket}/resolve/{quote(path)}"
        headers = build_hf_headers() | {"Accept-Encoding": "identity"} | ({"If-None-Match": etag} if etag else {})
        # A volunteer who closes his own bucket holds nobody up.
        patient = self._passing_refusals(f"read {bucket}") if bucket == self.run_bucket else nullcontext()
        with patient, _errors_named(bucket):
            sent = time.monotonic()
            with get_session().stream("GET", url, headers=headers, timeout=SECONDS_OF_SILENCE) as answer:
                self.clock.note(answer.headers.get("date"), sent, time.monotonic())
                if answer.status_code in (304, 404):
                    return None
                if answer.status_code >= 400:
                    answer.read()
                hf_raise_for_status(answer)
                content = bytearray()
                for part in answer.iter_raw():
                    content += part
                    if len(content) > most_bytes:
                        raise ValueError(f"{path} has more than {most_bytes} bytes")
                    if time.monotonic() > sent + SECONDS_OF_A_FILE:
                        raise TimeoutError(f"{path} took more than {SECONDS_OF_A_FILE:.0f} s")
        return Found(
            content=bytes(content),
            etag=answer.headers.get("etag", ""),
            modified=_seconds(answer.headers.get("last-modified")),
        )

    @contextmanager
    def _passing_refusals(self, action: str) -> Iterator[None]:
        """Turn a refusal of what was allowed before into HubAwayError for some time, with a line at its beginning."""
        try:
            yield
        except OSError as error:
            if not is_refusal(error) or action not in self._refused_since:
                raise
            if (since := self._refused_since[action]) is None:
                since = self._refused_since[action] = time.monotonic()
                words = f"The Hub no longer lets this process {action}, which goes on trying"
                logger.warning("%s for %.0f minutes. %s", words, SECONDS_OF_REFUSALS / 60, error)
            if time.monotonic() > since + SECONDS_OF_REFUSALS:
                raise
            raise HubAwayError(str(error)) from error
        self._refused_since[action] = None


def let_uploads_fail_soon() -> None:
    """Have uploads of this process report an outage at once. Call it before the first one."""
    for name, value in UPLOADS_THAT_FAIL_SOON.items():
        os.environ.setdefault(name, value)


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


@contextmanager
def _errors_named(place: str) -> Iterator[None]:
    """Turn what the client raises into HubAwayError or OSError; Xet's part of it raises RuntimeError."""
    try:
        yield
    except (OSError, httpx2.HTTPError, RuntimeError, KeyError, TypeError) as error:
        said = f"{place}: {explain_error(error).rstrip('.')}."
        if isinstance(error, ConnectionError) and is_refusal(error):  # of the library for contents, which says no more
            said += " This machine's token may have expired, or lost a right. Log in: hf auth login"
        raise (HubAwayError(said) if is_outage(error) else OSError(said)) from error
