"""A clock that a test sets."""


class Clock:
    """Says `now`, in seconds, until it is set to another time."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
