"""Who reduces how much of the vector: the `Division` that an averager is given."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from hivemind.averaging.allreduce import AveragingMode

from pipelines.core.averaging.group.group_data import mode_of
from pipelines.core.swarm.upload_limit import UploadLimit


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a link carries in each direction, in Mbit/s."""

    up: float
    down: float


class Division:
    """Measures nothing: all members that answer calls and send a vector reduce the same. In the averager's process.

    One that knows more of the group's links overrides this; all members of a run must come to the same.
    """

    def __init__(self, dht_process: int | None, limit_mbit: float | None, *, may_help: bool = False) -> None:
        """`dht_process` has started the libp2p daemon; `limit_mbit`: the upload limit of this peer, 0 if it listens.

        `may_help`: whether a peer that listens offers to reduce where that promises a gain.
        """

    @property
    def pacer(self) -> UploadLimit | None:
        """Paces what this peer sends."""
        return None

    @property
    def measured(self) -> Link | None:
        """What this peer's link was measured to carry, up to the upload limit; None: nothing yet."""
        return None

    def measuring(self) -> AbstractAsyncContextManager[None]:
        """Measure this peer's link meanwhile."""
        return nullcontext()

    def told(self, gathered: bytes) -> bytes:
        """Return what this peer tells its group, in place of what hivemind has it say."""
        return gathered

    def divide(self, own_index: int, peers: Sequence[bytes], gathered: Sequence[bytes], size: int) -> tuple[int, ...]:
        """Return how many values of the vector each member reduces; all members come to the same.

        Raises:
            ValueError: nobody can reduce.
        """
        can_reduce = [mode_of(told) is AveragingMode.NODE for told in gathered]
        if not any(can_reduce):
            raise ValueError("Nobody in the group can reduce: all are clients or listeners.")
        bounds = [size * number // sum(can_reduce) for number in itertools.accumulate(can_reduce, initial=0)]
        return tuple(end - begin for begin, end in itertools.pairwise(bounds))

    def seconds_needed(self, num_mbit: float, most_seconds: float) -> float | None:
        """Return how long a round of so many Mbit takes in the group that was divided last; None: nobody knows."""
        return None

    def slowest_mbit(self, num_mbit: float, most_seconds: float) -> float:
        """Return the rate of the slowest sender that can send so many Mbit in time; infinity: none is known."""
        return math.inf

    def is_seen(self, index: int) -> bool:
        """Return whether most of the others have seen what a member, by its place in the group, delivers."""
        return False

    def note_late(self, delivered: Mapping[bytes, float]) -> None:
        """Take what those have delivered, in Mbit/s by peer id, for whom an attempt was given up."""

    def note_round(self, delivered: Mapping[bytes, float]) -> None:
        """Take what the others have delivered in a whole round, in Mbit/s, by peer id."""


NewDivision = Callable[[int | None, float | None], Division]
