"""Launches of several parts: each runs on an executor of its own, and the launch is over when all
of them are (the paper's launch of several RPCs, SRE book ch. 24, "Resolving partial failures").

A part is begun, started, and ends by itself; what has become of the launch follows from its parts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cron.job import Retry
from cron.notes import Note, NoteCode, about_part, written
from cron.state import commands as c
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.retries import is_fatal
from cron.state.rows import PartRow
from cron.state.state import LaunchRow, LostRow, Part
from launcher.launch import ACTIVE, LaunchState, Reason, may_follow

_WORST_FIRST: Final = (
    LaunchState.LOST,
    LaunchState.FAILED,
    LaunchState.SKIPPED,
    LaunchState.CANCELLED,
    LaunchState.SUCCEEDED,
)


def part_of(row: LaunchRow, number: int) -> Part | Verdict:
    """Return an open part of a launch, by its number from 1, or why there is none."""
    if not 1 <= number <= len(row.parts):
        return Verdict.NOT_OPEN
    part = row.parts[number - 1]
    return part if part.state in ACTIVE else Verdict.NOT_OPEN


def launched(context: Context, row: LaunchRow, part: Part, item: c.LaunchedItem) -> Verdict:
    """Write log point 2 of a part; the first one is that of the launch."""
    if part.state is LaunchState.LAUNCHED:
        return Verdict.ALREADY
    _start(context, row, part, item.started_ms)
    return Verdict.ACCEPTED


def _start(context: Context, row: LaunchRow, part: Part, started_ms: int) -> None:
    part.state = LaunchState.LAUNCHED
    part.started_ms = started_ms
    if row.state is LaunchState.BEGUN:
        row.state = LaunchState.LAUNCHED
        row.launched_index = context.index
        row.launched_at_ms = context.at_ms
        row.started_ms = started_ms


def finished(context: Context, row: LaunchRow, part: Part, item: c.FinishedItem) -> Verdict:
    """Write the end of a part that ran."""
    if not may_follow(part.state, item.state):
        return Verdict.WRONG_STATE
    if part.state is LaunchState.BEGUN and item.started_ms:
        _start(context, row, part, item.started_ms)
    part.reason, part.exit_code = item.reason, item.exit_code
    part.finished_ms, part.output_bytes = item.finished_ms, item.output_bytes
    part.retry_after_ms = item.retry_after_ms
    part.cpu_ms, part.memory_peak_bytes = item.cpu_ms, item.memory_peak_bytes
    _end(context, row, item.part, item.state, written(item.note, item.detail))
    return Verdict.ACCEPTED


def refused(context: Context, row: LaunchRow, part: Part, item: c.RefusedItem) -> Verdict:
    """Note that a part never ran and never will under this name (rule R7)."""
    if part.state is not LaunchState.BEGUN:
        return Verdict.WRONG_STATE
    part.reason = Reason.FENCED
    _end(context, row, item.part, LaunchState.SKIPPED, written(item.note, item.detail))
    return Verdict.ACCEPTED


def lost(context: Context, row: LaunchRow, part: Part, item: c.LostItem) -> Verdict:
    """Give up a part whose fate cannot be known."""
    part.reason = Reason.EXECUTOR_LOST
    part.held_until_ms = item.held_until_ms
    _end(context, row, item.part, LaunchState.LOST, written(item.note, item.detail))
    return Verdict.ACCEPTED


def _end(
    context: Context,
    row: LaunchRow,
    number: int,
    state: LaunchState,
    told: tuple[str, Note | None],
) -> None:
    part = row.parts[number - 1]
    part.state = state
    part.detail, part.note = told
    context.leave_part(row, part)


def is_over(row: LaunchRow) -> bool:
    """Whether all parts of a launch are over."""
    return not any(part.state in ACTIVE for part in row.parts)


def never_ran(row: LaunchRow) -> bool:
    """Whether no part of a launch ran: then it has not run, and may begin elsewhere (rule R7)."""
    return all(part.state is LaunchState.SKIPPED for part in row.parts)


def worst(row: LaunchRow, retry: Retry) -> tuple[int, Part]:
    """Return the part, with its number, whose end is that of the launch: the first of the worst,
    whatever the order in which they ended. Of those that failed a fatal one is the worst."""
    for state in _WORST_FIRST:
        found = [(number, part) for number, part in enumerate(row.parts, 1) if part.state is state]
        if found:
            return next((one for one in found if is_fatal(retry, one[1])), found[0])
    return 1, row.parts[0]


def end_of(context: Context, row: LaunchRow) -> c.FinishedItem:
    """Return the end of a launch all of whose parts are over, as if it had run as a whole."""
    job = context.state.by_number[row.number].job or row.job
    number, part = worst(row, job.retry if job is not None else Retry())
    state, reason = part.state, part.reason
    if state is LaunchState.SKIPPED and row.cancel is not Reason.NONE:
        state, reason = LaunchState.CANCELLED, row.cancel  # it was to run no more
    elif state is LaunchState.SKIPPED:
        state = LaunchState.FAILED
    note = part.note
    if state is not LaunchState.SUCCEEDED:
        args = (number, len(row.parts), part.name)
        note = about_part(NoteCode.PART, args, part.note)
    return c.FinishedItem(
        row.key,
        row.attempt,
        state,
        reason,
        part.exit_code,
        row.started_ms,
        max(one.finished_ms for one in row.parts),
        part.detail,
        row.parts[0].output_bytes,
        max(one.retry_after_ms for one in row.parts if one.state is part.state),
        note=note,
        cpu_ms=sum(one.cpu_ms for one in row.parts),
        memory_peak_bytes=max(one.memory_peak_bytes for one in row.parts),
    )


def lost_item(row: LaunchRow, end: c.FinishedItem) -> c.LostItem:
    """Return that a launch is lost, and until when one of its parts may be running."""
    held_until_ms = max(part.held_until_ms for part in row.parts)
    return c.LostItem(row.key, row.attempt, held_until_ms, end.detail, note=end.note)


def is_told(known: LostRow, number: int) -> bool:
    """Whether it is known what became of that part of a lost launch, or there is no such part."""
    if not known.parts:
        return False
    if not 1 <= number <= len(known.parts):
        return True
    return known.parts[number - 1].state is not LaunchState.LOST


def with_news(known: LostRow, item: c.FinishedItem) -> LostRow:
    """Return a lost launch of several parts with the end of one of them."""
    ends = list(known.parts)
    before = ends[item.part - 1]
    ends[item.part - 1] = PartRow(
        before.executor,
        before.ledger,
        item.state,
        item.reason,
        item.exit_code,
        item.started_ms or before.started_ms,
        item.finished_ms,
        item.output_bytes,
        item.detail,
        item.note,
        item.cpu_ms,
        item.memory_peak_bytes,
    )
    return msgspec.structs.replace(known, parts=tuple(ends))


def amended(ends: tuple[PartRow, ...], item: c.FinishedItem) -> c.FinishedItem:
    """Return what is known of a lost launch with these ends of its parts; `item` is the news."""
    state = next(state for state in _WORST_FIRST if any(end.state is state for end in ends))
    number, end = next((n, end) for n, end in enumerate(ends, 1) if end.state is state)
    note = end.note
    if state is LaunchState.LOST:
        item = news_of_part(item)
        end, note = msgspec.structs.replace(end, detail=item.detail), item.note
    elif state is not LaunchState.SUCCEEDED:
        note = about_part(NoteCode.PART, (number, len(ends), end.executor), end.note)
    return c.FinishedItem(
        item.key,
        item.attempt,
        LaunchState.FAILED if state is LaunchState.SKIPPED else state,
        end.reason,
        end.exit_code,
        min((one.started_ms for one in ends if one.started_ms), default=0),
        max(one.finished_ms for one in ends),
        end.detail,
        ends[0].output_bytes,
        note=note,
        cpu_ms=sum(one.cpu_ms for one in ends),
        memory_peak_bytes=max(one.memory_peak_bytes for one in ends),
    )


def news_of_part(item: c.FinishedItem) -> c.FinishedItem:
    """Return late news of one part of a launch of which another is lost: so is the launch."""
    return msgspec.structs.replace(
        item,
        state=LaunchState.LOST,
        reason=Reason.EXECUTOR_LOST,
        note=about_part(NoteCode.LATE_PART, (item.part, int(item.state)), item.note),
    )
