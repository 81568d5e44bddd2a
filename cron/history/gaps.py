"""Stretches of the log whose rows may be missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Gap(msgspec.Struct, frozen=True, order=True):
    """Rows with `from_index` < ended_index <= `to_index` may be missing on this replica."""

    from_index: int
    to_index: int


def narrowed(gaps: Iterable[Gap], filled: Gap) -> list[Gap]:
    """Return what is left of `gaps`, oldest first, now that `filled` is none any more."""
    left = []
    for gap in gaps:
        left.append(Gap(gap.from_index, min(gap.to_index, filled.from_index)))
        left.append(Gap(max(gap.from_index, filled.to_index), gap.to_index))
    return sorted({gap for gap in left if gap.from_index < gap.to_index})
