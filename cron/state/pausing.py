"""Jobs that pause themselves once so many of their launches in a row have failed (`pause-after`).

State has no row of a launch that is over, so the record of a job counts: each launch that fails for
good, or is lost, is one more, and one that succeeds makes it none. A job without the option costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cron.launch_state import LaunchState
from cron.state import revisions
from cron.state.context import Context
from cron.state.jobs import outlasts, set_pause
from cron.state.rows import RESTORED_BY, Chunk, Row, RowKind
from cron.state.state import JobRecord, Paused, State

BY: Final = "raftcron"
SUCCEEDED: Final = LaunchState.SUCCEEDED  # members of an enumeration are slow to look up
FAILURES: Final = (LaunchState.FAILED, LaunchState.LOST)


def note_ends(context: Context) -> None:
    """Count how launches ended by this entry, and pause jobs. Call this after its last command: a
    launch that is open again is not over."""
    state = context.state
    for item in context.ended:
        for row in _rows_for(state, item):
            record = state.jobs.get(row.job)
            if record is not None and record.job is not None:
                _note_end(context, record, row, record.job.pause_after)
    if context.paused:
        revisions.note_paused(context, BY, list(context.paused))


def _rows_for(state: State, item: Row | Chunk) -> Iterator[Row]:
    """Yield the rows of an item that count. Of a chunk only these are made: an entry may have a
    hundred thousand rows."""
    is_success = item.state is SUCCEEDED
    if not is_success and item.state not in FAILURES:
        return
    counted = state.failing if is_success else state.pausing
    if not isinstance(item, Chunk):
        if item.job in counted and item.kind is not RowKind.AMENDMENT:
            yield item
        return
    names = item.names() if counted else []
    for place, name in enumerate(names):
        if name in counted:
            yield item.row(place, name)


def _note_end(context: Context, record: JobRecord, row: Row, most: int) -> None:
    """Count the end of a launch. What a restored cell recorded of the life before does not
    count."""
    state = context.state
    is_open = state.row((record.number, row.scheduled_s, row.trigger)) is not None
    if not most or is_open or state.is_resolving or row.by == RESTORED_BY:
        return
    state.touch(record)
    record.failed_in_a_row = 0 if row.state is SUCCEEDED else record.failed_in_a_row + 1
    state.note_failures(record)
    if record.failed_in_a_row < most:
        return
    # The text is in State: another wording would need another format.
    reason = f"failed {most} times in a row" if most > 1 else "failed"
    paused = Paused(reason, BY, context.at_ms, 0)
    if not outlasts(record.paused, paused):
        set_pause(context, record, paused)
        context.paused[record.name] = None
        context.following[record.number] = None  # what waits of it is judged again
        context.marked[record.number] = None
