"""Columns of the stream between leader and executor: a value that all rows of a batch share is
written once (v1/pool.proto says how). No function has a step in Python for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub


class BadColumn(ValueError):
    """A column does not fit its rows; the message says how."""


def differences(values: Sequence[int]) -> list[int]:
    """Return the first value, then how far each is from the one before."""
    return [*values[:1], *map(sub, values[1:], values)]


def sums(column: Iterable[int]) -> list[int]:
    """Return the values of a column of differences."""
    return list(accumulate(column))


def short(
    values: Sequence[int], default: int | None = None, *, is_times: bool = False
) -> Sequence[int]:
    """Return a column of these values: empty if all are the default, one value if all are equal,
    otherwise one for each row. Times are written as differences."""
    if values and values.count(values[0]) == len(values):
        return [] if values[0] == default else values[:1]
    return differences(values) if is_times else values


def full(
    column: Sequence[int], count: int, default: int = 0, *, is_times: bool = False
) -> list[int]:
    """Return the values of `count` rows; a column of times has differences.

    Raises:
        BadColumn: it has neither none, nor one, nor one for each row.
    """
    if len(column) == count:
        return sums(column) if is_times else list(column)
    if len(column) > 1:
        raise BadColumn(f"{len(column)} values are not one for each of {count} rows")
    return list(column or (default,)) * count


def row_numbers(column: Sequence[int], row_max: int) -> list[int]:
    """Return the numbers of rows of a column of differences.

    Raises:
        BadColumn: there are none, one comes twice, or one is above `row_max`.
    """
    if not column:
        raise BadColumn("there are no rows")
    if len(column) > 1 and min(column[1:]) < 1:
        raise BadColumn("rows are not ascending")
    rows = sums(column)
    if rows[-1] > row_max:
        raise BadColumn(f"row {rows[-1]} is above {row_max}")
    return rows
