"""The ledger of an anchor: which records are on whose lease, and which were trained on. Pure, no network, no clock.

A lease follows what its peer was seen to train on: at most twice as much as it does in `horizon_seconds`, and a little
for who is new. It ends when nothing comes of it, or when its peer has left; what was not done is leased again. Records
count as trained on only if a round of averaging has had their gradients, which the caller knows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Intervals, Span
from pipelines.features.ledger.pass_tracker import PassTracker

MOST_PASSES = 64
"""Passes that are not done at the same time; only tiny datasets need more than two."""

NEWCOMERS_PER_USER = 4
"""Peers of one user with a lease before any of them has trained on something."""

NEWCOMERS_SHARE = 0.25
"""Of all records on lease, what peers that have trained on nothing yet may hold, beside `NEWCOMERS_LEASES`."""

NEWCOMERS_LEASES = 32
RATE_DECAY = 0.7
MEASURED_SECONDS = 3.0
"""Shortest time over which a peer's rate is measured."""

MOST_PASSES_LEASED = 4
"""Passes over the data that are on lease at most, if an epoch is not larger: of tiny datasets peers have several."""

LEASE_EPOCHS = 3
LEASE_RATES = 2.0
"""A lease is for so many times the records that its peer trains on in the horizon."""


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """How much is leased, and for how long."""

    epoch_records: int
    """Records of an epoch of all peers together. A lease is for an even share of a few epochs at least."""

    least_lease: int = 64
    horizon_seconds: float = 60.0
    """Time for which a lease lasts, at half the peer's speed."""

    expiry_seconds: float = 180.0
    """Time without any training on it after which a lease ends."""

    most_records: int = 2**20
    """Of one lease."""

    most_in_report: int = 2**22
    """Records that one peer can have trained on in one epoch."""


@dataclass(kw_only=True)
class PeerAccount:
    """What the ledger knows of one peer."""

    user: str
    since: float
    """When its lease began to wait for something to come of it."""

    leased: dict[tuple[int, int, int], Intervals] = field(default_factory=dict)
    """By block."""

    rate: float = 0.0
    """Records a second that it was seen to train on."""

    num_done: int = 0
    booked_epoch: int = -1
    """The newest epoch whose records are booked."""

    num_expired: int = 0
    """Leases in a row of which nothing came."""

    barred_until: float = float("-inf")

    num_measured: int = 0
    """Records since `measured_at`, of which the rate does not know yet."""

    measured_at: float | None = None
    """None: it has had no lease yet."""

    def measure(self, num_records: int, now: float) -> None:
        """Learn the rate from what was trained on since the last time: epochs are booked in bursts."""
        self.num_measured += num_records
        seconds = now - (now if self.measured_at is None else self.measured_at)
        if seconds >= MEASURED_SECONDS:
            pace = self.num_measured / seconds
            self.rate = RATE_DECAY * self.rate + (1 - RATE_DECAY) * pace if self.rate else pace
            self.num_measured, self.measured_at = 0, now

    @property
    def num_leased(self) -> int:
        """Records on its lease."""
        return sum(len(held) for held in self.leased.values())

    def spans(self) -> list[Span]:
        """What is on its lease."""
        return [Span(*block, *interval) for block, held in self.leased.items() for interval in held]


@dataclass(frozen=True, kw_only=True)
class PassFigures:
    """How far one pass has come."""

    pass_number: int
    num_done: int
    num_leased: int
    is_done: bool


class Ledger:
    """Leases every record of a pass once, and knows which ones were trained on."""

    def __init__(self, order: BlockOrder, options: LedgerOptions) -> None:
        self._order, self._options = order, options
        self._passes: dict[int, PassTracker] = {0: PassTracker(order, 0)}
        self._accounts: dict[str, PeerAccount] = {}
        self.finished_passes: dict[int, int] = {}
        """Records of the passes that are done, by their number."""

        self.num_repeated = 0
        """Records trained on that had been done before in their pass."""

        self.num_strange = 0
        """Records reported that were on another's lease, or are none of this dataset's."""

    def meet(self, users: Mapping[str, str], now: float) -> None:
        """Take note of who trains now: each peer's name and its user. The leases of all others end."""
        for name in [name for name in self._accounts if name not in users]:
            self._end_lease(self._accounts.pop(name))
            for tracker in self._passes.values():
                tracker.forget(name)
        for name, user in users.items():
            account = self._accounts.setdefault(name, PeerAccount(user=user, since=now))
            account.user = user

    def expire(self, now: float) -> None:
        """End the leases of which nothing has come for too long; who lets several pass waits longer each time."""
        for account in self._accounts.values():
            if account.leased and now > account.since + self._options.expiry_seconds:
                self._end_lease(account)
                account.since, account.rate, account.measured_at = now, 0.0, None
                account.barred_until = now + self._options.expiry_seconds * (2.0 ** min(account.num_expired, 16) - 1)
                account.num_expired += 1

    def _end_lease(self, account: PeerAccount) -> None:
        for span in account.spans():
            if span.pass_number in self._passes:
                self._passes[span.pass_number].give_back([span])
        account.leased.clear()

    def grant(self, now: float) -> None:
        """Fill up everybody's lease."""
        base = max(self._options.least_lease, LEASE_EPOCHS * self._options.epoch_records // max(1, len(self._accounts)))
        self._grant_newcomers(base, now)
        most = max(base, MOST_PASSES_LEASED * self._order.num_records // max(1, len(self._accounts)))
        for name in sorted(self._accounts):
            account = self._accounts[name]
            if account.num_done and now >= account.barred_until:
                by_speed = int(LEASE_RATES * account.rate * self._options.horizon_seconds)
                entitled = min(most, self._options.most_records, max(base, by_speed))
                # A little at a time would be many small spans.
                if (entitled - account.num_leased) * 4 >= entitled:
                    self._lease(name, entitled - account.num_leased, now)

    def _grant_newcomers(self, base: int, now: float) -> None:
        newcomers = {name: self._accounts[name] for name in sorted(self._accounts) if not self._accounts[name].num_done}
        held = sum(account.num_leased for account in newcomers.values())
        of_users = Counter(account.user for account in newcomers.values() if account.leased)
        all_held = sum(account.num_leased for account in self._accounts.values())
        room = max(NEWCOMERS_LEASES * base, int(NEWCOMERS_SHARE * all_held))
        for name, account in newcomers.items():
            is_let_in = of_users[account.user] < NEWCOMERS_PER_USER and held + base <= room
            if not account.leased and now >= account.barred_until and is_let_in:
                self._lease(name, base, now)
                held, of_users[account.user] = held + account.num_leased, of_users[account.user] + 1

    def _lease(self, name: str, num_records: int, now: float) -> None:
        account = self._accounts[name]
        if not account.leased:
            account.since = now
        if account.measured_at is None:
            account.measured_at = now
        for span in self._take(num_records, name):
            account.leased.setdefault(span.block, Intervals()).add(span.interval)

    def _take(self, num_records: int, name: str) -> list[Span]:
        taken: list[Span] = []
        for number in sorted(self._passes):
            taken += self._passes[number].take(num_records - _total(taken), name)
        while _total(taken) < num_records and len(self._passes) < MOST_PASSES:
            number = max([*self._passes, *self.finished_passes]) + 1
            self._passes[number] = PassTracker(self._order, number)
            more = list(self._passes[number].take(num_records - _total(taken), name))
            if not more:  # a dataset without records
                break
            taken += more
        return taken

    def book(self, name: str, epoch: int, spans: Sequence[Span], now: float) -> list[Span]:
        """Record what a peer has trained on for an epoch whose round it was in; return what is new of it.

        Spans on nobody's lease count, too: of peers that went on without a lease. Those on another's lease do not: the
        other one trains on them, if only a second time.
        """
        account = self._accounts.get(name)
        if account is None or epoch <= account.booked_epoch:
            return []
        account.booked_epoch = epoch
        booked: list[Span] = []
        for span in spans:
            if _total(booked) + span.num_records > self._options.most_in_report:
                self.num_strange += span.num_records
                continue
            booked += self._tracker(account, span)
        if num := _total(booked):
            account.since, account.num_expired = now, 0
            account.num_done += num
            account.measure(num, now)
        self._close_passes()
        return booked

    def _tracker(self, account: PeerAccount, span: Span) -> list[Span]:
        tracker = self._passes.get(span.pass_number)
        if tracker is None or not tracker.has(span):
            is_repeated = tracker is None and span.pass_number in self.finished_passes
            self.num_repeated += span.num_records if is_repeated else 0
            self.num_strange += 0 if is_repeated else span.num_records
            return []
        if not tracker.opens(span):
            self.num_repeated += span.num_records
            return []
        own = account.leased.get(span.block, Intervals()).within(span.interval)
        free = tracker.open[span.block].free.within(span.interval)
        done = tracker.open[span.block].done.within(span.interval)
        booked = [Span(*span.block, *interval) for interval in (*own, *free)]
        self.num_repeated += sum(stop - start for start, stop in done)
        self.num_strange += span.num_records - _total(booked) - sum(stop - start for start, stop in done)
        for part in booked:
            if span.block in account.leased:
                account.leased[span.block].remove(part.interval)
            tracker.finish(part)
        if not account.leased.get(span.block, True):
            del account.leased[span.block]
        return booked

    def _close_passes(self) -> None:
        for number in [number for number, tracker in self._passes.items() if tracker.is_done]:
            self.finished_passes[number] = self._passes.pop(number).num_done
        if not self._passes:
            number = max(self.finished_passes) + 1
            self._passes[number] = PassTracker(self._order, number)

    def lease_of(self, name: str) -> list[Span]:
        """What is on a peer's lease."""
        return self._accounts[name].spans() if name in self._accounts else []

    def booked_epoch(self, name: str) -> int:
        """The newest epoch of which a peer's records are booked; -1: none."""
        return self._accounts[name].booked_epoch if name in self._accounts else -1

    @property
    def names(self) -> Collection[str]:
        """Whom the ledger knows."""
        return self._accounts.keys()

    def figures(self) -> list[PassFigures]:
        """How far each pass that has begun has come."""
        leased = [span for account in self._accounts.values() for span in account.spans()]
        done = [
            PassFigures(pass_number=number, num_done=num, num_leased=0, is_done=True)
            for number, num in sorted(self.finished_passes.items())
        ]
        return done + [
            PassFigures(
                pass_number=number,
                num_done=tracker.num_done,
                num_leased=_total(span for span in leased if span.pass_number == number),
                is_done=False,
            )
            for number, tracker in sorted(self._passes.items())
        ]

    def to_json(self) -> dict[str, Any]:
        """What is done, as plain values. Leases are in it, so that nobody gets them a second time while they last."""
        return dict(
            passes=[tracker.to_json() for tracker in self._passes.values()],
            finished_passes=sorted(self.finished_passes.items()),
            num_repeated=self.num_repeated,
            num_strange=self.num_strange,
            accounts=[
                [name, account.user, account.booked_epoch, account.num_done, account.rate, account.spans()]
                for name, account in self._accounts.items()
            ],
        )

    @classmethod
    def from_json(cls, order: BlockOrder, options: LedgerOptions, values: Mapping[str, object], now: float) -> Self:
        """The ledger that `to_json` gave; its leases last from now on. ValueError if it gave something else."""
        try:
            return cls._from_json(order, options, values, now)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"The ledger's state is damaged: {error!r}.") from error

    @classmethod
    def _from_json(cls, order: BlockOrder, options: LedgerOptions, values: Mapping[str, Any], now: float) -> Self:
        ledger = cls(order, options)
        ledger._passes = {
            int(tracker["pass_number"]): PassTracker.from_json(order, tracker) for tracker in values["passes"]
        }
        ledger.finished_passes = {int(number): int(num) for number, num in values["finished_passes"]}
        ledger.num_repeated, ledger.num_strange = int(values["num_repeated"]), int(values["num_strange"])
        for name, user, epoch, num_done, rate, spans in values["accounts"]:
            account = PeerAccount(user=user, since=now, booked_epoch=epoch, num_done=num_done, rate=rate)
            ledger._accounts[name] = account
            for span in (Span(*map(int, span)) for span in spans):
                ledger._lease_again(account, span)
        return ledger

    def _lease_again(self, account: PeerAccount, span: Span) -> None:
        tracker = self._passes.get(span.pass_number)
        held = tracker.open.get(span.block) if tracker is not None else None
        if held is None:
            return
        for interval in held.free.within(span.interval):
            held.free.remove(interval)
            account.leased.setdefault(span.block, Intervals()).add(interval)


def _total(spans: Iterable[Span]) -> int:
    return sum(span.num_records for span in spans)
