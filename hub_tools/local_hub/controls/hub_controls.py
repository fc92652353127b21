"""How often one may ask the embedded Hub, what it is to do wrong, and how a test tells it so, from any process."""

from dataclasses import asdict, dataclass, fields
from http import HTTPStatus
from typing import Literal

CONTROL_PATH = "/api/hub-controls"
CONTROL_TOKEN_VARIABLE = "LOCAL_HUB_CONTROL_TOKEN"
MAX_SECONDS = 10 * 365 * 86_400
REQUEST_SECONDS = 30.0

Kind = Literal["api", "resolvers", "xet", "other"]
"""Kinds of requests: to `/api`, for files of repositories and buckets, for contents through Xet, and all else."""


@dataclass(frozen=True, kw_only=True)
class RateLimits:
    """Requests in a window of time, as huggingface.co/docs/hub/rate-limits has them for free accounts."""

    api_requests: int = 1000
    """Requests to `/api` by a user."""

    resolver_requests: int = 5000
    """Requests for files by a user."""

    anonymous_api_requests: int = 500
    """Requests to `/api` without a token from an address."""

    anonymous_resolver_requests: int = 3000
    """Requests for files without a token from an address."""

    window_seconds: int = 300
    """Length of the window, which begins with a caller's first request."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ValueError(f"The rate limit's {field.name} is {value}, expected at least 1")

    def limit(self, kind: Kind, *, anonymous: bool) -> int | None:
        """Return how many requests of a kind a caller may make in a window; None for any number."""
        if kind == "api":
            return self.anonymous_api_requests if anonymous else self.api_requests
        if kind == "resolvers":
            return self.anonymous_resolver_requests if anonymous else self.resolver_requests
        return None


@dataclass(frozen=True, kw_only=True)
class HubFault:
    """One thing that the Hub does wrong, with the requests that match."""

    kind: Literal["late", "refuse", "away", "break_body", "lose_answer"]
    """Answer late; refuse with a status; close the connection at once; close it when half of an upload's body is
    there, of which nothing is kept; do what is asked and close it instead of answering."""

    path: str = "*"
    """Which paths, as `fnmatch` has them, with `*` for any characters: `/api/buckets/org/*/batch`."""

    user: str | None = None
    """Whose requests; "" for those without a token, None for all."""

    num_requests: int | None = None
    """After how many requests it is over; None for any number."""

    lasts_seconds: float | None = None
    """After what time it is over; None for any."""

    seconds: float = 0.0
    """How late an answer is, and the Retry-After of a refusal."""

    status: int = 503
    """Status of a refusal."""

    def __post_init__(self) -> None:
        if self.num_requests is not None and self.num_requests < 1:
            raise ValueError(f"The fault's num_requests is {self.num_requests}, expected at least 1, or None")
        for name in ("lasts_seconds", "seconds"):
            if not 0 <= (getattr(self, name) or 0) <= MAX_SECONDS:
                raise ValueError(f"The fault's {name} is {getattr(self, name)}, expected 0 to {MAX_SECONDS}")
        if not 400 <= self.status <= 599 or self.status not in set(HTTPStatus):
            raise ValueError(f"The fault's status is {self.status}, expected one such as 429, 500 or 503")


class HubControls:
    """Tells the embedded Hub at `endpoint` to fail, from whichever process has its control token.

    What was said is forgotten when the Hub is started anew. All methods raise `httpx2.HTTPError` where the Hub does not
    answer or the token is not its.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self.endpoint = endpoint
        self._token = token

    def add(self, fault: HubFault) -> None:
        """Have this fault from now on; of those that match a request the oldest strikes, and every delay."""
        self._ask("POST", "faults", asdict(fault))

    def answer_late(self, seconds: float, *, path: str = "*", user: str | None = None) -> None:
        """Answer every request that matches this much later."""
        self.add(HubFault(kind="late", seconds=seconds, path=path, user=user))

    def refuse(
        self, status: int, num_requests: int, *, path: str = "*", user: str | None = None, retry_after: float = 0.0
    ) -> None:
        """Answer the next requests that match with this status, and after how many seconds to try again."""
        which = HubFault(
            kind="refuse", status=status, num_requests=num_requests, path=path, user=user, seconds=retry_after
        )
        self.add(which)

    def break_uploads(self, num_requests: int, *, path: str = "*", user: str | None = None) -> None:
        """Close the connection in the middle of the next bodies that match: nothing of them becomes visible."""
        self.add(HubFault(kind="break_body", num_requests=num_requests, path=path, user=user))

    def lose_answers(self, num_requests: int, *, path: str = "*", user: str | None = None) -> None:
        """Do what the next requests that match ask for, and close the connection instead of saying so."""
        self.add(HubFault(kind="lose_answer", num_requests=num_requests, path=path, user=user))

    def go_away(self, seconds: float, *, status: int | None = None) -> None:
        """For this time close every connection without an answer, or answer all with a status such as 503."""
        if status is None:
            self.add(HubFault(kind="away", lasts_seconds=seconds))
        else:
            self.add(HubFault(kind="refuse", status=status, lasts_seconds=seconds))

    def set_clock(self, offset_seconds: float) -> None:
        """Set the Hub's clock this far ahead, in the answers' Date and in the times of uploads to buckets from now."""
        self._ask("PUT", "clock", {"offset_seconds": offset_seconds})

    def fill_bucket(self, bucket: str, *, is_full: bool = True) -> None:
        """Refuse files added to this bucket, `namespace/name`, as where its storage is used up, with a 403; or not."""
        self._ask("PUT", "full-buckets", {"name": bucket, "is_full": is_full})

    def clear(self) -> None:
        """End all faults: no delays and refusals, the clock right, no bucket full. Counts go on."""
        self._ask("DELETE", "faults")

    def request_counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests of each `Kind` each user has made; those without a token are by ""."""
        return self._ask("GET", "requests")

    def reset_request_counts(self) -> dict[str, dict[str, int]]:
        """Begin to count anew, and return what `request_counts` would have."""
        return self._ask("DELETE", "requests")

    def _ask(self, method: str, what: str, body: dict | None = None) -> dict:
        import httpx2  # with the Hub's first use, not with the import of `LocalHub`

        url, headers = f"{self.endpoint}{CONTROL_PATH}/{what}", {"Authorization": f"Bearer {self._token}"}
        answer = httpx2.request(method, url, json=body, headers=headers, timeout=REQUEST_SECONDS)
        return answer.raise_for_status().json()
