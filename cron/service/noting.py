"""Rows of `raftcron changes` for what is changed outside the log's other commands."""

from __future__ import annotations

import structlog

from cron.errors import CronError
from cron.service.replica import Replica
from cron.state.commands import NoteChange

_log = structlog.get_logger()


async def note_change(replica: Replica, change: NoteChange) -> None:
    """Add the row of a change that has happened, unless it is there already, as of a request that
    came twice. What has happened is not undone if the row cannot be added; the log says so."""
    for kept in replica.state.revisions:
        is_alike = (kept.command, kept.subject) == (change.kind, change.subject)
        if is_alike and [one.after for one in kept.changed] == [change.after]:
            return
    try:
        await replica.leader.append(change)
    except CronError as error:
        about = {"action": change.kind, "object": change.subject, "after": change.after}
        _log.warning("change.not_noted", **about, by=change.by, error=str(error))
