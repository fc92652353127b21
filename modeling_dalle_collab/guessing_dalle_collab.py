"""Guesses of the codes ahead, which one pass of the model then checks together, and how many are worth their work.

A code is a function of the codes before it and of the candidate's own numbers, so the codes are a fixed point: a pass
over guesses gives the code behind each, and those up to the first wrong guess are final (Jacobi decoding; Song et al.,
2021, and with sampling Teng et al., 2410.01699). The others are the next pass's guesses. Plain lists: codes are few.
"""

from collections.abc import Sequence

# Larger windows won nothing on CPUs, where the arithmetic of about ten places takes as long as reading the weights.
WINDOWS = (1, 2, 4, 8, 12, 16)
FORGETTING = 0.95
"""What a pass leaves of the weight of those before it."""


class Guesses:
    """The codes of some samples, of which the first `known` of each are final, and guesses behind them."""

    def __init__(self, rows: list[list[int]], size: int) -> None:
        self.rows, self.size = rows, size
        self.known = [len(row) for row in rows]

    def ahead(self, window: int, length: int) -> list[list[int]]:
        """Return for every sample the last final code and guesses behind it, `window` codes in all.

        There are none behind `length`: what is read there does not matter.
        """
        parts = []
        for row, known in zip(self.rows, self.known, strict=True):
            while len(row) < min(known + window - 1, length):
                row.append(self._guess(row, len(row)))
            part = row[known - 1 : min(known + window - 1, length)]
            parts.append(part + [0] * (window - len(part)))
        return parts

    def learn(self, chosen: Sequence[Sequence[int]], length: int) -> list[int]:
        """Take the codes that a pass chose behind what was `ahead`; return how many of each sample became final."""
        news = []
        for sample, codes in enumerate(chosen):
            row, known = self.rows[sample], self.known[sample]
            codes = codes[: length - known]
            right = 0
            while right < len(codes) - 1 and row[known + right] == codes[right]:
                right += 1
            row[known : known + len(codes)] = codes
            new = min(right + 1, len(codes))
            self.known[sample] += new
            news.append(new)
        return news

    def _guess(self, row: list[int], place: int) -> int:
        """Return the code above: 0.19 passes a code; that on the left, or one seen between the same, took 0.23."""
        return row[place - self.size] if place >= self.size else row[place - 1]


class WindowChoice:
    """Finds the window that gives most codes a second, from the seconds and the final codes of the passes so far."""

    def __init__(self, windows: Sequence[int] = WINDOWS) -> None:
        self.windows = windows
        self.seconds: dict[int, list[float]] = {}
        self.right = [0.0] * max(windows)
        self.tried = [0.0] * max(windows)
        """How often a guess at some distance was right, and tried: those before it were right, too."""

    def next(self) -> int:
        """Return the window of the next pass; each larger one is tried twice while it could win."""
        if not self.seconds:
            return self.windows[0]
        best = max(self.seconds, key=self._codes_per_second)
        for window in self.windows:
            times = self.seconds.get(window, [])
            if len(times) == 1 or (not times and self._could_win(window, best)):
                return window
        return best

    def learn(self, window: int, seconds: float, news: Sequence[int]) -> None:
        """Take what a pass needed, and how many codes of each sample became final."""
        self.seconds[window] = sorted([*self.seconds.get(window, []), seconds])[:2]
        self.right, self.tried = ([count * FORGETTING for count in counts] for counts in (self.right, self.tried))
        for new in news:
            for distance in range(min(new, window - 1)):
                self.tried[distance] += 1
                self.right[distance] += distance < new - 1

    def _could_win(self, window: int, best: int) -> bool:
        """Whether the next smaller one that was timed would be the fastest if all guesses were right."""
        below = max(timed for timed in self.seconds if timed < window)
        return below / self.seconds[below][0] >= self._codes_per_second(best)

    def _codes_per_second(self, window: int) -> float:
        codes, share = 1.0, 1.0
        for right, tried in zip(self.right[: window - 1], self.tried[: window - 1], strict=True):
            share *= (right + 1) / (tried + 1)  # hopeful where little was tried, so that it is tried again
            codes += share
        return codes / self.seconds[window][0]
