"""Columns of integers: in commands, where they are small, and in State, where they are quick.

In a command a column is a tuple. One that ascends is delta-coded: its first integer, then the
differences. A column that is left out, or has one integer, may stand for all rows, as its field
says. In State a column is an array of 64-bit integers.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final, TypeAlias

from cron.state.rows import Column
from launcher.columns import differences, sums

Deltas: TypeAlias = tuple[int, ...]
_WIDTH: Final = 8
_FITS: Final = 1 << 62
"""Nothing that State counts or dates comes near; sums of a few such fit into 64 bits."""


def deltas(values: Sequence[int]) -> Deltas:
    """Return the first integer and the differences of those after it."""
    return tuple(differences(values))


def uniform(values: Sequence[int]) -> Deltas:
    """Return integers as a delta-coded column: one integer if all are equal."""
    coded = deltas(values)
    return coded if any(coded[1:]) else coded[:1]


def spread(coded: Deltas, rows: int) -> list[int] | None:
    """Return the integers of a delta-coded column for so many rows, None if it has another number
    of them, or one that no time or count can be."""
    if len(coded) == 1:
        values = list(coded) * rows
    elif len(coded) == rows:
        values = sums(coded)
    else:
        return None
    return values if all_fit(values) else None


def all_fit(values: Sequence[int]) -> bool:
    """Return whether integers fit into a column of State."""
    return not values or -_FITS < min(values) <= max(values) < _FITS


def unpacked(one: Column, rows: int) -> array[int]:
    """Return the integers of a column that `cron.state.rows.column` made.

    Raises:
        ValueError: its bytes are not of so many rows.
    """
    if isinstance(one, int):
        return array("q", (one,)) * rows
    if len(one) != _WIDTH * rows:
        raise ValueError(f"a column of {rows} rows has {len(one)} bytes")
    values = array("q")
    values.frombytes(one)
    if sys.byteorder == "big":
        values.byteswap()
    return values
