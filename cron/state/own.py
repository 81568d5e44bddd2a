"""How many launches and dead letters are the cell's own: messages about alerts and heartbeats.

Whoever counts users' launches takes these from the counts of State. It costs a look at the cell's
own jobs, and at the instants at which anything waits or runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cron.launch_state import LaunchState

if TYPE_CHECKING:
    from cron.state.state import State


class Counts(msgspec.Struct, frozen=True):
    """Launches that have not begun, launches that may be running, and dead letters."""

    due: int = 0
    active: int = 0
    dead: int = 0


def own_counts(state: State) -> Counts:
    """Return the counts of the cell's own."""
    own = state.own
    due, active, dead = len(state.due.of_jobs(own)), len(state.active.of_jobs(own)), 0
    for record in own.values():
        dead += len(record.dead)
        for row in record.open.values():
            if row.state is LaunchState.DUE:
                due += 1
            else:
                active += 1
    return Counts(due, active, dead)


def users_counts(state: State) -> Counts:
    """Return the counts of all but the cell's own."""
    own = own_counts(state)
    return Counts(
        len(state.due) - own.due, len(state.active) - own.active, len(state.dead) - own.dead
    )
