"""How instants get their rows: Account, rules R1 and R11."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, cast

from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.context import Context, pause_note
from cron.state.outcome import Result, Verdict
from cron.state.rows import Chunk, Row, RowKind
from cron.state.state import JobRecord, Paused, State
from launcher.protocol.names import SCHEDULED_S_MAX
from launcher.protocol.status import Reason

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
SKIPPED: Final = LaunchState.SKIPPED
_name: Final = attrgetter("name")
_job: Final = attrgetter("job")
_revision: Final = attrgetter("revision")
_horizon_s: Final = attrgetter("horizon_s")
_local_horizon_min: Final = attrgetter("local_horizon_min")
_dead: Final = attrgetter("dead")


def account(context: Context, command: c.Account) -> Result:
    """Give instants their rows and move horizons (rule R1)."""
    state, verdicts = context.state, []
    for line in command.lines:
        mins = [due.local_min for due in line.due] + [skip.local_min for skip in line.skipped]
        mins = [local_min for local_min in mins if local_min >= 0]
        numbers = list(accumulate(line.jobs))
        members = _members(state, line, numbers, mins)
        if isinstance(members, Verdict):
            verdicts.append(members)
            continue
        verdicts.append(ACCEPTED)
        if state.imagings:
            for record in members:
                state.touch(record)
        if line.skipped:
            _record_skipped(context, members, line.skipped)
        for due in line.due:
            state.due.put(due.scheduled_s, numbers, due)
        for record in members:
            record.horizon_s = line.to_s
        for record in members if mins else ():
            record.local_horizon_min = max(mins)
        if state.doubtful or state.dead:
            _forget_past(context, line, members)
    return Result(ACCEPTED, tuple(verdicts))


def _forget_past(context: Context, line: c.AccountLine, members: list[JobRecord]) -> None:
    """Let go of what the new horizon of jobs, and their new instants, make needless to know."""
    state = context.state
    for record in members:
        if record.number in state.doubtful:
            record.spent = [at_s for at_s in record.spent if at_s > line.to_s]
            if not (record.spent or record.held or record.held_until_ms > context.at_ms):
                del state.doubtful[record.number]
        for due in line.due if record.dead else ():
            context.take_out((record.number, due.scheduled_s, 0))


def _members(
    state: State, line: c.AccountLine, numbers: list[int], mins: list[int]
) -> list[JobRecord] | Verdict:
    """Return the jobs of a line, which has these numbers and nominal local times, which must not
    repeat; or why one of them, and so all of it, is refused."""
    if not line.jobs or min(line.jobs) <= 0:
        return Verdict.REPEATED
    spans = [(due.scheduled_s, due.scheduled_s, due.local_min) for due in line.due]
    spans += [(skip.scheduled_s, skip.last_s, skip.local_min) for skip in line.skipped]
    are_runs = all(map(_can_be_a_run, line.skipped))
    if not line.from_s < line.to_s <= SCHEDULED_S_MAX or not are_runs:
        return Verdict.BAD_TIMES
    # They lie inside (from, to], apart, and repeat no fixed local time (rules R1, R11).
    before_s, local_before_min = line.from_s, -1
    for first_s, last_s, local_min in sorted(spans):
        if not before_s < first_s <= last_s <= line.to_s:
            return Verdict.BAD_TIMES
        if 0 <= local_min <= local_before_min:
            return Verdict.REPEATED_LOCAL_TIME
        before_s, local_before_min = last_s, max(local_before_min, local_min)
    # A look at all members for each question, in C: a line may have thousands.
    found = list(map(state.by_number.get, numbers))
    if not all(found) or not all(map(_job, found)):
        return Verdict.UNKNOWN_JOB
    members = cast(list[JobRecord], found)
    if line.catalog != state.catalog and not state.has_revisions(line.catalog, members):
        return Verdict.STALE_REVISION
    if set(map(_horizon_s, members)) != {line.from_s}:
        return Verdict.WRONG_HORIZON
    # No name gets a second row that has begun before the clock was reset.
    doubtful = filter(state.doubtful.__contains__, numbers) if state.doubtful else ()
    spent = [at_s for number in doubtful for at_s in state.by_number[number].spent]
    if any(first_s <= at_s <= last_s for at_s in spent for first_s, last_s, _ in spans):
        return Verdict.BAD_TIMES
    if mins and min(mins) <= max(map(_local_horizon_min, members)):
        return Verdict.REPEATED_LOCAL_TIME
    return members


def _can_be_a_run(item: c.Instants) -> bool:
    """Whether so many instants can lie between the first and the last, both included."""
    seconds = item.last_s - item.scheduled_s + 1
    return item.count == 1 if seconds == 1 else 2 <= item.count <= seconds


def _record_skipped(
    context: Context, members: list[JobRecord], skipped: Sequence[c.Instants]
) -> None:
    """Append runs of skipped instants of jobs to history: one item for all jobs that are skipped
    alike. Each may be paused by another person, and for another reason."""
    alike: dict[Paused | None, list[JobRecord]] = {}
    for record in members:
        alike.setdefault(record.paused, []).append(record)
    for item in skipped:
        for records in alike.values() if item.reason is Reason.PAUSED else (members,):
            like = Row(
                kind=RowKind.ENDED if item.count == 1 else RowKind.RANGE,
                job=records[0].name,
                revision=records[0].revision,
                scheduled_s=item.scheduled_s,
                trigger=0,
                attempt=0,
                state=SKIPPED,
                reason=item.reason,
                ended_index=context.index,
                ended_at_ms=context.at_ms,
                last_s=item.last_s,
                count=item.count,
                local_min=item.local_min,
                note=pause_note(records[0], item.reason),
            )
            jobs, revisions = map(_name, records), list(map(_revision, records))
            context.record(Chunk.skipped(like, jobs, revisions))
