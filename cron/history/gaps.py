"""Stretches of the log whose rows may be missing, as they grow and shrink. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Gap(msgspec.Struct, frozen=True, order=True):
    """Rows with `from_index` < ended_index <= `to_index` may be missing on this replica."""

    from_index: int
    to_index: int


def widened(gaps: Iterable[Gap], more: Gap) -> list[Gap]:
    """Return `gaps` with `more`, oldest first; what touches is one gap."""
    from_index, to_index = more.from_index, more.to_index
    if from_index >= to_index:
        return sorted(gaps)
    apart = []
    for gap in gaps:
        if gap.to_index < from_index or gap.from_index > to_index:
            apart.append(gap)
        else:
            from_index = min(from_index, gap.from_index)
            to_index = max(to_index, gap.to_index)
    return sorted([*apart, Gap(from_index, to_index)])


def narrowed(gaps: Iterable[Gap], filled: Gap) -> list[Gap]:
    """Return what is left of `gaps`, oldest first, now that `filled` is none any more."""
    left = []
    for gap in gaps:
        left.append(Gap(gap.from_index, min(gap.to_index, filled.from_index)))
        left.append(Gap(max(gap.from_index, filled.to_index), gap.to_index))
    return sorted({gap for gap in left if gap.from_index < gap.to_index})


def touches(gaps: Iterable[Gap], from_index: int, to_index: int) -> bool:
    """Whether a row with `from_index` < ended_index <= `to_index` may be missing."""
    return any(gap.from_index < to_index and gap.to_index > from_index for gap in gaps)
