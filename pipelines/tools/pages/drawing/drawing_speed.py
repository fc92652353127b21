"""How long drawing takes on this machine, measured while it draws."""

from collections import deque
from dataclasses import dataclass

from hub_tools.counted import counted

NUM_REMEMBERED = 5
SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, kw_only=True)
class TimedDrawing:
    """What one drawing cost."""

    seconds: float
    """From the first code to the ranked pictures."""
    num_candidates: int
    """Pictures drawn."""
    is_guided: bool = False
    """Guidance computes every code twice."""
    share_drawn: float = 1.0
    """Part of each picture that was drawn rather than given."""

    @property
    def work(self) -> float:
        """Amount of work, in whole candidates without guidance."""
        return self.num_candidates * self.share_drawn * (2 if self.is_guided else 1)


class DrawingSpeed:
    """Remembers the last drawings of a machine."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._drawings: deque[TimedDrawing] = deque(maxlen=NUM_REMEMBERED)

    def record(self, drawing: TimedDrawing) -> None:
        """Remember a drawing that is finished."""
        self._drawings.append(drawing)

    def seconds_per_candidate(self) -> float | None:
        """Return the mean over the remembered drawings, without guidance; None before the first."""
        drawings = list(self._drawings)
        work = sum(drawing.work for drawing in drawings)
        return sum(drawing.seconds for drawing in drawings) / work if work else None

    def sentence(self, num_candidates: int, *, is_guided: bool = False) -> str:
        """Say how long a number of candidates will take."""
        seconds = self.seconds_per_candidate()
        if seconds is None:
            slow = " Without a GPU it may take minutes." if self.device == "cpu" else ""
            return f"Nothing has been drawn since this page started, so the time is not known yet.{slow}"
        expected = TimedDrawing(seconds=0, num_candidates=num_candidates, is_guided=is_guided).work * seconds
        number = len(self._drawings)
        measured = "the last drawing" if number == 1 else f"the last {number} drawings"
        return (
            f"{counted(num_candidates, 'candidate')} will take about {in_words(expected)} here ({self.device}): "
            f"{seconds:.2g} s each in {measured}."
        )


def in_words(seconds: float) -> str:
    """Return a duration in words: `8 s`, `3 min`."""
    return (
        f"{max(1, round(seconds))} s" if seconds < 2 * SECONDS_PER_MINUTE else f"{seconds / SECONDS_PER_MINUTE:.0f} min"
    )
