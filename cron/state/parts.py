"""Launches of several parts: each runs on an executor of its own, and the launch is over when all
of them are (the paper's launch of several RPCs, SRE book ch. 24, "Resolving partial failures").

A part is begun, started, and ends by itself; what has become of the launch follows from its parts.
"""

from __future__ import annotations

from copy import copy
from typing import Final

import msgspec

from cron.job import Retry
from cron.launch_state import LaunchState
from cron.notes import NoteCode, about_part, written
from cron.state.context import Context
from cron.state.launch_row import LaunchRow
from cron.state.retries import is_fatal
from cron.state.rows import Part, Row
from launcher.protocol.status import Reason

_WORST_FIRST: Final = (
    LaunchState.LOST,
    LaunchState.FAILED,
    LaunchState.SKIPPED,
    LaunchState.CANCELLED,
    LaunchState.SUCCEEDED,
)
_REASONS: Final = {
    LaunchState.SKIPPED: Reason.FENCED,
    LaunchState.LOST: Reason.EXECUTOR_LOST,
}


def end_part(part: Part, end: Part) -> None:
    """Write the end of a part, that it never ran, or that its status cannot be known."""
    part.state, part.reason = end.state, _REASONS.get(end.state, end.reason)
    part.exit_code, part.retry_after_ms = end.exit_code, end.retry_after_ms
    part.finished_ms, part.output_bytes = end.finished_ms, end.output_bytes
    part.cpu_ms, part.memory_peak_bytes = end.cpu_ms, end.memory_peak_bytes
    part.held_until_ms = end.held_until_ms
    part.detail, part.note = written(end.note, end.detail)


def worst(row: LaunchRow, retry: Retry) -> tuple[int, Part]:
    """Return the part, with its number, whose end is that of the launch: the first of the worst,
    whatever the order in which they ended. Of those that failed a fatal one is the worst."""
    for state in _WORST_FIRST:
        found = [(number, part) for number, part in enumerate(row.parts, 1) if part.state is state]
        if found:
            return next((one for one in found if is_fatal(retry, one[1])), found[0])
    return 1, row.parts[0]


def end_of(context: Context, row: LaunchRow) -> Part:
    """Return the end of a launch all of whose parts are over, as if it had run as a whole. Where no
    part ran, it has not run, and may begin elsewhere (rule R7)."""
    job = context.state.by_number[row.number].job or row.job
    number, part = worst(row, job.retry if job is not None else Retry())
    state, reason, note = part.state, part.reason, part.note
    if all(one.state is LaunchState.SKIPPED for one in row.parts):
        first = row.parts[0]
        return Part(0, LaunchState.SKIPPED, detail=first.detail, note=first.note)
    if state is LaunchState.SKIPPED and row.cancel is not Reason.NONE:
        state, reason = LaunchState.CANCELLED, row.cancel  # it was to run no more
    elif state is LaunchState.SKIPPED:
        state = LaunchState.FAILED
    if state is not LaunchState.SUCCEEDED:
        args = (number, len(row.parts), part.name)
        note = about_part(NoteCode.PART, args, part.note)
    return Part(
        0,
        state,
        reason,
        part.exit_code,
        row.started_ms,
        max(one.finished_ms for one in row.parts),
        row.parts[0].output_bytes,
        max(one.held_until_ms for one in row.parts),
        max(one.retry_after_ms for one in row.parts if one.state is part.state),
        part.detail,
        note=note,
        cpu_ms=sum(one.cpu_ms for one in row.parts),
        memory_peak_bytes=max(one.memory_peak_bytes for one in row.parts),
    )


def with_report(known: Row, end: Part) -> Row:
    """Return a lost launch of several parts with the end of one of them."""
    ends = list(known.parts)
    part = ends[end.number - 1] = copy(ends[end.number - 1])
    part.started_ms = end.started_ms or part.started_ms
    end_part(part, end)
    return msgspec.structs.replace(known, parts=tuple(ends))


def amended(ends: tuple[Part, ...], late: Part) -> Part:
    """Return what is known of a lost launch with these ends of its parts after a late report."""
    state = next(state for state in _WORST_FIRST if any(end.state is state for end in ends))
    number, end = next((n, end) for n, end in enumerate(ends, 1) if end.state is state)
    note = end.note
    if state is LaunchState.LOST:
        late = late_part(late)
        end, note = msgspec.structs.replace(end, detail=late.detail), late.note
    elif state is not LaunchState.SUCCEEDED:
        note = about_part(NoteCode.PART, (number, len(ends), end.name), end.note)
    return Part(
        0,
        LaunchState.FAILED if state is LaunchState.SKIPPED else state,
        end.reason,
        end.exit_code,
        min((one.started_ms for one in ends if one.started_ms), default=0),
        max(one.finished_ms for one in ends),
        ends[0].output_bytes,
        detail=end.detail,
        note=note,
        cpu_ms=sum(one.cpu_ms for one in ends),
        memory_peak_bytes=max(one.memory_peak_bytes for one in ends),
    )


def late_part(end: Part) -> Part:
    """Return a late report of one part of a launch of which another is lost: so is the launch."""
    return msgspec.structs.replace(
        end,
        state=LaunchState.LOST,
        reason=Reason.EXECUTOR_LOST,
        note=about_part(NoteCode.LATE_PART, (end.number, int(end.state)), end.note),
    )
