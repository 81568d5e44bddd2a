"""How Begin changes State: log point 1, rules R1, R2, R5, R6, R7.

A row of a batch is usual, and then costs no object of its own, unless more is known of its launch
than the columns say: it was tried before, somebody asked for it, it has parts. Then it is odd.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

from cron.job import Job, Overlap
from cron.state import commands as c
from cron.state import parts
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import JobRecord, LaunchRow, Part, State
from launcher.launch import LaunchState

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
ALLOW: Final = Overlap.ALLOW
BEGUN: Final = LaunchState.BEGUN


_revision: Final = attrgetter("revision")
_is_late: Final = attrgetter("is_late")
_local_min: Final = attrgetter("local_min")
_held_until: Final = attrgetter("held_until_ms")


class _Start(NamedTuple):
    """Where a part of a launch is to begin."""

    part: int
    executor: int
    row: int


class _Spec(NamedTuple):
    """Rows that begin on one executor, the first of which has this number there."""

    asked: c.BatchSpec
    first: int


def begin(context: Context, command: c.Begin) -> Result:
    """Write log point 1 of attempts whose launches are due; a verdict for each row, or none where
    all are accepted."""
    # What is refused has its rows as well, so that the command alone tells them.
    specs = []
    for asked in command.batches:
        first = context.rows_begun.get(asked.executor, 0)
        context.rows_begun[asked.executor] = first + len(asked.jobs)
        specs.append(_Spec(asked, first))
    divided: dict[c.Key, list[_Start]] = {}
    told: dict[c.Key, Verdict] = {}
    verdicts: list[Verdict] = []
    for spec in specs:
        if _begin_line(context, spec):
            verdicts += [ACCEPTED] * len(spec.asked.jobs)
        else:
            if spec.asked.parts and not divided:
                divided = _divided(specs)
            verdicts += _begin_rows(context, spec, divided, told)
    return Result(ACCEPTED, tuple(verdicts) if any(verdicts) else ())


def _divided(specs: list[_Spec]) -> dict[c.Key, list[_Start]]:
    """Return where the parts are to begin of launches that have parts, in their order."""
    found: dict[c.Key, list[_Start]] = {}
    for asked, first in specs:
        if asked.parts and asked.is_whole:
            for number, row in enumerate(asked.rows(), first):
                if row.part:
                    found.setdefault(row.key, []).append(_Start(row.part, asked.executor, number))
    return {key: sorted(starts) for key, starts in found.items()}


def _begin_rows(
    context: Context,
    spec: _Spec,
    divided: dict[c.Key, list[_Start]],
    told: dict[c.Key, Verdict],
) -> list[Verdict]:
    asked, first = spec
    if not asked.is_whole:
        return [Verdict.WRONG_STATE] * len(asked.jobs)
    state, due = context.state, context.state.due
    held = dict(asked.deadlines)
    verdicts: list[Verdict] = []
    usual: list[LaunchRow | None] = []  # by row, those that will be so
    begun: dict[c.Key, int] = {}  # the attempts that are usual rows of this spec
    for place, (key, attempt, part) in enumerate(asked.rows()):
        row = due.get(key)
        starts = [_Start(1, asked.executor, first + place)]
        one = None
        if part:
            starts = divided[key]
            verdict = told.get(key)
            if verdict is None:
                verdict = told[key] = _begin(
                    context, asked, (key, attempt), starts, held.get(place, 0)
                )
        elif begun.get(key) == attempt:
            verdict = Verdict.ALREADY
        elif row is None or place in held or not _is_usual(state, row):
            verdict = _begin(context, asked, (key, attempt), starts, held.get(place, 0))
        else:
            verdict = _refusal(context, asked, row, attempt, starts, row.deadline_ms)
            if verdict is ACCEPTED:
                one, begun[key] = row, attempt
                _leave_due(context, row)
        verdicts.append(verdict)
        usual.append(one)
    if any(usual):
        _fill(context, spec, usual)
    return verdicts


def _begin_line(context: Context, spec: _Spec) -> bool:
    """Begin rows all of which stand in lines of one instant, as usual rows, if all of them may;
    return whether they have begun. Nothing here looks at a launch by itself but in C."""
    asked, first = spec
    state, at_ms, at_s = context.state, context.at_ms, asked.scheduled_s
    line = state.due.lines.get(at_s)
    is_plain = not (asked.scheduled or asked.triggers or asked.attempts or asked.parts)
    if line is None or not asked.jobs or not is_plain or asked.deadlines:
        return False
    numbers = list(accumulate(asked.jobs))
    running = dict.fromkeys(numbers, 1)
    marks = list(map(line.get, numbers))
    delays_s = list(map(state.delays_s.get, numbers))
    # No job twice, and none that has parts or a bound of its own.
    if len(running) < len(numbers) or None in marks or None in delays_s:
        return False
    for number in state.running.keys() & running:  # few, or none
        if _overlap(state, number) is not ALLOW:
            return False
        running[number] += state.running[number]
    if asked.executor not in state.executors:
        return False
    records = list(map(state.by_number.__getitem__, numbers))
    if not asked.catalog <= state.catalog or max(map(_revision, records)) > asked.catalog:
        return False
    deadlines_ms = [(at_s + delay_s) * 1000 for delay_s in delays_s if delay_s is not None]
    if min(*deadlines_ms, asked.not_after_ms) < at_ms or max(map(_held_until, records)) > at_ms:
        return False
    rows, window_ms = len(numbers), asked.not_after_ms
    batch = state.batch(asked.executor, context.index, at_ms, context.epoch)
    if min(deadlines_ms) >= window_ms:
        not_after_ms: Sequence[int] = array("q", (window_ms,)) * rows
    else:
        not_after_ms = [min(window_ms, deadline_ms) for deadline_ms in deadlines_ms]
    batch.extend(
        first,
        bytes(map(_is_late, marks)),
        bytes((BEGUN,)) * rows,
        [
            numbers,
            array("q", (at_s,)) * rows,
            array("q", (1,)) * rows,
            deadlines_ms,
            not_after_ms,
            list(map(_local_min, marks)),
        ],
    )
    state.due.take_all(at_s, numbers)
    state.running.update(running)
    state.active.usual.setdefault(at_s, {}).update(dict.fromkeys(numbers, batch))
    context.moved_rows.append((numbers, [at_s] * rows))
    return True


def _overlap(state: State, number: int) -> Overlap | None:
    job = state.by_number[number].job
    return None if job is None else job.overlap


def _is_usual(state: State, row: LaunchRow) -> bool:
    """Whether the columns of a batch can say all that is known of a launch that begins."""
    if row.trigger or row.by or row.tries or row.not_before_ms or row.held_to_ms:
        return False
    job = state.by_number[row.number].job
    return job is not None and not job.has_parts and not row.due_at_ms


def _refusal(
    context: Context,
    asked: c.BatchSpec,
    row: LaunchRow,
    attempt: int,
    starts: list[_Start],
    deadline_ms: int,
) -> Verdict:
    """Return why a launch that is due may not begin, ACCEPTED where it may."""
    state, at_ms = context.state, context.at_ms
    record = state.by_number[row.number]
    job = record.job
    if job is None:
        return Verdict.UNKNOWN_JOB
    if not record.revision <= asked.catalog <= state.catalog:
        return Verdict.STALE_REVISION
    if attempt != row.attempt + 1:
        return Verdict.WRONG_ATTEMPT
    if len(starts) > 1 or starts[0].executor not in state.executors or job.parts > 1:
        misfit = parts.misfit(state, job, [start.executor for start in starts])
        if misfit is not None:
            return misfit
        if any(start.part != number for number, start in enumerate(starts, 1)):
            return Verdict.WRONG_PARTS
    if min(asked.not_after_ms, deadline_ms) < at_ms:
        return Verdict.BAD_TIMES
    if at_ms < row.not_before_ms:
        return Verdict.OVERLAP
    if job.overlap is not ALLOW and holds_slot(state, record, at_ms):
        return Verdict.OVERLAP
    if job.concurrency and _holds_all(state, record, job, at_ms):
        return Verdict.OVERLAP
    return ACCEPTED


def _leave_due(context: Context, row: LaunchRow) -> None:
    """Take a launch that becomes a usual row out of what is due."""
    state, key = context.state, row.key
    if state.due.take(row.scheduled_s, row.number) is None:
        record = state.by_number[row.number]
        state.touch(record)
        del state.due.odd[key]
        del record.open[key[1:]]
    state.running[row.number] = state.running.get(row.number, 0) + 1


def _fill(context: Context, spec: _Spec, rows: list[LaunchRow | None]) -> None:
    """Put what begins as usual rows into the columns of its batch."""
    asked, first = spec
    state = context.state
    batch = state.batch(asked.executor, context.index, context.at_ms, context.epoch)
    window_ms = asked.not_after_ms
    batch.extend(
        first,
        bytes(row is not None and row.is_late for row in rows),
        bytes(0 if row is None else BEGUN for row in rows),
        [
            [0 if row is None else row.number for row in rows],
            [0 if row is None else row.scheduled_s for row in rows],
            [0 if row is None else row.attempt + 1 for row in rows],
            [0 if row is None else row.deadline_ms for row in rows],
            [0 if row is None else min(window_ms, row.deadline_ms) for row in rows],
            [0 if row is None else row.local_min for row in rows],
        ],
    )
    begun = [row for row in rows if row is not None]
    numbers, instants = [row.number for row in begun], [row.scheduled_s for row in begun]
    context.moved_rows.append((numbers, instants))
    by_instant = state.active.usual
    for row in rows:
        if row is not None:
            by_instant.setdefault(row.scheduled_s, {})[row.number] = batch


def _begin(
    context: Context,
    asked: c.BatchSpec,
    tried: tuple[c.Key, int],
    starts: list[_Start],
    held_ms: int,
) -> Verdict:
    """Begin a launch as an odd row of each of its executors, if it may."""
    state, (key, attempt) = context.state, tried
    row = state.due.get(key)
    if row is None:
        active = state.active.get(key)
        same = active is not None and active.attempt == attempt
        return Verdict.ALREADY if same else Verdict.NOT_DUE
    record = state.by_number[row.number]
    deadline_ms = row.deadline_ms
    if held_ms and record.job is not None:
        # Never more than a launch has that comes due now, whatever held its clock.
        most_ms = context.at_ms + record.job.deadline_s * 1000
        deadline_ms = max(deadline_ms, min(held_ms, most_ms))
    verdict = _refusal(context, asked, row, attempt, starts, deadline_ms)
    if verdict is not ACCEPTED or record.job is None:
        return verdict
    state.touch(record)
    row.state = BEGUN
    row.attempt = attempt
    row.revision = record.revision
    row.job = record.job
    row.begun_index = context.index
    row.begun_at_ms = context.at_ms
    row.epoch = context.epoch
    row.executor = starts[0].executor
    row.row = starts[0].row
    if len(starts) > 1 or record.job.each:
        row.parts = [Part(start.executor, row=start.row) for start in starts]
    row.not_after_ms = min(asked.not_after_ms, deadline_ms)
    if deadline_ms != row.deadline_ms:
        row.deadline_ms, row.held_to_ms = deadline_ms, context.at_ms
    row.detail, row.note = "", None  # what was said of an attempt before
    context.set_active(row)
    return ACCEPTED


def holds_slot(state: State, record: JobRecord, now_ms: int) -> bool:
    """Whether a launch of the job may be running: open between its log points, or lost with a
    deadline for its end that is not over (rules R5, R6)."""
    return record.held_until_ms > now_ms or record.number in state.running


def _holds_all(state: State, record: JobRecord, job: Job, now_ms: int) -> bool:
    """Whether as many launches of a job may be running as it allows, with those that are lost. What
    is in doubt after a restore may be any number (rule R13)."""
    if job.overlap is not ALLOW:
        return False
    runs = state.running.get(record.number, 0)
    return record.held_until_ms > now_ms or runs + record.held_slots(now_ms) >= job.concurrency
