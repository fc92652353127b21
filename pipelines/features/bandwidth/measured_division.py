"""One averager's part in dividing the vector: what it tells its group of links, and the shares that follow."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from pipelines.core.averaging.division import Division, Link
from pipelines.core.swarm.upload_limit import UploadLimit
from pipelines.features.bandwidth.claims import Witness, members_of, read_statement, told
from pipelines.features.bandwidth.link_meter import LinkMeter
from pipelines.features.bandwidth.shares import (
    Member,
    bounded,
    divided,
    duration_of,
    seconds_needed,
    seen_in_time,
    shares_of,
)
from pipelines.features.bandwidth.tcp_counters import Traffic, daemon_of, traffic_of

logger = logging.getLogger(__name__)

MIN_GAIN = 1.1
"""A helper offers its link if that makes the round shorter by this factor."""

ROUNDS_BETWEEN_OFFERS = 20
"""A helper that has found out that its link gains nothing listens for this many rounds."""


class MeasuredDivision(Division):
    """Divides by what links reach, as far as it is measured, claimed and witnessed."""

    def __init__(self, dht_process: int | None, limit_mbit: float | None, *, may_help: bool = False) -> None:
        self._daemon = None if dht_process is None else daemon_of(dht_process)
        self._limit_mbit, self._may_help = limit_mbit, may_help
        self._meter, self._witness = LinkMeter(count=self._count), Witness()
        self._members: tuple[Member, ...] = ()
        self._own_index = self._num_rounds_to_listen = 0
        self.helps = False

    @property
    def pacer(self) -> UploadLimit:
        """Paces what this peer sends; see `LinkMeter`."""
        return self._meter.pacer

    @property
    def measured(self) -> Link | None:
        """What this peer's link was measured to carry, up to the upload limit; None: nothing yet."""
        link = self._meter.link
        return link if link is None or not self._limit_mbit else replace(link, up=min(link.up, self._limit_mbit))

    @property
    def link(self) -> Link | None:
        """What this peer's link carries: measured, or what it was limited to; None: neither is known."""
        limit = self._limit_mbit
        return Link(up=limit, down=limit) if limit and self.measured is None else self.measured

    def told(self, gathered: bytes) -> bytes:
        """Return what this peer tells its group, in place of what hivemind has it say."""
        link = self.link
        if self._limit_mbit == 0 and not self._offers_help():
            return told(gathered, 0.0, None, self._witness.report())
        up, down = (None, None) if link is None else (round(link.up, 3), round(link.down, 3))
        return told(gathered, up, down, self._witness.report())

    def _offers_help(self) -> bool:
        """Decide whether this peer, which listens, offers its link for the next round."""
        link = self._meter.link
        if not self._may_help or link is None or not self._members:
            return False
        self._num_rounds_to_listen -= 1
        offers = gain_of_help(self._members, self._own_index, link) >= MIN_GAIN and self._num_rounds_to_listen <= 0
        if offers != self.helps:
            logger.info("This peer %s the others to reduce.", "begins to help" if offers else "no longer helps")
            self._num_rounds_to_listen = 0 if offers else ROUNDS_BETWEEN_OFFERS
        self.helps = offers
        return offers

    def divide(self, own_index: int, peers: Sequence[bytes], gathered: Sequence[bytes], size: int) -> tuple[int, ...]:
        """Return how many values of the vector each member reduces; all members come to the same.

        Raises:
            ValueError: nobody can reduce.
        """
        statements = tuple(map(read_statement, gathered))
        self._members, self._own_index = members_of(peers, statements), own_index
        others = [*statements[:own_index], *statements[own_index + 1 :]]
        self._meter.others_mbit = sum(math.inf if other.down is None else other.down for other in others)
        shares = shares_of(self._members)
        logger.debug(
            "Measured here: %s. Links that count: %s. Shares: %s.",
            self._meter.link,
            [(round(member.link.up, 1), round(member.link.down, 1), member.is_proven) for member in self._members],
            [round(share, 3) for share in shares],
        )
        return divided(size, shares)

    def seconds_needed(self, num_mbit: float, most_seconds: float) -> float | None:
        """Return how long a round of so many Mbit takes in the group that was divided last; see `shares`."""
        return seconds_needed(self._members, num_mbit, most_seconds)

    def slowest_mbit(self, num_mbit: float, most_seconds: float) -> float:
        """Return the rate of the slowest sender among those that are `seen_in_time`; infinity: there is none."""
        seen = seen_in_time(self._members, num_mbit, most_seconds)
        return min((bounded(member.link.up) for member in seen if member.sends), default=math.inf)

    def is_seen(self, index: int) -> bool:
        """Return whether most of the others have seen what a member, by its place in the group, delivers."""
        return self._members[index].seen_mbit is not None

    def note_late(self, delivered: Mapping[bytes, float]) -> None:
        """Take what those have delivered, in Mbit/s by peer id, for whom an attempt was given up."""
        self._witness.note_late(delivered)

    def note_round(self, delivered: Mapping[bytes, float]) -> None:
        """Take what the others have delivered in a whole round, in Mbit/s, by peer id."""
        self._witness.note_round(delivered)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Measure this peer's link meanwhile."""
        watching = asyncio.create_task(self._meter.watch())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _count(self) -> Mapping[int, Traffic]:
        if self._daemon is None:
            raise OSError("There is no libp2p daemon to be seen.")
        return traffic_of(self._daemon)


def gain_of_help(members: Sequence[Member], own_index: int, link: Link) -> float:
    """Return how many times shorter a round is if a member that sends nothing reduces over such a link."""
    others = (*members[:own_index], *members[own_index + 1 :])
    if not any(other.reduces for other in others):
        return math.inf
    durations = []
    for helps in (False, True):
        own = replace(members[own_index], reduces=helps, is_proven=True, link=link)
        group = (*members[:own_index], own, *members[own_index + 1 :])
        durations.append(duration_of(group, shares_of(group)))
    return durations[0] / durations[1]
