"""Counts in messages."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count of things: `1 peer`, `1,200 peers`; `plural` where an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
