"""What a peer has moved over its links since it began, and how long the run will still take."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from pipelines.features.bandwidth.tcp_counters import Traffic, traffic_of

LEAST_EPOCHS = 3
"""Epochs of this session from which the rest of the run is estimated: the first one may have begun long before."""

NOTHING = Traffic(0, 0, 0)


class SessionTraffic:
    """Sums the bytes of all connections; what one of them moves between the last look and its end is not counted."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._known: Mapping[int, Traffic] = {}

    def note(self, now: Mapping[int, Traffic]) -> None:
        """Add what open connections have moved since the last look, by inode."""
        for connection, traffic in now.items():
            before = self._known.get(connection, NOTHING)
            if traffic.sent < before.sent or traffic.received < before.received:
                before = NOTHING  # another connection with the number of one that has ended
            self.sent += traffic.sent - before.sent
            self.received += traffic.received - before.received
        self._known = now

    def look(self, group: int) -> None:
        """Add what the processes of a group have moved; OSError if this kernel does not tell, or one has just ended."""
        self.note(traffic_of(*processes_of(group)))


def processes_of(group: int) -> list[int]:
    """Return this user's processes in a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(path.name)) == group and path.stat().st_uid == os.geteuid():
                found.append(int(path.name))
    return found


def seconds_left(
    first_epoch: int, epoch: int, num_epochs: int, *, seconds: float, batch_size: int, samples_per_second: float
) -> float | None:
    """Return how long a run will still take, as its last epochs went, `seconds` since the first one that was seen.

    While there are few of them, as long as the swarm's pace lets the samples take; None if nobody knows that.
    """
    num_done, num_left = epoch - first_epoch, max(0, num_epochs - epoch)
    if num_done >= LEAST_EPOCHS:
        return num_left * seconds / num_done
    return num_left * batch_size / samples_per_second if samples_per_second > 0 else None
