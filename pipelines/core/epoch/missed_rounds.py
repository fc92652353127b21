"""Waiting for a round of averaging, unless the others have already had it, and leaving one.

A peer that is too late for a group finds none until the others have computed another epoch, and would then average a
gradient of parameters that nobody has any more. It should rather download the swarm's state at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import InvalidStateError

from hivemind.averaging.control import AveragingStage, StepControl

from pipelines.core.epoch.round_policy import Search

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.5


class MissedRoundError(RuntimeError):
    """The others have had the round that this peer was matchmaking for."""


def search_of(control: StepControl | None) -> Search:
    """Return the state of a round's matchmaking."""
    if control is None:
        return Search.NONE
    if control.done():
        return Search.OVER
    return Search.IN_ROUND if control.triggered else Search.OPEN


def wait_for_round(
    control: StepControl,
    seconds: float,
    have_moved_on: Callable[[], bool],
    attempt_until: Callable[[], float] = lambda: 0.0,
) -> None:
    """Wait until a round is over; while it has no group, check occasionally whether the others `have_moved_on`.

    `attempt_until` returns until when an all-reduce that has begun may last, by the links of its members: it is not
    given up before.

    Raises:
        MissedRoundError: they have; matchmaking was aborted.
        TimeoutError: the round is not over after this many seconds.
        Exception: the round's own error.
    """
    deadline = time.monotonic() + seconds
    while (rest := max(deadline, attempt_until()) - time.monotonic()) > 0:
        try:
            control.result(min(rest, SECONDS_BETWEEN_LOOKS))
            return
        except TimeoutError:
            if control.done():
                raise  # the round's own
        # A group may be found during the check: then they have moved on together with this peer.
        if _is_looking(control) and have_moved_on() and _is_looking(control) and stop_looking(control):
            raise MissedRoundError("The others have averaged without this peer.")
    raise TimeoutError(f"The round was not over after {seconds:.0f} s.")


def leave_round(control: StepControl, tag_along: Callable[[StepControl], None]) -> None:
    """Leave an unfinished round: stop matchmaking, or `tag_along` with zero weight in the group it has.

    A zero-weight member that is still matchmaking would wait until the others' next epoch ends and join that round.
    """
    if control.done():
        return
    if not (_is_looking(control) and stop_looking(control)):
        tag_along(control)  # others depend on this peer's part of the vector


def tag_along(control: StepControl, seconds: float) -> None:
    """Wait for a round in which this peer reduces its part of the vector, but its own gradient has weight zero."""
    if not control.triggered:
        control.weight = 0
        control.allow_allreduce()
    try:
        # An attempt that fails is not tried again for the sake of a vector that nobody wants.
        wait_for_round(control, seconds, have_moved_on=lambda: True)
    except (Exception, asyncio.CancelledError) as error:
        logger.warning("A round that this peer had left failed: %r", error)
        if not control.done():
            control.cancel()


def _is_looking(control: StepControl) -> bool:
    return control.stage == AveragingStage.LOOKING_FOR_GROUP


def stop_looking(control: StepControl) -> bool:
    """Stop matchmaking; return False if a group was found just now."""
    try:
        control.cancel()
    except InvalidStateError:  # the averager's process no longer listens
        return False
    return True
