"""How instants get their rows: Account, rules R1 and R11."""

from __future__ import annotations

from itertools import accumulate
from operator import attrgetter
from typing import Final

from cron.notes import Note
from cron.state import commands as c
from cron.state.context import Context, pause_note
from cron.state.due import Mark
from cron.state.outcome import Result, Verdict
from cron.state.rows import Chunk, Row, RowKind
from cron.state.state import JobRecord, State
from launcher.launch import LaunchState, Reason
from launcher.names import SCHEDULED_S_MAX

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
SKIPPED: Final = LaunchState.SKIPPED
_name: Final = attrgetter("name")
_job: Final = attrgetter("job")
_revision: Final = attrgetter("revision")
_horizon_s: Final = attrgetter("horizon_s")
_local_horizon_min: Final = attrgetter("local_horizon_min")
_spent: Final = attrgetter("spent")


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
    for item in line.skipped:
        _record_skipped(context, members, item)
    for due in line.due:
        mark = Mark(due.local_min, due.is_late)
        state.due.put_line(due.scheduled_s, accumulate(line.jobs), mark)
    _move_horizons(context, line, members)
    return ACCEPTED


def _move_horizons(context: Context, line: c.AccountLine, members: list[JobRecord]) -> None:
    to_s, newest_min = line.to_s, max(_local_mins(line), default=-1)
    skipped = sum(item.count for item in line.skipped)
    for record in members:
        record.horizon_s = to_s
        if skipped:
            record.counts[SKIPPED] = record.counts.get(SKIPPED, 0) + skipped
        if newest_min > record.local_horizon_min:
            record.local_horizon_min = newest_min
        if record.spent:
            record.spent = [at_s for at_s in record.spent if at_s > to_s]
        if record.dead:
            for due in line.due:
                context.unbury((record.number, due.scheduled_s, 0))


def _members(state: State, line: c.AccountLine) -> list[JobRecord] | Verdict:
    """Return the jobs of a line, or why one of them, and so all of it, is refused."""
    # A look at all members for each question, in C: a line may have thousands.
    found = list(map(state.by_number.get, accumulate(line.jobs)))
    members = [record for record in found if record is not None]
    if len(members) < len(found) or None in map(_job, members):
        return Verdict.UNKNOWN_JOB
    if not max(map(_revision, members)) <= line.catalog <= state.catalog:
        return Verdict.STALE_REVISION
    if set(map(_horizon_s, members)) != {line.from_s}:
        return Verdict.WRONG_HORIZON
    if any(map(_spent, members)) and _repeats(members, line):
        return Verdict.BAD_TIMES
    first_min = min(_local_mins(line), default=None)
    if first_min is not None and first_min <= max(map(_local_horizon_min, members)):
        return Verdict.REPEATED_LOCAL_TIME
    return members


def _repeats(members: list[JobRecord], line: c.AccountLine) -> bool:
    """Whether a name would get a second row that has begun before the clock was reset."""
    spans = [(due.scheduled_s, due.scheduled_s) for due in line.due]
    spans += [(skip.first_s, skip.last_s) for skip in line.skipped]
    spent = [at_s for record in members for at_s in record.spent]
    return any(first_s <= at_s <= last_s for at_s in spent for first_s, last_s in spans)


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


def _record_skipped(context: Context, members: list[JobRecord], item: c.SkipItem) -> None:
    """Append a run of skipped instants of jobs to history: one item for all that say the same."""
    alike: dict[Note | None, list[JobRecord]] = {None: members}
    if item.reason is Reason.PAUSED:  # each may be paused by another, and for another reason
        alike = {}
        for record in members:
            alike.setdefault(pause_note(record, item.reason), []).append(record)
    for note, records in alike.items():
        like = Row(
            kind=RowKind.ENDED if item.count == 1 else RowKind.RANGE,
            job=records[0].name,
            revision=records[0].revision,
            scheduled_s=item.first_s,
            trigger=0,
            attempt=0,
            state=SKIPPED,
            reason=item.reason,
            ended_index=context.index,
            ended_at_ms=context.at_ms,
            last_s=item.last_s,
            count=item.count,
            local_min=item.local_min,
            note=note,
        )
        jobs, revisions = map(_name, records), list(map(_revision, records))
        context.record_chunk(Chunk.skipped(like, jobs, revisions))
