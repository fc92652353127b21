"""Counts and lengths of time in messages."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count of things: `1 peer`, `1,200 peers`; `plural` where an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a length of time: `45 s`, `12 min`, `3 h 5 min`, `2.5 days`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.3g} s"
    if minutes >= 48 * 60:
        return f"{seconds / 86_400:,.1f} days"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
