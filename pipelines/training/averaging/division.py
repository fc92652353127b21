"""Who reduces how much of the vector: the `Division` that an averager is given; `EqualDivision` measures nothing."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from hivemind.averaging.allreduce import AveragingMode

from pipelines.swarm.upload_limit import UploadLimit
from pipelines.training.averaging.group.group_data import mode_of


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a link carries in each direction, in Mbit/s."""

    up: float
    down: float


class Division(Protocol):
    """What one averager knows of its group's links, in its process. All members of a run must divide alike."""

    @property
    def pacer(self) -> UploadLimit | None:
        """Paces what this peer sends."""

    @property
    def measured(self) -> Link | None:
        """What this peer's link was measured to carry; None: nothing yet."""

    def measuring(self) -> AbstractAsyncContextManager[None]:
        """Measure this peer's link meanwhile."""

    def told(self, gathered: bytes) -> bytes:
        """Return what this peer tells its group, in place of what hivemind has it say."""

    def divide(self, own_index: int, peers: Sequence[bytes], gathered: Sequence[bytes], size: int) -> tuple[int, ...]:
        """Return how many values of the vector each member reduces, by what all have told; ValueError: nobody can."""

    def seconds_needed(self, num_mbit: float, most_seconds: float) -> float | None:
        """Return how long a round of so many Mbit takes in the group that was divided last; None: nobody knows."""

    def slowest_mbit(self, num_mbit: float, most_seconds: float) -> float:
        """Return the rate of the slowest sender that can send so many Mbit in time; infinity: none is known."""

    def is_seen(self, index: int) -> bool:
        """Return whether most of the others have seen what a member, by its place in the group, delivers."""

    def note_late(self, delivered: Mapping[bytes, float]) -> None:
        """Take what those have delivered, in Mbit/s by peer id, for whom an attempt was given up."""

    def note_round(self, delivered: Mapping[bytes, float]) -> None:
        """Take what the others have delivered in a whole round, in Mbit/s, by peer id."""


NewDivision = Callable[[int | None, float | None], Division]
"""Makes one of the process that has started the libp2p daemon and the upload limit in Mbit/s, 0 if the peer listens."""


class EqualDivision:
    """All members that answer calls and send a vector reduce the same; see `Division`."""

    pacer = measured = None

    def __init__(self, dht_process: int | None, limit_mbit: float | None) -> None:
        """Neither matters."""

    def measuring(self) -> AbstractAsyncContextManager[None]:
        """See `Division`."""
        return nullcontext()

    def told(self, gathered: bytes) -> bytes:
        """See `Division`."""
        return gathered

    def divide(self, own_index: int, peers: Sequence[bytes], gathered: Sequence[bytes], size: int) -> tuple[int, ...]:
        """See `Division`."""
        can_reduce = [mode_of(told) is AveragingMode.NODE for told in gathered]
        if not any(can_reduce):
            raise ValueError("Nobody in the group can reduce: all are clients or listeners.")
        bounds = [size * number // sum(can_reduce) for number in itertools.accumulate(can_reduce, initial=0)]
        return tuple(end - begin for begin, end in itertools.pairwise(bounds))

    def seconds_needed(self, num_mbit: float, most_seconds: float) -> float | None:
        """See `Division`."""
        return None

    def slowest_mbit(self, num_mbit: float, most_seconds: float) -> float:
        """See `Division`."""
        return math.inf

    def is_seen(self, index: int) -> bool:
        """See `Division`."""
        return False

    def note_late(self, delivered: Mapping[bytes, float]) -> None:
        """See `Division`."""

    def note_round(self, delivered: Mapping[bytes, float]) -> None:
        """See `Division`."""
