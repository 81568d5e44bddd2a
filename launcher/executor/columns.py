"""Columns as the stream and the journal write them: a number for each row, in little room.

Three forms, which pool.proto describes: all values; one value, which counts for all rows; nothing,
where all rows have the default. Row numbers and times are differences: the first value, then how
far each is from the one before. All loops over rows here are the interpreter's own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate


class BadColumn(ValueError):
    """A column has neither no value, nor one, nor one for each row."""


def differences(values: Sequence[int]) -> list[int]:
    """Return `values` as differences."""
    return [*values[:1], *map(operator.sub, values[1:], values)]


def values(column: Iterable[int]) -> list[int]:
    """Return the values of a column of differences that is not shortened."""
    return list(accumulate(column))


def shortened(column: Sequence[int], default: int = 0) -> list[int]:
    """Return a column of values in its shortest form."""
    first = column[0] if column else default
    if any(map(first.__ne__, column)):
        return list(column)
    return [] if first == default else [first]


def shortened_times(column: Sequence[int]) -> list[int]:
    """Return a column of times in its shortest form, as differences."""
    short = shortened(column)
    return differences(short) if len(short) > 1 else short


def full(column: Sequence[int], count: int, default: int = 0) -> list[int]:
    """Return a value for each of `count` rows.

    Raises:
        BadColumn: there are too few, or too many.
    """
    if len(column) == count:
        return list(column)
    if len(column) > 1:
        raise BadColumn(f"{len(column)} values for {count} rows")
    return [column[0] if column else default] * count


def full_times(column: Sequence[int], count: int) -> list[int]:
    """Return a time for each of `count` rows of a column of differences.

    Raises:
        BadColumn: there are too few, or too many.
    """
    return full(values(column) if len(column) > 1 else column, count)
