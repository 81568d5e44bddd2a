"""Columns of integers: in commands, where they are small, and in State, where they are quick.

In a command a column that ascends is delta-coded: its first integer, then the differences. A column
that is left out, or has one integer, may stand for all rows, as its field says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

Deltas: TypeAlias = tuple[int, ...]
_FITS: Final = 1 << 62
"""Nothing that State counts or dates comes near; sums of a few such fit into 64 bits."""


def spread(
    rows: Sequence[int], times: Iterable[Sequence[int]], others: Iterable[Sequence[int]] = ()
) -> list[Sequence[int]] | None:
    """Return the rows that a report means, and of each of its columns an integer a row: those of
    `times` are delta-coded. None where the rows do not ascend from 0 or above, a column has another
    number of integers, or one that no time or count can be."""
    is_run = rows[1:].count(1) == len(rows) - 1
    if not rows or rows[0] < 0 or (not is_run and min(rows[1:]) < 1):
        return None
    found: list[Sequence[int]] = [
        range(rows[0], rows[0] + len(rows)) if is_run else list(accumulate(rows))
    ]
    columns = [list(accumulate(one)) if len(one) > 1 else one for one in times]
    for values in (*columns, *others):
        if len(values) > 1 and len(values) != len(rows):
            return None
        if values and not -_FITS < min(values) <= max(values) < _FITS:
            return None
        found.append(values if len(values) > 1 else array("q", values or (0,)) * len(rows))
    return found if found[0][-1] < _FITS else None
