"""What servers and authors ask of a downloader: to leave a picture alone, to wait, and not to come too often."""

import asyncio
import datetime
from collections import defaultdict
from collections.abc import Iterable

from hub_tools.foreign.json_texts import parse_json
from hub_tools.waiting.retry_after import seconds_to_wait

RESERVING_DIRECTIVES = frozenset(("noai", "noimageai", "noindex", "noimageindex"))
"""Words of X-Robots-Tag after which a picture is left alone; img2dataset has the same."""
RESERVATIONS_PATH = "/.well-known/tdmrep.json"
"""Where a host says which of its paths are reserved, by the TDM Reservation Protocol."""
LARGEST_RESERVATIONS_BYTES = 2**16
MOST_RULES = 1000
LONGEST_WAIT_SECONDS = 120.0
FAILURES_TO_GIVE_UP = 10
"""Failed connections and time-outs in a row after which a host is left alone until the next pass."""


def is_opted_out(robots_tags: Iterable[str], reservations: Iterable[str]) -> bool:
    """Whether the headers X-Robots-Tag or TDM-Reservation (https://www.w3.org/community/tdmrep) reserve the picture.

    A tag may begin with the name of one robot, as in `otherbot: noai`; whoever says so to one of them is understood.
    """
    words = {word.strip().casefold() for tag in robots_tags for part in tag.split(",") for word in part.split(":")}
    return bool(words & RESERVING_DIRECTIVES) or any(value.strip() == "1" for value in reservations)


def reserved_paths(content: bytes) -> list[tuple[str, bool]]:
    """The rules of a host's file RESERVATIONS_PATH: locations, and whether they are reserved. Damage says nothing."""
    try:
        rules = parse_json(content)
    except ValueError:
        return []
    rules = [rule for rule in rules[:MOST_RULES] if isinstance(rule, dict)] if isinstance(rules, list) else []
    return [
        (rule["location"], str(rule.get("tdm-reservation")).strip() == "1")
        for rule in rules
        if isinstance(rule.get("location"), str)
    ]


def is_reserved(path: str, rules: Iterable[tuple[str, bool]]) -> bool:
    """Whether the first rule that fits the path reserves it."""
    return next((is_reserved for location, is_reserved in rules if _fits(path, location)), False)


def _fits(path: str, location: str) -> bool:
    """Whether a path begins as a location says, written as in robots.txt: with stars, and a dollar at its end."""
    first, *others = location.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    place = len(first)
    last = others.pop() if location.endswith("$") and others else None
    for part in others:  # the first place that fits is the best one: no backtracking, whatever the location is
        found = path.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    if last is not None:
        return path.endswith(last) and len(path) - len(last) >= place
    return not location.endswith("$") or place == len(path)


def seconds_to_rest(retry_after: str | None, now: datetime.datetime) -> float:
    """What a Retry-After header asks for; a server that says nothing gets 10 seconds."""
    seconds = seconds_to_wait(retry_after, now)
    return 10.0 if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)


class Hosts:
    """How often and how many at once each host is asked, and which ones asked for a pause."""

    def __init__(self, most_at_once: int):
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most_at_once))
        self._resting_until: dict[str, float] = {}
        self._failures_in_a_row: defaultdict[str, int] = defaultdict(int)

    def slot(self, host: str) -> asyncio.Semaphore:
        """Held while the host is asked for something."""
        return self._slots[host]

    def rest(self, host: str, seconds: float) -> None:
        """The host asked to be left alone for a while."""
        self._resting_until[host] = asyncio.get_running_loop().time() + seconds

    def seconds_left(self, host: str) -> float:
        """How long the host still wants to be left alone."""
        return max(0.0, self._resting_until.get(host, 0.0) - asyncio.get_running_loop().time())

    def heard(self, host: str, *, answered: bool) -> None:
        """The host answered, whatever it said; or it did not, or was too busy to."""
        self._failures_in_a_row[host] = 0 if answered else self._failures_in_a_row[host] + 1

    def is_given_up(self, host: str) -> bool:
        """Whether the host never answers: waiting for each of its thousand pictures would take days."""
        return self._failures_in_a_row[host] >= FAILURES_TO_GIVE_UP

    def forgive(self) -> None:
        """Ask all hosts again."""
        self._failures_in_a_row.clear()
