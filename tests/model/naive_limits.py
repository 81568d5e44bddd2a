"""Which limits a launch is subject to, found out anew each time, by the words of the design."""

from __future__ import annotations

from collections.abc import Iterator

from cron.job import Job
from cron.scopes import Scope
from cron.state.launch_row import LaunchRow
from cron.state.pool import Limits
from cron.state.state import State


def scopes_of(state: State, tenant: str, pool: str, priority: int) -> Iterator[tuple[Scope, Scope]]:
    """What limits a launch: (what is counted, whose limits they are), by the rules in the text."""
    limits = state.limits
    shared = (("", "", -1), ("", "", priority), ("", pool, -1), ("", pool, priority))
    yield from ((scope, scope) for scope in shared if scope in limits)
    for choice in (
        ((tenant, "", -1), ("*", "", -1)),
        ((tenant, pool, priority), (tenant, pool, -1), ("*", pool, priority), ("*", pool, -1)),
    ):
        found = next((scope for scope in choice if scope in limits), None)
        if found is not None:
            yield (tenant, *found[1:]), found


def most(limits: Limits, scope: Scope) -> int:
    """How many may run at once in a scope, 0 for any number."""
    is_soft = bool(scope[0] and limits.concurrent and limits.burst)
    return max(limits.burst, limits.concurrent) if is_soft else limits.concurrent


def ran_with(state: State, row: LaunchRow) -> Job:
    declared = row.job or state.by_number[row.number].job
    assert declared is not None
    return declared
