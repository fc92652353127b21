"""Counting requests by who makes them, and saying who has made too many, in the words of the public Hub."""

import math
import time
from collections import Counter
from dataclasses import dataclass

from .hub_controls import Kind, RateLimits

MAX_CALLERS = 10_000


def kind_of(path: str) -> Kind:
    """Return of which kind a request for this path is."""
    if "/resolve/" in path:
        return "resolvers"
    if path.startswith("/api/"):
        return "api"
    # The Xet client sends its telemetry to the host of the contents.
    return "xet" if path.startswith(("/xet/", "/v1/telemetry")) else "other"


@dataclass
class _Window:
    """What a caller has asked for of late."""

    end: float
    num_requests: int = 0


@dataclass(frozen=True, kw_only=True)
class RequestStanding:
    """What a caller may still ask for."""

    headers: dict[str, str]
    """`RateLimit` and `RateLimit-Policy`, and `Retry-After` where it has asked too often."""

    is_over: bool
    """Whether this request is one too many."""


class RequestMeter:
    """Counts requests, and compares them with the limits if there are any. Belongs to one thread."""

    def __init__(self, limits: RateLimits | None) -> None:
        self.limits = limits
        self.counts: Counter[tuple[str, Kind]] = Counter()
        self._windows: dict[tuple[str, str, Kind], _Window] = {}

    def count(self, user: str, address: str, kind: Kind) -> RequestStanding:
        """Count a request by a user, "" for none, from an address."""
        self.counts[user, kind] += 1
        limit = self.limits.limit(kind, anonymous=not user) if self.limits else None
        if self.limits is None or limit is None:
            return RequestStanding(headers={}, is_over=False)
        now, seconds = time.monotonic(), self.limits.window_seconds
        window = self._windows.pop((user, "" if user else address, kind), None)
        if window is None or now >= window.end:
            window = _Window(now + seconds)
        window.num_requests += 1
        # The one that was used last is at the end, the one to forget at the beginning.
        self._windows[user, "" if user else address, kind] = window
        if len(self._windows) > MAX_CALLERS:
            del self._windows[next(iter(self._windows))]
        is_over, wait = window.num_requests > limit, max(1, math.ceil(window.end - now))
        headers = {
            "RateLimit": f'"{kind}";r={max(0, limit - window.num_requests)};t={wait}',
            "RateLimit-Policy": f'"fixed window";"{kind}";q={limit};w={seconds}',
        }
        return RequestStanding(headers=headers | ({"Retry-After": str(wait)} if is_over else {}), is_over=is_over)

    def by_user(self) -> dict[str, dict[str, int]]:
        """Return the counts of each user by kind; what carries no token is by ""."""
        found: dict[str, dict[str, int]] = {}
        for (user, kind), number in self.counts.items():
            found.setdefault(user, {})[kind] = number
        return found
