"""How Begin changes State: log point 1, rules R1, R2, R5, R6, R7.

A launch begins as a row of a batch, and costs no object of its own, unless more is known of it than
the columns say: it has failed before, somebody asked for it, it has parts. Then it is detailed. All
that stands in a line of due launches begins at once.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from operator import attrgetter
from typing import Final

from cron.job import Job, Overlap
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.context import Context
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Result, Verdict
from cron.state.rows import Part
from cron.state.state import JobRecord, State

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
ALLOW: Final = Overlap.ALLOW
BEGUN: Final = LaunchState.BEGUN


_revision: Final = attrgetter("revision")
_number: Final = attrgetter("number", "executor", "row")
_is_late: Final = attrgetter("is_late")
_local_min: Final = attrgetter("local_min")


def begin(context: Context, command: c.Begin) -> Result:
    """Write log point 1 of attempts whose launches are due; a verdict for each row, or none where
    all are accepted. BAD_TIMES is the verdict on a row whose deadline or start window is over."""
    verdicts: list[Verdict] = []
    begun = context.rows_begun
    # What is refused has its rows as well, so that the command alone tells them.
    firsts = []
    for asked in command.batches:
        firsts.append(begun.get(asked.executor, 0))
        begun[asked.executor] = firsts[-1] + len(asked.jobs)
    divided: dict[c.Key, list[Part]] | None = None
    answered: dict[c.Key, Verdict] = {}  # of launches that have parts
    for asked, first in zip(command.batches, firsts, strict=True):
        if _begin_line(context, asked, first):
            verdicts += [ACCEPTED] * len(asked.jobs)
            continue
        if not asked.is_whole:
            verdicts += [Verdict.WRONG_STATE] * len(asked.jobs)
            continue
        if asked.parts and divided is None:
            divided = _divided(context.state, command, firsts)
        held = dict(asked.deadlines)
        for place, (key, attempt, part) in enumerate(asked.rows()):
            verdict = answered.get(key) if part else None
            if verdict is None:
                starts = [_start(context.state, asked.executor, first + place)]
                if part and divided is not None:
                    starts = divided[key]
                verdict = _begin(context, asked, key, attempt, starts, held.get(place, 0))
                if part:
                    answered[key] = verdict
            verdicts.append(verdict)
    return Result(ACCEPTED, tuple(verdicts) if any(verdicts) else ())


def _start(state: State, number: int, row: int, part: int = 1) -> Part:
    """Return a part that is to begin on an executor, which may be unknown, as that row."""
    executor = state.executors.get(number)
    name, ledger = (executor.executor, executor.ledger) if executor is not None else ("", "")
    return Part(number, name=name, ledger=ledger, row=row, number=part)


def _divided(state: State, command: c.Begin, firsts: list[int]) -> dict[c.Key, list[Part]]:
    """Return where the parts are to begin of launches that have parts, in their order."""
    found: dict[c.Key, list[Part]] = {}
    for asked, first in zip(command.batches, firsts, strict=True):
        if asked.parts and asked.is_whole:
            for row, (key, _, part) in enumerate(asked.rows(), first):
                if part:
                    start = _start(state, asked.executor, row, part)
                    found.setdefault(key, []).append(start)
    return {key: sorted(starts, key=_number) for key, starts in found.items()}


def _begin_line(context: Context, asked: c.BatchSpec, first: int) -> bool:
    """Begin rows all of which stand in lines of one instant, as usual rows, if all of them may;
    return whether they have begun. Nothing here looks at a launch by itself but in C."""
    state, at_ms, at_s = context.state, context.at_ms, asked.scheduled_s
    line = state.due.usual.get(at_s)
    is_plain = not (asked.scheduled or asked.triggers or asked.attempts or asked.parts)
    if line is None or not asked.jobs or not is_plain or asked.deadlines:
        return False
    numbers = list(accumulate(asked.jobs))
    rows, jobs = len(numbers), set(numbers)
    marks = list(map(line.get, numbers))
    delays_s = list(map(state.delays_s.get, numbers))
    # No job twice, and none that has parts.
    is_known = len(jobs) == rows and all(marks) and None not in delays_s
    if not is_known or asked.executor not in state.executors:
        return False
    if asked.catalog != state.catalog:
        records = map(state.by_number.__getitem__, numbers)
        if not state.has_revisions(asked.catalog, records):
            return False
    window_ms = asked.not_after_ms
    if delays_s.count(delays_s[0]) == rows:  # jobs that fall due together are often alike
        delays_s = delays_s[:1]
    ends_ms = array("q", [(at_s + delay_s) * 1000 for delay_s in delays_s if delay_s is not None])
    is_in_time = min(*ends_ms, window_ms) >= at_ms
    doubtful = map(state.by_number.__getitem__, state.doubtful.keys() & jobs)
    if not is_in_time or any(one.held_until_ms > at_ms or one.held for one in doubtful):
        return False
    running = map(state.by_number.__getitem__, state.running.keys() & jobs)
    if not all(_may_run(state, one, at_ms) for one in running):
        return False
    windows_ms = array("q", [min(window_ms, end_ms) for end_ms in ends_ms])
    marks = marks[:1] if marks.count(marks[0]) == rows else marks
    batch = state.batch(asked.executor, context.index, at_ms, context.epoch)
    known = (
        array("q", numbers),
        array("q", (at_s,)) * rows,
        array("q", (1,)) * rows,  # attempts
        ends_ms * (rows // len(ends_ms)),
        windows_ms * (rows // len(windows_ms)),
        array("q", map(_local_min, marks)) * (rows // len(marks)),
    )
    batch.extend(first, bytes(map(_is_late, marks)) * (rows // len(marks)), known)
    state.due.take(at_s, numbers)
    state.active.put(at_s, numbers, batch)
    if not state.limited.keys().isdisjoint(jobs):
        mine = dict.fromkeys(filter(state.limited.__contains__, numbers), 1)
        for number in state.running.keys() & jobs:  # few, or none
            mine[number] += state.running[number]
        state.running.update(mine)
    context.begun_rows.append((asked.executor, at_s, numbers))
    return True


def _begin(
    context: Context,
    asked: c.BatchSpec,
    key: c.Key,
    attempt: int,
    starts: list[Part],
    held_ms: int,
) -> Verdict:
    """Begin a launch, if it may: as a usual row, or as a detailed one of each of its executors."""
    state = context.state
    row = state.due.get(key)
    if row is None:
        active = state.active.get(key)
        same = active is not None and active.attempt == attempt
        return Verdict.ALREADY if same else Verdict.NOT_DUE
    record = state.by_number[row.number]
    job = record.job
    if job is None:
        return Verdict.UNKNOWN_JOB
    deadline_ms = row.deadline_ms
    if held_ms:
        # Never more than a launch has that comes due now, whatever held its clock.
        deadline_ms = max(deadline_ms, min(held_ms, context.at_ms + job.deadline_s * 1000))
    if not record.revision <= asked.catalog <= state.catalog:
        return Verdict.STALE_REVISION
    if attempt != row.attempt + 1:
        return Verdict.WRONG_ATTEMPT
    misfit = _misfit(state, job, starts)
    if misfit is not None:
        return misfit
    if min(asked.not_after_ms, deadline_ms) < context.at_ms:
        return Verdict.BAD_TIMES
    if context.at_ms < row.not_before_ms or not _may_run(state, record, context.at_ms):
        return Verdict.OVERLAP
    state.touch(record)
    if deadline_ms == row.deadline_ms and _is_usual(row, job):
        _begin_usual(context, asked, row, starts[0])
        return ACCEPTED
    row.state = BEGUN
    row.attempt = attempt
    row.revision = record.revision
    row.job = job
    row.begun_index = context.index
    row.begun_at_ms = context.at_ms
    row.epoch = context.epoch
    row.executor = starts[0].executor
    row.row = starts[0].row
    if job.has_parts:
        row.parts = starts
    row.not_after_ms = min(asked.not_after_ms, deadline_ms)
    if deadline_ms != row.deadline_ms:
        row.deadline_ms, row.held_to_ms = deadline_ms, context.at_ms
    row.detail, row.note = "", None  # what was said of an attempt before
    context.set_active(row)
    return ACCEPTED


def _is_usual(row: LaunchRow, job: Job) -> bool:
    """Whether the columns of a batch can say all that is known of a launch that begins. What was
    said of an attempt before, which never ran, is known no more."""
    is_asked_for = row.trigger or row.by or row.due_at_ms or row.is_redriven
    return not (is_asked_for or row.tries or row.not_before_ms or row.held_to_ms or job.has_parts)


def _begin_usual(context: Context, asked: c.BatchSpec, row: LaunchRow, start: Part) -> None:
    """Begin a launch as a usual row."""
    state, number, at_s, deadline_ms = context.state, row.number, row.scheduled_s, row.deadline_ms
    batch = state.batch(start.executor, context.index, context.at_ms, context.epoch)
    ends_ms = (deadline_ms, min(asked.not_after_ms, deadline_ms))
    known = (number, at_s, row.attempt + 1, *ends_ms, row.local_min)
    batch.append(start.row, known, is_late=row.is_late)
    context.leave_due(row)
    state.by_number[number].open.pop((at_s, 0), None)
    state.active.put(at_s, (number,), batch)
    state.start_running(number)
    context.begun[(number, at_s, 0)] = None


def _misfit(state: State, job: Job, starts: list[Part]) -> Verdict | None:
    """Return why a launch of the job may not begin on these executors, a part on each; None where
    it may."""
    is_one = len(starts) == 1 and starts[0].number == 1 and not job.has_parts
    if is_one and starts[0].executor in state.executors:
        return None  # the usual case, cheap
    executors = dict.fromkeys(start.executor for start in starts)
    if any(executor not in state.executors for executor in executors):
        return Verdict.UNKNOWN_EXECUTOR
    is_number = bool(job.each) or len(starts) == job.parts
    in_order = all(start.number == number for number, start in enumerate(starts, 1))
    fits = is_number and in_order and len(executors) == len(starts)
    return None if fits else Verdict.WRONG_PARTS


def _may_run(state: State, record: JobRecord, now_ms: int) -> bool:
    """Whether a launch of the job may begin beside those that may be running."""
    job = record.job
    if job is None or job.overlap is not ALLOW:
        return not holds_slot(state, record, now_ms)
    return not job.concurrency or not _holds_all(state, record, job, now_ms)


def _holds_all(state: State, record: JobRecord, job: Job, now_ms: int) -> bool:
    """Whether as many launches of a job may be running as it allows, with those that are lost. What
    is in doubt after a restore may be any number (rule R13)."""
    runs = state.running.get(record.number, 0) + record.held_slots(now_ms)
    return record.held_until_ms > now_ms or runs >= job.concurrency


def holds_slot(state: State, record: JobRecord, now_ms: int) -> bool:
    """Whether a launch of the job may be running: open between its log points, or lost with a
    deadline for its end that is not over (rules R5, R6)."""
    return record.held_until_ms > now_ms or record.number in state.running
