"""How instants get their rows: Account, rules R1 and R11."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from cron.notes import written
from cron.state import commands as c
from cron.state.context import Context, pause_note
from cron.state.due import Mark
from cron.state.outcome import Result, Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord, State
from launcher.launch import LaunchState
from launcher.names import SCHEDULED_S_MAX

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up


def account(context: Context, command: c.Account) -> Result:
    """Give instants their rows and move horizons (rule R1)."""
    return Result(ACCEPTED, tuple(_account(context, line) for line in command.lines))


def _account(context: Context, line: c.AccountLine) -> Verdict:
    state = context.state
    verdict = _check_line(line)
    if verdict is not ACCEPTED:
        return verdict
    members = _members(state, line)
    if isinstance(members, Verdict):
        return members
    if state.imagings:
        for record in members:
            state.touch(record)
    for skipped in line.skipped:
        for record in members:
            _record_skipped(context, record, skipped)
    for due in line.due:
        mark = Mark(due.local_min, due.is_late)
        state.due.put_line(due.scheduled_s, accumulate(line.jobs), mark)
    _move_horizons(context, line, members)
    return ACCEPTED


def _move_horizons(context: Context, line: c.AccountLine, members: list[JobRecord]) -> None:
    to_s, newest_min = line.to_s, max(_local_mins(line), default=-1)
    for record in members:
        record.horizon_s = to_s
        if newest_min > record.local_horizon_min:
            record.local_horizon_min = newest_min
        if record.spent:
            record.spent = [at_s for at_s in record.spent if at_s > to_s]
        if record.dead:
            for due in line.due:
                context.unbury((record.number, due.scheduled_s, 0))


def _members(state: State, line: c.AccountLine) -> list[JobRecord] | Verdict:
    """Return the jobs of a line, or why one of them, and so all of it, is refused."""
    by_number, catalog, from_s = state.by_number, line.catalog, line.from_s
    first_min = min(_local_mins(line), default=None)
    members: list[JobRecord] = []
    for number in accumulate(line.jobs):
        record = by_number.get(number)
        if record is None or record.job is None:
            return Verdict.UNKNOWN_JOB
        if record.revision > catalog:
            return Verdict.STALE_REVISION
        if record.horizon_s != from_s:
            return Verdict.WRONG_HORIZON
        if record.spent and _repeats(record, line):
            return Verdict.BAD_TIMES
        if first_min is not None and first_min <= record.local_horizon_min:
            return Verdict.REPEATED_LOCAL_TIME
        members.append(record)
    return members if catalog <= state.catalog else Verdict.STALE_REVISION


def _repeats(record: JobRecord, line: c.AccountLine) -> bool:
    """Whether a name would get a second row that has begun before the clock was reset."""
    spans = [(due.scheduled_s, due.scheduled_s) for due in line.due]
    spans += [(skip.first_s, skip.last_s) for skip in line.skipped]
    return any(first_s <= at_s <= last_s for at_s in record.spent for first_s, last_s in spans)


def _local_mins(line: c.AccountLine) -> list[int]:
    """Return the nominal local times that a line accounts for, where they must not repeat."""
    times = [due.local_min for due in line.due] + [skip.local_min for skip in line.skipped]
    return [local_min for local_min in times if local_min >= 0]


def _check_line(line: c.AccountLine) -> Verdict:
    """Whether it names each job once, and its rows lie inside (from, to], apart, and repeat no
    fixed local time (R1, R11)."""
    if not line.jobs or min(line.jobs) <= 0:
        return Verdict.REPEATED
    if not line.from_s < line.to_s <= SCHEDULED_S_MAX:
        return Verdict.BAD_TIMES
    spans = [(due.scheduled_s, due.scheduled_s, due.local_min) for due in line.due]
    spans += [(skip.first_s, skip.last_s, skip.local_min) for skip in line.skipped]
    spans.sort()
    before_s, local_before_min = line.from_s, -1
    for first_s, last_s, local_min in spans:
        if not before_s < first_s <= last_s <= line.to_s:
            return Verdict.BAD_TIMES
        if 0 <= local_min <= local_before_min:
            return Verdict.REPEATED_LOCAL_TIME
        before_s, local_before_min = last_s, max(local_before_min, local_min)
    return ACCEPTED if all(map(_can_be_a_run, line.skipped)) else Verdict.BAD_TIMES


def _can_be_a_run(item: c.SkipItem) -> bool:
    """Whether so many instants can lie between the first and the last, both included."""
    seconds = item.last_s - item.first_s + 1
    return item.count == 1 if seconds == 1 else 2 <= item.count <= seconds


def _record_skipped(context: Context, record: JobRecord, item: c.SkipItem) -> None:
    counts = record.counts
    counts[LaunchState.SKIPPED] = counts.get(LaunchState.SKIPPED, 0) + item.count
    record.local_horizon_min = max(record.local_horizon_min, item.local_min)
    detail, note = written(pause_note(record, item.reason))
    context.record(
        Row(
            kind=RowKind.ENDED if item.count == 1 else RowKind.RANGE,
            job=record.name,
            revision=record.revision,
            scheduled_s=item.first_s,
            trigger=0,
            attempt=0,
            state=LaunchState.SKIPPED,
            reason=item.reason,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=item.last_s,
            count=item.count,
            local_min=item.local_min,
            detail=detail,
            note=note,
        )
    )
