"""How long a group waits for its members, and whom it does without for a while; in the averager's process."""

import logging
import math
import time
from collections.abc import Callable, Sequence

from hivemind.p2p import PeerID

from pipelines.core.averaging.division import Division
from pipelines.core.averaging.figures import Round
from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.group.time_limits import AttemptTimes
from pipelines.core.averaging.wire.streams import MAX_STREAMS
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT

logger = logging.getLogger(__name__)

FIRST_LEFT_OUT_SECONDS, LONGEST_LEFT_OUT_SECONDS = 5.0, 3600.0
"""Who wastes an attempt is in no group for this long, twice as long each time in a row."""


class Patience:
    """Derives time limits from what members were seen to deliver, and remembers who wasted the time it was given.

    All members of a group derive the same limits, except for what each remembers of earlier rounds. Who delivers as its
    link allows is waited for from its second round on. Who could not send a vector within the longest time of an
    attempt, or was late although its link was known, is in no group of this peer for a while.
    """

    def __init__(self, times: AttemptTimes, clock: Callable[[], float] = time.monotonic) -> None:
        self.times, self._clock = times, clock
        self._left_out = Blocklist(FIRST_LEFT_OUT_SECONDS, LONGEST_LEFT_OUT_SECONDS)

    def seconds(self, division: Division | None, vector_bytes: float) -> float | None:
        """Return how long an attempt may last in the group that was divided last; None: there is no limit."""
        if division is None:
            return self.times.seconds()
        return self.times.seconds(division.seconds_needed(vector_bytes / BYTES_PER_MEGABIT, self.times.highest))

    def timeouts_of_streams(
        self, division: Division, vector_bytes: float, part_bytes: float, sender_timeout: float, reducer_timeout: float
    ) -> dict[str, float]:
        """Return after how many silent seconds a sender and a reducer are given up: slow links send parts rarely."""
        slowest = division.slowest_mbit(vector_bytes / BYTES_PER_MEGABIT, self.times.highest)
        # Before the next part of one stream, all others have had one, and they share the link.
        seconds = max(sender_timeout, 2 * MAX_STREAMS * part_bytes / BYTES_PER_MEGABIT / slowest)
        return dict(sender_timeout=seconds, reducer_timeout=reducer_timeout + seconds - sender_timeout)

    def leaves_out(self, peer: PeerID) -> bool:
        """Return whether a peer is in no group of this one now."""
        return self._left_out.avoids(peer, self._clock())

    def note_success(self, runner: Round, division: Division | None) -> None:
        """Take what the members of a whole round have delivered."""
        if division is not None:
            division.note_round(runner.delivered_mbit())
        for peer in runner.sender_peer_ids:
            self._left_out.forgive(peer)

    def note_late(
        self, runner: Round, division: Division | None, members: Sequence[PeerID], vector_bytes: float
    ) -> None:
        """Take what those have delivered for whom an attempt was given up; leave out those who wasted it.

        If it is most of the others, this peer is the one that is cut off or slow: then nobody is left out.
        """
        self.times.note_failure()
        late = runner.late_mbit() if division is not None else dict.fromkeys(runner.late_senders, 0.0)
        if division is not None and late:
            division.note_late({peer.to_bytes(): rate for peer, rate in late.items()})
        if 2 * len(late) >= len(runner.sender_peer_ids):
            return
        if division is None:  # what was announced is small: no slow link explains that it does not come
            for peer in late:
                self._left_out.avoid(peer, self._clock())
            return
        for peer, rate_here in late.items():
            rate = rate_here / max(runner.share_reduced, 1e-9)  # to all reducers together, which get theirs at one pace
            seconds = vector_bytes / BYTES_PER_MEGABIT / rate if rate else math.inf
            is_too_slow = rate > 0 and seconds > self.times.highest
            if is_too_slow or division.is_seen(members.index(peer)):
                least = self.times.highest if is_too_slow else 0.0
                left_out = self._left_out.avoid(peer, self._clock(), at_least=least)
                logger.warning(
                    "Peer %s kept the others waiting and is left out for %.0f s. It sent %.3g Mbit/s; a round takes "
                    "%.0f MB, and %.0f s at most.",
                    peer.to_base58(), left_out, rate, vector_bytes / 1e6, self.times.highest,
                )  # fmt: skip
