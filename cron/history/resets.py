"""Which rows still count after the cell's time was set back (rule R10). Pure.

Before a reset a leader with a wrong clock gave rows to instants that had not come yet. Those that
began are true for ever. The others are void: they never began, and a later row says what became of
the instant. They stay in history, where a person can see what the wrong clock did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cron.history.audited import AuditedJob, OpenRow
from cron.state.rows import Row, RowKind
from cron.state.state import Reset


def judged(
    job: AuditedJob, rows: Iterable[Row], open_rows: Iterable[OpenRow], resets: Sequence[Reset]
) -> tuple[list[Row], list[OpenRow]]:
    """Return the rows of a job that an audit must judge. One that began ahead of its time is judged
    when that time has come."""
    kept, still_open = list(rows), list(open_rows)
    if not resets:
        return kept, still_open
    for reset in resets:
        kept = _without_void(job, kept, reset)
    newest = resets[-1].index
    return (
        [row for row in kept if row.scheduled_s <= job.horizon_s or row.ended_index > newest],
        [row for row in still_open if row.trigger or row.scheduled_s <= job.horizon_s],
    )


def _without_void(job: AuditedJob, rows: list[Row], reset: Reset) -> list[Row]:
    to_s = reset.to_ms // 1000
    begun = {row.scheduled_s for row in rows if row.begun_index and row.ended_index <= reset.index}
    kept: list[Row] = []
    for row in rows:
        is_void = (
            row.ended_index <= reset.index
            and not row.trigger
            and row.last_s > to_s
            and row.scheduled_s not in begun
        )
        if not is_void:
            kept.append(row)
        elif row.kind is RowKind.RANGE and row.scheduled_s <= to_s:
            last_s = job.newest_at(to_s) or row.scheduled_s
            count = job.count(row.scheduled_s - 1, last_s)
            kept.append(msgspec.structs.replace(row, last_s=last_s, count=count))
    return kept
