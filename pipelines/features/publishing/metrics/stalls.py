"""When a run stalls: no epoch ends for much longer than usual. Said once, and once when it goes on."""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hub_tools.counted import counted

NUM_EPOCHS = 50
"""Newest epochs whose median is the usual time."""

STALL_FACTOR = 5.0
SHORTEST_STALL_SECONDS = 120.0


def usual_seconds(epoch_seconds: Iterable[float]) -> float:
    """Return what an epoch usually takes, from those of the past, newest last; 0 while unknown."""
    known = [seconds for seconds in list(epoch_seconds)[-NUM_EPOCHS:] if seconds > 0]
    return statistics.median(known) if known else 0.0


def is_stalled(waited_seconds: float, usual: float) -> bool:
    """Tell whether an epoch takes so much longer than usual that somebody should look."""
    return waited_seconds > max(STALL_FACTOR * usual, SHORTEST_STALL_SECONDS)


@dataclass(frozen=True, kw_only=True)
class StallNews:
    """A run has stalled, or goes on after a stall."""

    epoch: int
    """The last one that has ended."""

    has_ended: bool
    """Whether the stall is over."""

    seconds: float
    """Since the epoch before had ended."""

    usual_seconds: float
    num_trainers: int


class StallWatch:
    """Follows the epochs that have ended, as who holds the run's state sees them: no peer's claim delays the news."""

    def __init__(self, epoch_seconds: Iterable[float]) -> None:
        """`epoch_seconds`: of the run's history, newest last."""
        self._seconds = deque(epoch_seconds, maxlen=NUM_EPOCHS)
        self._epoch: int | None = None
        self._since = 0.0
        self._is_first = True
        self._is_stalled = False

    def look(self, epoch: int, *, num_trainers: int, now: float) -> StallNews | None:
        """Return the news that the run has stalled or goes on, each once; `now` is a clock that never goes back."""
        if self._epoch is None:
            self._epoch, self._since = epoch, now
        waited, usual = now - self._since, usual_seconds(self._seconds)
        num_ended, self._epoch = epoch - self._epoch, epoch
        if num_ended != 0:
            was_stalled, self._is_stalled, self._since = self._is_stalled, False, now
            if num_ended > 0 and not was_stalled and not self._is_first:
                self._seconds.append(waited / num_ended)
            self._is_first = False  # of the first epoch only the end was seen
            return self._news(waited, usual, num_trainers) if was_stalled else None
        if self._is_stalled or not usual or not is_stalled(waited, usual):
            return None
        self._is_stalled = True
        return self._news(waited, usual, num_trainers)

    def _news(self, waited: float, usual: float, num_trainers: int) -> StallNews:
        assert self._epoch is not None
        return StallNews(
            epoch=self._epoch, has_ended=not self._is_stalled, seconds=waited, usual_seconds=usual,
            num_trainers=num_trainers,
        )  # fmt: skip


def stall_sentence(news: StallNews) -> str:
    """Return the news as a sentence."""
    if news.has_ended:
        return f"The run goes on: epoch {news.epoch} has ended, after {news.seconds:,.0f} s without one."
    return (
        f"The run has stalled: no epoch has ended for {news.seconds:,.0f} s, usually one takes "
        f"{news.usual_seconds:,.0f} s; {counted(news.num_trainers, 'trainer')}."
    )
