"""Waiting for a round of averaging, but not for one that the others have already had, and leaving one.

A peer that comes too late for a group finds none until the others have computed another epoch, and would then average
a gradient of parameters that nobody has any more. It had better take over the swarm's state at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import InvalidStateError

from hivemind.averaging.control import AveragingStage, StepControl

from pipelines.training.swarm_optimizer.round_policy import Search

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.5


class MissedRoundError(RuntimeError):
    """The others have had the round that this peer was looking for a group for."""


def search_of(control: StepControl | None) -> Search:
    """Return how far the search for the group of a round is."""
    if control is None:
        return Search.NONE
    if control.done():
        return Search.OVER
    return Search.IN_ROUND if control.triggered else Search.OPEN


def wait_for_round(control: StepControl, seconds: float, have_moved_on: Callable[[], bool]) -> None:
    """Wait until a round is over; while it has no group, ask now and then whether the others `have_moved_on`.

    Raises:
        MissedRoundError: they have; the search for a group was given up.
        TimeoutError: the round is not over after so many seconds.
        Exception: what the round itself has failed with.
    """
    deadline = time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        try:
            control.result(min(rest, SECONDS_BETWEEN_LOOKS))
            return
        except TimeoutError:
            if control.done():
                raise  # the round's own
        # A group may be found while the question takes its time, and it is with this peer that they have moved on then.
        if _is_looking(control) and have_moved_on() and _is_looking(control) and stop_looking(control):
            raise MissedRoundError("The others have averaged without this peer.")
    raise TimeoutError(f"The round was not over after {seconds:.0f} s.")


def leave_round(control: StepControl, tag_along: Callable[[StepControl], None]) -> None:
    """Take no part in a round that is not over: look for no group, or `tag_along` without weight in the one it has.

    Whoever tags along while it looks for a group waits until the others end another epoch, and is in that round then.
    """
    if control.done():
        return
    if not (_is_looking(control) and stop_looking(control)):
        tag_along(control)  # others count on this peer's part of the vector


def tag_along(control: StepControl, seconds: float) -> None:
    """Wait for a round in which this peer's part of the vector counts, but its gradient weighs nothing."""
    if not control.triggered:
        control.weight = 0
        control.allow_allreduce()
    try:
        control.result(seconds)
    except (Exception, asyncio.CancelledError) as error:
        logger.warning("A round that this peer has left failed: %r", error)
        if not control.done():
            control.cancel()


def _is_looking(control: StepControl) -> bool:
    return control.stage == AveragingStage.LOOKING_FOR_GROUP


def stop_looking(control: StepControl) -> bool:
    """Look for no group any more; return False if one has been found at this very moment."""
    try:
        control.cancel()
    except InvalidStateError:  # the averager's process does not listen any more
        return False
    return True
