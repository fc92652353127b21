"""What members say of their links and of each other's, and how far it counts.

A claim attracts work: who claims a fast link is given much to reduce, and a round lasts until it has. So a claim counts
only once most of the others have seen its peer in whole rounds, and only up to a multiple of what they have seen it
deliver. What a peer says of its own slowness counts at once for its share of the work, but nobody is waited for longer
because of it: that takes what the others have seen, be it in an attempt that was given up for this peer's sake. All
members work from the data that everybody in the group has signed, in the same order, and come to the same links.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

from hub_tools.checks import is_number
from pipelines.core.averaging.division import Link
from pipelines.core.averaging.group.group_data import ID_BYTES
from pipelines.features.bandwidth.shares import Member, bounded

MIN_ROUNDS = 2
"""Whole rounds in which a witness has seen a peer deliver before it vouches for it."""

MOST_ROUNDS = 4
"""Rounds that a witness remembers of a peer."""

GROWTH = 2.0
"""A claim counts up to this multiple of what the peer was seen to deliver: a peer that has had little to deliver is
given more, twice as much every round, and one that lies makes a round last twice as long at most."""

OUTLIER = 2.0
"""What one witness has seen counts up to this multiple of what the median witness has."""

MOST_SEEN = 256
"""Peers of which a member reports: 20 bytes each."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a witness reports of a peer."""

    num_rounds: int
    """Whole rounds; 0: the last attempt with this peer was given up because it was late."""

    mbit: float
    """The fastest that it has delivered to the witness in one of the last rounds, from its start to the last part; or
    what it delivered in the attempt for which it was late."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a member has told its group of links; what it has not said, or cannot be, is None."""

    mode: AveragingMode
    up: float | None = None
    """Mbit/s; 0: it reduces nothing."""

    down: float | None = None
    seen: Mapping[bytes, Seen] = field(default_factory=dict)


class Witness:
    """Remembers what the others delivered to this peer in whole rounds."""

    def __init__(self) -> None:
        self._rates: dict[bytes, deque[float]] = {}
        self._late: set[bytes] = set()

    def note_round(self, rates: Mapping[bytes, float]) -> None:
        """Take what each peer, by its id, has delivered in a whole round, in Mbit/s."""
        for peer, rate in rates.items():
            name = peer[-ID_BYTES:]
            known = self._rates.pop(name, deque(maxlen=MOST_ROUNDS))
            if name in self._late:
                self._late.discard(name)
                known.clear()
            known.append(rate)
            self._rates[name] = known  # the newest last
        self._forget_some()

    def note_late(self, rates: Mapping[bytes, float]) -> None:
        """Take what those delivered, in Mbit/s, for whom an attempt was given up: all else about them is outdated."""
        for peer, rate in rates.items():
            name = peer[-ID_BYTES:]
            former = self._rates.pop(name, deque[float]())
            # In a short attempt a rate is easily overestimated: who is late again in spite of it has half of it.
            rate = min(rate, former[-1] / 2) if name in self._late else rate
            self._rates[name] = deque([rate], maxlen=MOST_ROUNDS)
            self._late.add(name)
        self._forget_some()

    def report(self) -> list[list[object]]:
        """Return what goes into `told`."""
        return [
            [peer, 0 if peer in self._late else len(rates), round(max(rates), 3)] for peer, rates in self._rates.items()
        ]

    def _forget_some(self) -> None:
        for peer in list(self._rates)[:-MOST_SEEN]:
            del self._rates[peer]
            self._late.discard(peer)


def told(gathered: bytes, up: float | None, down: float | None, seen: Sequence[Sequence[object]]) -> bytes:
    """Return what a member tells its group, with its link's rates in Mbit/s and its report as the message."""
    _, mode, _ = MSGPackSerializer.loads(gathered)
    return MSGPackSerializer.dumps([up, mode, MSGPackSerializer.dumps([down, list(seen)])])


def read_statement(gathered: bytes) -> Statement:
    """Read what a member has told its group; it has passed `mode_of`, and its message may be anything."""
    up, mode, message = MSGPackSerializer.loads(gathered)
    try:
        down, seen = MSGPackSerializer.loads(message)
        known = {peer: _read_seen(number, rate) for peer, number, rate in seen[:MOST_SEEN]}
    except (ValueError, TypeError):
        down, known = None, {}
    peers = {peer: one for peer, one in known.items() if isinstance(peer, bytes) and len(peer) == ID_BYTES and one}
    is_rate = is_number(down) and down > 0
    return Statement(mode=AveragingMode(mode), up=up, down=float(down) if is_rate else None, seen=peers)


def _read_seen(num_rounds: object, rate: object) -> Seen | None:
    if type(num_rounds) is not int or not 0 <= num_rounds <= MOST_ROUNDS or not is_number(rate):
        return None
    return Seen(num_rounds=num_rounds, mbit=bounded(rate))


def members_of(peers: Sequence[bytes], statements: Sequence[Statement]) -> tuple[Member, ...]:
    """Return how far each member's link counts, from what all have told, in the group's order."""
    seen = [_seen_of(peer, statements[:index], statements[index + 1 :]) for index, peer in enumerate(peers)]
    # Who only listens is delivered nothing that it could report.
    are_witnesses = [statement.mode != AveragingMode.AUX or bool(statement.up) for statement in statements]
    num_witnesses = [sum(are_witnesses) - is_witness for is_witness in are_witnesses]
    are_proven = [
        statement.up is not None and 2 * sum(one.num_rounds >= MIN_ROUNDS for one in reports) > number
        for statement, reports, number in zip(statements, seen, num_witnesses, strict=True)
    ]
    ups = [
        min(bounded(statement.up), GROWTH * _delivered(reports, len(peers) - 1)) if is_proven and statement.up else None
        for statement, reports, is_proven in zip(statements, seen, are_proven, strict=True)
    ]
    usual = _usual(ups) or _usual([statement.up for statement in statements]) or 1.0
    counted = [
        up or min(usual, bounded(usual if statement.up is None else statement.up), _while_late(reports, len(peers) - 1))
        for up, statement, reports in zip(ups, statements, seen, strict=True)
    ]
    can_reduce = [statement.mode != AveragingMode.CLIENT and statement.up != 0 for statement in statements]
    if not any(can_reduce):
        can_reduce = [statement.mode == AveragingMode.NODE for statement in statements]
    return tuple(
        Member(
            sends=statement.mode != AveragingMode.AUX,
            reduces=can_reduce[index],
            is_proven=are_proven[index],
            link=Link(up=up, down=up if statement.down is None else bounded(statement.down)),
            seen_mbit=_delivered(seen[index], len(peers) - 1) if 2 * len(seen[index]) > num_witnesses[index] else None,
        )
        for index, (up, statement) in enumerate(zip(counted, statements, strict=True))
    )


def _seen_of(peer: bytes, *others: Sequence[Statement]) -> list[Seen]:
    name = peer[-ID_BYTES:]
    return [statement.seen[name] for side in others for statement in side if name in statement.seen]


def _delivered(reports: Sequence[Seen], num_others: int) -> float:
    """Return what a peer delivers to all others together, by the reports of most of them, in Mbit/s."""
    middle = statistics.median_low(report.mbit for report in reports)
    return sum(min(report.mbit, OUTLIER * middle) for report in reports) * num_others / len(reports)


def _while_late(reports: Sequence[Seen], num_others: int) -> float:
    """Return what a peer delivered to all others together if most of them gave up an attempt for its sake."""
    late = [report for report in reports if not report.num_rounds]
    return _delivered(late, num_others) if 2 * len(late) > len(reports) else math.inf


def _usual(rates: Sequence[float | None]) -> float | None:
    known = [bounded(rate) for rate in rates if rate]
    return statistics.median_low(known) if known else None
