"""The order of a table's rows that a visitor has chosen: a column's name, after a minus if the largest is first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], Any]]
"""What each column is sorted by; None: unknown, and last in either direction."""


def next_order(order: str, column: object, columns: Columns) -> str:
    """Return the order after a click on a column's head: the largest first, at the second click the smallest.

    Anything but a column leaves the order as it is.
    """
    if not isinstance(column, str) or column not in columns:
        return order
    return column if order == f"-{column}" else f"-{column}"


def in_order(rows: Sequence[Row], order: str, columns: Columns) -> list[Row]:
    """Return rows in an order, equal ones as they come; as they are in the order of no column."""
    value = columns.get(order.removeprefix("-"))
    if value is None:
        return list(rows)
    known = [row for row in rows if value(row) is not None]
    return sorted(known, key=value, reverse=order.startswith("-")) + [row for row in rows if value(row) is None]
