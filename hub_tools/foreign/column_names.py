"""Columns of other people's tables, whose names are written in any case."""

from collections.abc import Iterable, Sequence


def find_column(names: Sequence[str], *wanted: str) -> str | None:
    """Return the first wanted column that a table has, in the table's own spelling; equal names first."""
    by_fold = {name.casefold(): name for name in reversed(names)}
    found: Iterable[str | None] = (name if name in names else by_fold.get(name.casefold()) for name in wanted)
    return next(filter(None, found), None)
