"""Who has contributed how much: signed sample counts, credited as far as rounds bear them out. Pure, no network.

A peer's count is its own claim, and keys are free. So all keys of a user are one user, and a user's claims are credited

- for epochs in whose round the auxiliary peer that keeps the books has found one of its peers,
- up to the pace of an ordinary user, times a factor that doubles with each such epoch up to `max_weight_ratio`,
- as far as the swarm's epochs could hold all claims. Newcomers get what the established ones leave.

What is not credited yet stays claimed, so that an honest newcomer has all its samples after a few epochs.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pipelines.features.publishing.metrics.credit.claims import (
    EPOCH_SLACK,
    LATE_EPOCHS,
    SPEED_SLACK,
    Claim,
    Counter,
    CreditStanding,
    RoundLog,
    fit_into,
    is_possible,
    plausible_samples,
    witnessed,
)
from pipelines.features.publishing.metrics.credit.hardware import device_kind

COUNTER_LIFETIME_SECONDS = 86_400.0
LONGEST_NAME = 96

CLAIMED = "Counts are claims, credited as far as the user was found in the rounds; nobody recomputes gradients."


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a user has contributed."""

    samples: int = 0
    seconds: float = 0.0

    def plus(self, samples: int, seconds: float) -> "Contribution":
        """Return the sum."""
        return Contribution(samples=self.samples + samples, seconds=self.seconds + seconds)


@dataclass
class ContributionLedger:
    """Samples and time of every user on every day (UTC)."""

    days: dict[tuple[str, str], Contribution] = field(default_factory=dict)
    """By day, such as `2026-11-21`, and user name."""

    counters: dict[str, Counter] = field(default_factory=dict)
    """By the peer's key."""

    standings: dict[str, CreditStanding] = field(default_factory=dict)
    """By user, see `Claim.user`."""

    device_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """Credited time by user name and kind of device; see `hardware`."""

    epoch: int = 0
    """The swarm's epoch at the last poll."""

    capacity: float = 0.0
    """Samples of past epochs not yet claimed by anybody."""

    time: float = 0.0
    """Time of the last poll, in seconds since 1970."""

    def observe(
        self,
        claims: Mapping[str, Claim],
        rounds: RoundLog,
        *,
        now: float,
        swarm_epoch: int,
        batch_size: int,
        max_ratio: float,
    ) -> None:
        """Credit what is new and plausible in the peers' reports, as far as the rounds bear it out.

        A user is credited at most `max_ratio` times the ordinary pace.
        """
        possible = {key: claim for key, claim in claims.items() if is_possible(claim, swarm_epoch)}
        num_epochs = max(0, swarm_epoch - self.epoch)
        late = EPOCH_SLACK * batch_size * LATE_EPOCHS
        self.capacity = min(self.capacity, late) + EPOCH_SLACK * batch_size * num_epochs
        for key, claim in possible.items():
            self._count(key, claim, now, batch_size)
        self._note_witnessed(possible.values(), rounds, now, num_epochs)
        self._credit(possible, now, max_ratio)
        self.epoch, self.time = max(self.epoch, swarm_epoch), now
        oldest = now - COUNTER_LIFETIME_SECONDS
        self.counters = {key: counter for key, counter in self.counters.items() if counter.time >= oldest}
        self.standings = {user: standing for user, standing in self.standings.items() if standing.time >= oldest}

    def total(self) -> dict[str, Contribution]:
        """Return each user's contribution since the run's start."""
        return _by_user(self.days.items())

    def device_hours(self) -> dict[str, dict[str, float]]:
        """Return each user's hours since the run's start, by kind of device."""
        hours: dict[str, dict[str, float]] = defaultdict(dict)
        for (user, kind), seconds in self.device_seconds.items():
            hours[user][kind] = seconds / 3600
        return dict(hours)

    def state(self) -> dict[str, object]:
        """Return, as JSON values, what is needed besides the days to resume without counting twice."""
        counters = {key: asdict(counter) for key, counter in sorted(self.counters.items())}
        standings = {user: asdict(standing) for user, standing in sorted(self.standings.items())}
        devices = [[*key, round(seconds, 3)] for key, seconds in sorted(self.device_seconds.items())]
        return dict(
            epoch=self.epoch, capacity=self.capacity, time=self.time,
            counters=counters, standings=standings, device_seconds=devices,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any], days: Mapping[tuple[str, str], Contribution]) -> Self:
        """Restore a ledger; raises ValueError for an invalid state."""
        try:
            return cls(
                days=dict(days),
                counters={key: Counter(**value) for key, value in state["counters"].items()},
                standings={user: CreditStanding(**value) for user, value in state.get("standings", {}).items()},
                device_seconds={
                    (str(user), str(kind)): float(seconds) for user, kind, seconds in state.get("device_seconds", ())
                },
                epoch=int(state["epoch"]),
                capacity=float(state["capacity"]),
                time=float(state["time"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"The state of the contributions is damaged ({error!r}).") from error

    def _count(self, key: str, claim: Claim, now: float, batch_size: int) -> None:
        last = self.counters.get(key)
        if last is not None and (claim.num_samples, claim.epoch) == (last.num_samples, last.epoch):
            return
        new = plausible_samples(claim, last, now=now, epoch_before=self.epoch, batch_size=batch_size)
        computing = new / claim.samples_per_second if claim.samples_per_second > 0 else 0.0
        seconds = computing if last is None else min(now - last.time, SPEED_SLACK * computing)
        num_epochs = max(1, claim.epoch - (self.epoch if last is None else last.epoch))
        self.counters[key] = Counter(
            num_samples=claim.num_samples,
            epoch=claim.epoch,
            time=now,
            pace=new / num_epochs,
            pending=new + (last.pending if last else 0),
            pending_seconds=max(0.0, min(seconds, 3600.0)) + (last.pending_seconds if last else 0.0),
        )

    def _note_witnessed(self, claims: Collection[Claim], rounds: RoundLog, now: float, num_epochs: int) -> None:
        believed = witnessed(claims, rounds)
        for claim in claims:
            before = min(self.epoch, claim.epoch - 1)
            held = self.standings.get(claim.user, CreditStanding(num_epochs=0, epoch=before, allowance=0.0, time=now))
            if claim.user in believed and claim.epoch > held.epoch:
                self.standings[claim.user] = CreditStanding(
                    num_epochs=held.num_epochs + 1,
                    epoch=claim.epoch,
                    allowance=min(held.allowance + claim.epoch - held.epoch, float(max(LATE_EPOCHS, num_epochs))),
                    time=now,
                )

    def _is_established(self, user: str) -> bool:
        return user in self.standings and self.standings[user].is_established

    def _credit(self, claims: Mapping[str, Claim], now: float, max_ratio: float) -> None:
        keys: dict[str, list[str]] = defaultdict(list)
        for key, claim in claims.items():
            if claim.user in self.standings:
                keys[claim.user].append(key)
        if not keys:
            return
        established = {user for user in keys if self._is_established(user)}
        paces = {user: sum(self.counters[key].pace for key in held) for user, held in keys.items()}
        ordinary = statistics.median(paces[user] for user in established or keys)
        per_epoch = {
            user: ordinary * (1.0 if len(keys) == 1 else min(max_ratio, self.standings[user].growth)) for user in keys
        }
        owed = {
            user: min(
                sum(self.counters[key].pending for key in held),
                int(self.standings[user].allowance * per_epoch[user] + 1e-6),
            )
            for user, held in keys.items()
        }
        for users in (established, keys.keys() - established):
            for user, samples in fit_into({user: owed[user] for user in users}, int(self.capacity)).items():
                if samples > 0:
                    standing = self.standings[user]
                    left = max(0.0, standing.allowance - samples / per_epoch[user])
                    self.standings[user] = replace(standing, allowance=left)
                    pending = {key: self.counters[key].pending for key in keys[user]}
                    for key, part in fit_into(pending, samples).items():
                        self._pay(key, claims[key], part, now)

    def _pay(self, key: str, claim: Claim, samples: int, now: float) -> None:
        counter = self.counters[key]
        if samples <= 0:
            return
        self.capacity -= samples
        seconds = counter.pending_seconds * samples / counter.pending
        self.counters[key] = replace(
            counter, pending=counter.pending - samples, pending_seconds=counter.pending_seconds - seconds
        )
        day = datetime.fromtimestamp(now, UTC).date().isoformat(), claim.username[:LONGEST_NAME]
        self.days[day] = self.days.get(day, Contribution()).plus(samples, seconds)
        if claim.device:
            kind, number = device_kind(claim.device)
            device = claim.username[:LONGEST_NAME], kind
            self.device_seconds[device] = self.device_seconds.get(device, 0.0) + number * seconds


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
