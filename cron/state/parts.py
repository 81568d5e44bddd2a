"""Launches of several parts: each runs on an executor of its own, and the launch is over when all
of them are (the paper's launch of several RPCs, SRE book ch. 24, "Resolving partial failures").

A part is begun, started, and ends by itself; what has become of the launch follows from its parts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cron.job import Job, Retry
from cron.state import commands as c
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.retries import is_fatal
from cron.state.state import LaunchRow, Part, State
from launcher.launch import ACTIVE, LaunchState, Reason, may_follow

_WORST_FIRST: Final = (
    LaunchState.LOST,
    LaunchState.FAILED,
    LaunchState.SKIPPED,
    LaunchState.CANCELLED,
    LaunchState.SUCCEEDED,
)


def misfit(state: State, job: Job, item: c.BeginItem) -> Verdict | None:
    """Return why a launch of the job may not begin on these executors, a part on each; None where
    it may."""
    if item.executor not in state.executors:
        return Verdict.UNKNOWN_EXECUTOR
    if not item.others:  # the usual case, cheap
        return None if job.parts == 1 or job.each else Verdict.WRONG_PARTS
    executors = (item.executor, *item.others)
    if any(executor not in state.executors for executor in executors):
        return Verdict.UNKNOWN_EXECUTOR
    is_twice = len(dict.fromkeys(executors)) < len(executors)
    fits = not is_twice and (job.each or len(executors) == job.parts)
    return None if fits else Verdict.WRONG_PARTS


def parts_on(job: Job, item: c.BeginItem) -> list[Part]:
    """Return the parts of a launch that begins; none where it is a whole on one executor."""
    if not item.others and not job.each:
        return []
    return [Part(executor) for executor in (item.executor, *item.others)]


def part_of(row: LaunchRow, number: int) -> Part | Verdict:
    """Return an open part of a launch, by its number from 1, or why there is none."""
    if not 1 <= number <= len(row.parts):
        return Verdict.NOT_OPEN
    part = row.parts[number - 1]
    return part if part.state in ACTIVE else Verdict.NOT_OPEN


def launched(context: Context, row: LaunchRow, item: c.LaunchedItem) -> Verdict:
    """Write log point 2 of a part; the first one is that of the launch."""
    part = part_of(row, item.part)
    if not isinstance(part, Part):
        return part
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


def finished(context: Context, row: LaunchRow, item: c.FinishedItem) -> Verdict:
    """Write the end of a part that ran."""
    part = part_of(row, item.part)
    if not isinstance(part, Part):
        return part
    if not may_follow(part.state, item.state):
        return Verdict.WRONG_STATE
    if part.state is LaunchState.BEGUN and item.started_ms:
        _start(context, row, part, item.started_ms)
    part.reason, part.exit_code = item.reason, item.exit_code
    part.finished_ms, part.output_bytes = item.finished_ms, item.output_bytes
    part.retry_after_ms = item.retry_after_ms
    _end(context, row, item.part, item.state, item.detail)
    return Verdict.ACCEPTED


def refused(context: Context, row: LaunchRow, item: c.RefusedItem) -> Verdict:
    """Note that a part never ran and never will under this name (rule R7)."""
    part = part_of(row, item.part)
    if not isinstance(part, Part):
        return part
    if part.state is not LaunchState.BEGUN:
        return Verdict.WRONG_STATE
    part.reason = Reason.FENCED
    _end(context, row, item.part, LaunchState.SKIPPED, item.detail)
    return Verdict.ACCEPTED


def lost(context: Context, row: LaunchRow, item: c.LostItem) -> Verdict:
    """Give up a part whose fate cannot be known."""
    part = part_of(row, item.part)
    if not isinstance(part, Part):
        return part
    part.reason = Reason.EXECUTOR_LOST
    part.held_until_ms = item.held_until_ms
    _end(context, row, item.part, LaunchState.LOST, item.detail)
    return Verdict.ACCEPTED


def _end(context: Context, row: LaunchRow, number: int, state: LaunchState, detail: str) -> None:
    part = row.parts[number - 1]
    part.state = state
    part.detail = detail
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
    where = f" on {part.name}" if part.name else ""
    told = f": {part.detail}" if part.detail else ""
    is_fine = state is LaunchState.SUCCEEDED
    return c.FinishedItem(
        row.key,
        row.attempt,
        state,
        reason,
        part.exit_code,
        row.started_ms,
        max(one.finished_ms for one in row.parts),
        part.detail if is_fine else f"part {number} of {len(row.parts)}{where}{told}",
        row.parts[0].output_bytes,
        max(one.retry_after_ms for one in row.parts if one.state is part.state),
    )


def lost_item(row: LaunchRow, end: c.FinishedItem) -> c.LostItem:
    """Return that a launch is lost, and until when one of its parts may be running."""
    held_until_ms = max(part.held_until_ms for part in row.parts)
    return c.LostItem(row.key, row.attempt, held_until_ms, end.detail)


def renamed(item: c.FinishedItem) -> c.FinishedItem:
    """Return late news of one part, which is all that is told of it."""
    return msgspec.structs.replace(item, detail=f"part {item.part}: {item.detail}".rstrip(": "))
