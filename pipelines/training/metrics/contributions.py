"""Who has contributed how much: signed sample counts, credited as far as plausible. Pure, no network.

A peer's count is its own claim. It is credited up to what the epochs since its last report could hold and what its
stated speed allows; the sum of all claims is cut to what the swarm's epochs could hold, largest claims first, so that a
liar takes nothing from the honest ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pipelines.training.metrics.epoch_summary import NUM_EPOCHS_AHEAD

EPOCH_SLACK = 2.0
"""An epoch holds more than `target_batch_size` samples: peers continue until they learn that it is full."""

SPEED_SLACK = 3.0
LATE_SECONDS = 10.0
"""Reports are read some seconds after they are made."""

LATE_EPOCHS = 4
"""Reports of an epoch may arrive up to this many epochs later."""

COUNTER_LIFETIME_SECONDS = 86_400.0
LONGEST_NAME = 96


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One peer's report about itself."""

    username: str
    epoch: int
    num_samples: int
    """Since the peer's start."""

    samples_per_second: float


@dataclass(frozen=True, kw_only=True)
class Counter:
    """The last report of a peer that was counted."""

    num_samples: int
    epoch: int
    time: float


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a user has contributed."""

    samples: int = 0
    seconds: float = 0.0

    def plus(self, samples: int, seconds: float) -> "Contribution":
        """Return the sum."""
        return Contribution(samples=self.samples + samples, seconds=self.seconds + seconds)


def plausible_samples(claim: Claim, last: Counter | None, *, now: float, epoch_before: int, batch_size: int) -> int:
    """Return how many new samples of a claim are plausible.

    `epoch_before` is the swarm's epoch at the last poll: where a newly seen peer may have started.
    A count that has decreased belongs to a peer that restarted.
    """
    restarted = last is None or claim.num_samples < last.num_samples
    new = claim.num_samples if restarted or last is None else claim.num_samples - last.num_samples
    num_epochs = max(LATE_EPOCHS, claim.epoch - epoch_before) if last is None else max(1, claim.epoch - last.epoch)
    bounds = [float(new), EPOCH_SLACK * batch_size * num_epochs]
    if last is not None:
        bounds.append(SPEED_SLACK * claim.samples_per_second * (max(0.0, now - last.time) + LATE_SECONDS))
    return max(0, int(min(bounds)))


def fit_into(claims: Mapping[str, int], capacity: int) -> dict[str, int]:
    """Cut the largest claims until all fit into the capacity; claims below the cut are unchanged."""
    left, fitted = max(0, capacity), {}
    for index, key in enumerate(sorted(claims, key=lambda key: (claims[key], key))):
        fitted[key] = min(claims[key], left // (len(claims) - index))
        left -= fitted[key]
    return fitted


@dataclass
class ContributionLedger:
    """Samples and time of every user on every day (UTC)."""

    days: dict[tuple[str, str], Contribution] = field(default_factory=dict)
    """By day, such as `2026-11-21`, and user name."""

    counters: dict[str, Counter] = field(default_factory=dict)
    """By the peer's key."""

    epoch: int = 0
    """The swarm's epoch at the last poll."""

    capacity: float = 0.0
    """Samples of past epochs not yet claimed by anybody."""

    time: float = 0.0
    """Time of the last poll, in seconds since 1970."""

    def observe(self, claims: Mapping[str, Claim], *, now: float, swarm_epoch: int, batch_size: int) -> None:
        """Credit what is new and plausible in the peers' reports."""
        new = {key: claim for key, claim in claims.items() if self._is_news(key, claim, swarm_epoch)}
        late = EPOCH_SLACK * batch_size * LATE_EPOCHS
        gained = EPOCH_SLACK * batch_size * max(0, swarm_epoch - self.epoch)
        self.capacity = min(self.capacity, late) + gained
        plausible = {
            key: plausible_samples(
                claim, self.counters.get(key), now=now, epoch_before=self.epoch, batch_size=batch_size
            )
            for key, claim in new.items()
        }
        for key, samples in fit_into(plausible, int(self.capacity)).items():
            self._credit(key, new[key], samples, now)
        self.epoch, self.time = max(self.epoch, swarm_epoch), now
        oldest = now - COUNTER_LIFETIME_SECONDS
        self.counters = {key: counter for key, counter in self.counters.items() if counter.time >= oldest}

    def total(self) -> dict[str, Contribution]:
        """Return each user's contribution since the run's start."""
        return _by_user(self.days.items())

    def state(self) -> dict[str, Any]:
        """Return, as JSON values, what is needed besides the days to resume without counting twice."""
        counters = {key: asdict(counter) for key, counter in sorted(self.counters.items())}
        return dict(epoch=self.epoch, capacity=self.capacity, time=self.time, counters=counters)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], days: Mapping[tuple[str, str], Contribution]) -> Self:
        """Restore a ledger; raises ValueError for an invalid state."""
        try:
            counters = {key: Counter(**value) for key, value in state["counters"].items()}
            return cls(
                days=dict(days),
                counters=counters,
                epoch=int(state["epoch"]),
                capacity=float(state["capacity"]),
                time=float(state["time"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"The state of the contributions is damaged ({error!r}).") from error

    def _is_news(self, key: str, claim: Claim, swarm_epoch: int) -> bool:
        last = self.counters.get(key)
        is_possible = claim.epoch <= swarm_epoch + NUM_EPOCHS_AHEAD and math.isfinite(claim.samples_per_second)
        return is_possible and (last is None or (claim.num_samples, claim.epoch) != (last.num_samples, last.epoch))

    def _credit(self, key: str, claim: Claim, samples: int, now: float) -> None:
        last = self.counters.get(key)
        self.counters[key] = Counter(num_samples=claim.num_samples, epoch=claim.epoch, time=now)
        if samples <= 0:
            return
        self.capacity -= samples
        computing = samples / claim.samples_per_second if claim.samples_per_second > 0 else 0.0
        seconds = computing if last is None else min(now - last.time, SPEED_SLACK * computing)
        day = datetime.fromtimestamp(now, UTC).date().isoformat(), claim.username[:LONGEST_NAME]
        self.days[day] = self.days.get(day, Contribution()).plus(samples, max(0.0, min(seconds, 3600.0)))


def leaderboard(days: Mapping[tuple[str, str], Contribution], now: float, limit: int) -> list[dict[str, Any]]:
    """Return the `limit` users with the most samples of all time, with samples and hours of today, 7 days and all."""
    today = datetime.fromtimestamp(now, UTC).date()
    first_of_week = (today - timedelta(days=6)).isoformat()
    spans = {
        "today": _by_user(item for item in days.items() if item[0][0] == today.isoformat()),
        "week": _by_user(item for item in days.items() if item[0][0] >= first_of_week),
        "all": _by_user(days.items()),
    }
    users = sorted(spans["all"], key=lambda user: (-spans["all"][user].samples, user))[:limit]
    return [{"username": user} | _columns({name: span.get(user) for name, span in spans.items()}) for user in users]


def _columns(spans: Mapping[str, Contribution | None]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, contribution in spans.items():
        contribution = contribution or Contribution()
        values |= {f"samples_{name}": contribution.samples, f"hours_{name}": round(contribution.seconds / 3600, 3)}
    return values


def _by_user(items: Iterable[tuple[tuple[str, str], Contribution]]) -> dict[str, Contribution]:
    users: dict[str, Contribution] = {}
    for (_, user), contribution in items:
        users[user] = users.get(user, Contribution()).plus(contribution.samples, contribution.seconds)
    return users


def days_of_month(
    days: Mapping[tuple[str, str], Contribution], month: str
) -> Sequence[tuple[tuple[str, str], Contribution]]:
    """Return one month's entries (`2026-11`), in order."""
    return sorted(item for item in days.items() if item[0][0].startswith(month))
