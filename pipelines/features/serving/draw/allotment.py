"""Which server draws which candidates: pure, told what happens and what time it is.

Parts become smaller towards the end, so that all servers finish together. A server with nothing left to begin takes
over what another one is slow with; who is first counts, as the codes are the same.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pipelines.features.serving.draw.requests import MOST_CANDIDATES

SHARE_OF_THE_REST = 0.5
"""Of its share of what waits, a server gets this part at once."""

LEAST_GAIN = 1.5
"""Another server's part is drawn twice only if that ends so many times earlier."""

SLOWEST = 1e-6


@dataclass(eq=False, kw_only=True)
class AllottedPart:
    """Candidates that one server is drawing."""

    server: str
    candidates: range
    begun: float
    share_done: float = 0.0

    def rate(self, now: float, declared: float) -> float:
        """Return the candidates a second that it is drawn with."""
        seconds = now - self.begun
        if not self.share_done:
            # Nothing has come: the longer that lasts, the slower the server must be.
            return min(declared, len(self.candidates) / max(seconds, SLOWEST))
        return self.share_done * len(self.candidates) / max(seconds, SLOWEST)

    def seconds_left(self, now: float, declared: float) -> float:
        """Return how long it will take yet."""
        return (1 - self.share_done) * len(self.candidates) / max(self.rate(now, declared), SLOWEST)


@dataclass(eq=False)
class Allotment:
    """The candidates of one sampling request: which wait, which are being drawn, which are there."""

    candidates: Collection[int]
    rates: dict[str, float] = field(default_factory=dict)
    """Candidates a second, of each server that takes part: declared at first, then measured."""

    def __post_init__(self) -> None:
        self.waiting, self.missing = set(self.candidates), set(self.candidates)
        self.parts: set[AllottedPart] = set()

    def take(self, server: str, now: float) -> AllottedPart | None:
        """Return what a server draws next; None if there is nothing that it would finish earlier than others."""
        runs = _runs(self.waiting)
        if not runs:
            candidates = self._slowest(server, now)
            if candidates is None:
                return None
        else:
            share = self.rates[server] / max(sum(self.rates.values()), SLOWEST)
            number = max(1, math.ceil(SHARE_OF_THE_REST * share * len(self.waiting)))
            longest = max(runs, key=len)
            candidates = range(longest.start, longest.start + min(number, len(longest), MOST_CANDIDATES))
        part = AllottedPart(server=server, candidates=candidates, begun=now)
        self.waiting -= set(candidates)
        self.parts.add(part)
        return part

    def is_over(self, part: AllottedPart) -> bool:
        """Whether all of a part has come from others meanwhile."""
        return not self.missing & set(part.candidates)

    def finish(self, part: AllottedPart, now: float) -> list[int]:
        """Note that a part has come; return the candidates of it that are new."""
        self.parts.discard(part)
        measured = len(part.candidates) / max(now - part.begun, SLOWEST)
        self.rates[part.server] = 0.5 * self.rates.get(part.server, measured) + 0.5 * measured
        new = sorted(self.missing & set(part.candidates))
        self.missing -= set(new)
        return new

    def give_back(self, part: AllottedPart) -> None:
        """Note that a part will not come; others draw it."""
        if part in self.parts:
            self.parts.discard(part)
            drawn_elsewhere = {number for other in self.parts for number in other.candidates}
            self.waiting |= (self.missing & set(part.candidates)) - drawn_elsewhere

    def lose(self, candidates: Iterable[int]) -> None:
        """Note that candidates that were there do not count; they are drawn again."""
        self.missing |= set(candidates)
        self.waiting |= set(candidates)

    def leave(self, server: str) -> None:
        """Forget a server that takes part no more, and give back what it was drawing."""
        self.rates.pop(server, None)
        for part in [part for part in self.parts if part.server == server]:
            self.give_back(part)

    def _slowest(self, server: str, now: float) -> range | None:
        """Return the part that ends last, if the server would have it much earlier; no part is drawn three times."""
        own_rate = max(self.rates[server], SLOWEST)
        drawn = [number for part in self.parts for number in part.candidates]
        best, most = None, 0.0
        for part in self.parts:
            missing = sorted(self.missing & set(part.candidates))
            if part.server == server or not missing or any(drawn.count(number) > 1 for number in missing):
                continue
            left = part.seconds_left(now, self.rates.get(part.server, SLOWEST))
            if left > LEAST_GAIN * len(missing) / own_rate and left > most:
                best, most = _runs(missing)[0], left
        return best


def _runs(numbers: Iterable[int]) -> list[range]:
    """Return the stretches of consecutive numbers."""
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
