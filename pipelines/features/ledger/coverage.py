"""How much of each pass over the data has been trained on, from the published ledger. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.features.ledger.ledger_files import Booking, overlaps


@dataclass(frozen=True, kw_only=True)
class PassCoverage:
    """One pass."""

    pass_number: int
    """0 is the first one."""

    num_records: int
    """Booked, each once: held-out ones, which are read and not trained on, are among them."""

    num_twice: int
    """Booked a second time, which is a fault."""

    num_peers: int
    first_epoch: int
    last_epoch: int


def coverage(bookings: Sequence[Booking]) -> list[PassCoverage]:
    """The passes that have begun, in their order."""
    by_pass: dict[int, list[Booking]] = defaultdict(list)
    for booking in bookings:
        by_pass[booking.span.pass_number].append(booking)
    return [_of_pass(number, by_pass[number]) for number in sorted(by_pass)]


def _of_pass(number: int, bookings: Sequence[Booking]) -> PassCoverage:
    twice = sum(min(one.span.stop, other.span.stop) - other.span.start for one, other in overlaps(bookings))
    epochs = [booking.epoch for booking in bookings]
    return PassCoverage(
        pass_number=number,
        num_records=sum(booking.span.num_records for booking in bookings) - twice,
        num_twice=twice,
        num_peers=len({booking.name for booking in bookings}),
        first_epoch=min(epochs),
        last_epoch=max(epochs),
    )


@dataclass(frozen=True, kw_only=True)
class NewestPass:
    """How far the run's newest pass has come."""

    pass_number: int
    share: float | None
    """Of its records that are booked, at most 1; None: the number of records is not known."""


def newest_pass(state: Mapping[str, Any] | None) -> NewestPass | None:
    """From the ledger's published state; None: there is none, or nothing is booked."""
    if state is None:
        return None
    try:
        done = dict(state["finished_passes"]) | {book["pass_number"]: book["num_done"] for book in state["passes"]}
        begun = [int(number) for number, num_records in done.items() if int(num_records) > 0]
    except (KeyError, TypeError, ValueError):  # anybody with write access may have written it
        return None
    if not begun:
        return None
    size = state.get("pass_records")
    is_known = isinstance(size, int) and size > 0
    return NewestPass(pass_number=max(begun), share=min(1.0, done[max(begun)] / size) if is_known else None)
