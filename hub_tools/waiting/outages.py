"""Trying again while the Hub is down or busy, and not before the time that it names."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error
from hub_tools.waiting.retry_after import asked_seconds

logger = logging.getLogger(__name__)

SECONDS_BEFORE_NEXT_TRY = (5.0, 15.0, 60.0)
"""`datasets` retries a failed read for some ten minutes. After that a stream retries for ever with these pauses."""

Value = TypeVar("Value")


def through_outages(
    ask: Callable[[], Value],
    pauses: Sequence[float] = SECONDS_BEFORE_NEXT_TRY,
    *,
    for_ever: bool = True,
    limit_seconds: float = math.inf,
    is_passing: Callable[[Exception], bool] = is_outage,
    what: str = "The dataset cannot be read",
) -> Value:
    """Return what `ask` returns; while the Hub is down or busy, try again after a pause, which a line announces.

    pauses: seconds, or what the Hub asks for if that is longer; the last one is repeated, or, if it is not to go on for
        ever, followed by the last try.
    limit_seconds: after these no pause begins; one that the Hub asks for ends before twice as many have passed.
    """
    started = time.monotonic()
    for number in itertools.count():
        try:
            return ask()
        except Exception as error:
            pause, asked = pauses[min(number, len(pauses) - 1)], asked_seconds(error)
            passed = time.monotonic() - started
            is_over = passed + pause > limit_seconds or passed + asked > 2 * limit_seconds
            if not is_passing(error) or is_over or (number >= len(pauses) and not for_ever):
                raise
            pause = max(pause, asked)
            logger.warning(f"{what} (%s). Retrying in %.0f s.", explain_error(error).rstrip("."), pause)
            time.sleep(pause)
    raise AssertionError("unreachable")
