"""How fair a queue was, from who was served when.

A priority that is served before another is no unfairness: tenants are compared within a priority,
while they have something waiting there. All tasks wait from the beginning.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from bench.pump.workload import HUGE, Backlog

WINDOW: Final = 1_000
"""Tasks in which shares are compared: five of each of 200 tenants."""


class Served(NamedTuple):
    """One task that began, at a time in seconds since the beginning."""

    priority: int
    tenant: int
    at_s: float


class Wait(msgspec.Struct, frozen=True):
    """How long somebody with something waiting got nothing, and how many others began meanwhile.

    `is_open`: the measurement ended first, so that it may have been longer.
    """

    seconds: float = 0.0
    others: int = 0
    is_open: bool = False


class Fairness(msgspec.Struct, frozen=True):
    """What the windows and the waits of one run say; the indexes are None without a window."""

    jain_median: float | None
    jain_least: float | None
    windows: int
    longest_wait: Wait


def jain(amounts: Iterable[int]) -> float:
    """Return Jain's index: 1 if all got the same, 1/n if one of n got all (Jain et al., 1984)."""
    got = list(amounts)
    squares = sum(amount * amount for amount in got)
    return sum(got) ** 2 / (len(got) * squares) if squares else 1.0


def indexes(served: Sequence[Served], backlog: Backlog, size: int = WINDOW) -> list[float]:
    """Return Jain's index of each window of `size` tasks of one priority, in the order of service.

    It is taken over the tenants that still have something waiting when the window ends; a window
    with fewer than two of them tells nothing, nor does one that is not full.
    """
    found = []
    for priority, rows in by_priority(served).items():
        left = {tenant: count for (of, tenant), count in backlog.items() if of == priority}
        for at in range(0, len(rows) - size + 1, size):
            got = Counter(row.tenant for row in rows[at : at + size])
            left = {tenant: count - got[tenant] for tenant, count in left.items()}
            waiting = [tenant for tenant, count in left.items() if count > 0]
            if len(waiting) > 1:
                found.append(jain(got[tenant] for tenant in waiting))
    return found


def longest_wait(served: Sequence[Served], backlog: Backlog, end_s: float) -> Wait:
    """Return the longest time that a small tenant waited for its next turn.

    It is counted from the turn before, or from when the first task of that priority began, or for
    the highest priority from the beginning, while the tenant had something of that priority.
    """
    longest = Wait()
    for priority, rows in by_priority(served).items():
        left = {tenant: n for (of, tenant), n in backlog.items() if of == priority and n}
        left.pop(HUGE, None)
        first_s = 0.0 if priority == 0 else rows[0].at_s
        last = dict.fromkeys(left, (0, first_s))  # its last turn: how many had begun, and when
        for place, (_, tenant, at_s) in enumerate(rows):
            if tenant in left:
                longest = _longer(longest, Wait(at_s - last[tenant][1], place - last[tenant][0]))
                last[tenant] = (place + 1, at_s)
                left[tenant] -= 1
                if not left[tenant]:
                    del left[tenant]
        for tenant in left:
            place, at_s = last[tenant]
            longest = _longer(longest, Wait(end_s - at_s, len(rows) - place, True))
    return longest


def _longer(one: Wait, other: Wait) -> Wait:
    return other if other.seconds > one.seconds else one


def by_priority(served: Sequence[Served]) -> dict[int, list[Served]]:
    """Return what was served of each priority, in its order."""
    found: dict[int, list[Served]] = {}
    for row in served:
        found.setdefault(row.priority, []).append(row)
    return found


def summarize(served: Sequence[Served], backlog: Backlog, end_s: float) -> Fairness:
    """Return how fair a run was that ended at `end_s`."""
    found = indexes(served, backlog)
    return Fairness(
        jain_median=statistics.median(found) if found else None,
        jain_least=min(found, default=None),
        windows=len(found),
        longest_wait=longest_wait(served, backlog, end_s),
    )
