"""Which servers' drawings are not what was wished for: pure decisions from the excesses of audited candidates.

One candidate proves little: honest rounding to bfloat16 reaches with some what a liar's weights do with others. So
excesses are pooled for each server over its last audited candidates, and compared with what an honest server of the
same precision would have reached, as measured on this model.
"""

import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.serving.avoided import AvoidedServers, avoided_words

POOL = 64
"""Audited candidates of a server that count."""

SHARE_AUDITED = 1 / 16
"""Of the candidates of a server: a pass over one costs about as much as drawing it with guesses, less without."""

LEAST_AUDITED = 4
"""Of each server and drawing, as far as it has drawn so many."""

FACTOR = 24.0
"""By how much the pool may be above the honest mean: more than the difference between kinds of hardware."""

SINGLE_FACTOR = 48.0
"""By how much one honest candidate of the pool may be above the largest measured: honest excesses have a long tail."""

ROUNDING = 2e-7
LARGEST_ROUNDING = 1e-5
"""Mean and largest excess of an honest server in float32, whose sums run in another order than the auditor's."""


@dataclass(frozen=True, kw_only=True)
class Honesty:
    """What honest servers of one precision reach with one model."""

    mean: float
    largest: float

    @classmethod
    def of(cls, measured: Sequence[float]) -> "Honesty":
        """Return what these honest excesses say; at least rounding in float32, which is all of it for float32."""
        values = [ROUNDING, *measured]
        return cls(mean=max(ROUNDING, sum(values) / len(values)), largest=max(LARGEST_ROUNDING, *values))

    def limit(self, number: int) -> float:
        """Return the highest mean excess of so many candidates that is believed to be honest."""
        return FACTOR * self.mean + SINGLE_FACTOR * self.largest / number


EXACT = Honesty.of(())
"""Of float32."""


@dataclass(kw_only=True)
class Record:
    """What is known of one server."""

    pool: deque[float] = field(default_factory=lambda: deque(maxlen=POOL))
    num_audited: int = 0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The worst of the candidates that were audited last, by which others can be asked to look for themselves."""

    revision: str
    precision: str
    seed: int
    prompt: int
    candidate: int
    excess: float


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """Why a server is avoided from here; nobody else has to believe it."""

    server: str
    mean_excess: float
    limit: float
    num_audited: int
    until: float
    user: str = ""
    """The server's admitted user, in an open run nobody."""

    evidence: Evidence | None = None

    def __str__(self) -> str:
        return (
            f"{self.server} did not draw what was asked for: its last {self.num_audited} audited candidates are off by "
            f"{self.mean_excess:.1e} on average, and an honest server's by at most {self.limit:.1e}. Its candidates "
            f"are drawn again elsewhere, and {avoided_words(self.until, self.user)}."
        )


class AuditBook:
    """The audits of one client."""

    def __init__(self, honesty: Mapping[str, Honesty], avoided: AvoidedServers | None = None) -> None:
        """`honesty` by precision; float32 may be left out. `avoided` is what is known already, and learns more."""
        self._honesty, self.avoided = {"float32": EXACT, **honesty}, avoided or AvoidedServers()
        self._records: dict[str, Record] = {}

    def learn(self, precision: str, honesty: Honesty) -> None:
        """Judge servers of a precision by this from now on."""
        self._honesty[precision] = honesty

    def knows(self, precision: str) -> bool:
        """Whether servers of a precision can be judged."""
        return precision in self._honesty

    def num_audited(self, server: str) -> int:
        """Return how many of a server's candidates have ever been audited here."""
        return self._records[server].num_audited if server in self._records else 0

    def note(self, server: str, precision: str, measured: Sequence[float], user: str = "") -> Complaint | None:
        """Take the excesses of some audited candidates; return the complaint if the server is avoided for them.

        `user` is as in `AvoidedServers.avoid`.
        """
        record = self._records.setdefault(server, Record())
        for excess in measured:
            record.pool.append(excess)
            record.num_audited += 1
        if not record.pool:
            return None
        mean, limit = sum(record.pool) / len(record.pool), self._honesty[precision].limit(len(record.pool))
        if not mean > limit:  # also where it is no number: then the auditor's own model is damaged
            return None
        until, number = self.avoided.avoid(server, user), len(record.pool)
        record.pool.clear()  # so that it can prove itself afterwards
        return Complaint(server=server, user=user, mean_excess=mean, limit=limit, num_audited=number, until=until)


def to_audit(
    candidates: Collection[int], num_before: int, draw: random.Random, share: float = SHARE_AUDITED
) -> list[int]:
    """Return which of a server's candidates are audited, when so many of it have been in this drawing.

    A server cannot know which: the choice is the asker's own.
    """
    wanted = max(LEAST_AUDITED - num_before, sum(draw.random() < share for _ in candidates))
    return sorted(draw.sample(sorted(candidates), min(wanted, len(candidates))))
