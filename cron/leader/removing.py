"""How much is ended at once of what waits for jobs that were removed: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cron.state.removal import Leave, Sweep
from cron.state.state import State

SWEPT_AT_ONCE: Final = 5_000
"""Launches that one entry ends: a twentieth of a second for each replica, as much again for the
leader's queues."""


def leaving(state: State, names: Iterable[str]) -> tuple[Leave, ...]:
    """Return what goes before the removal of these jobs, if as much waits as one entry may end."""
    records = [record for name in names if (record := state.jobs.get(name)) is not None]
    return (Leave(),) if state.count_open(records) >= SWEPT_AT_ONCE else ()


def sweep(state: State) -> list[Sweep]:
    """Return what ends the next portion of what waits for removed jobs; nothing where nothing does.

    A restored cell does not know yet whether it ran (rule R13).
    """
    return _portion(state, state.leaving) if state.leaving and not state.is_resolving else []


def sweep_before(state: State, names: Iterable[str]) -> list[Sweep]:
    """Return what ends the next portion of what waits for removed jobs of these names, which State
    does not add before; nothing where nothing does."""
    if not state.leaving:
        return []
    records = (record for name in names if (record := state.jobs.get(name)) is not None)
    return _portion(state, (one.number for one in records if one.number in state.leaving))


def _portion(state: State, numbers: Iterable[int]) -> list[Sweep]:
    chosen: list[int] = []
    launches = 0
    for number in numbers:
        chosen.append(number)
        # Its removal gave all that is open of it a row in its record, and nothing new becomes due.
        launches += len(state.by_number[number].open)
        if launches >= SWEPT_AT_ONCE:
            break
    return [Sweep(tuple(chosen), SWEPT_AT_ONCE)] if chosen else []
