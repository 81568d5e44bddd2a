"""What State forgets of the past of jobs, so that it does not grow for ever: rule R2's other side.

A record of a removed job is not needed to keep a job of the same name from repeating anything: a
change takes effect no earlier than the newest time in the log, and a record whose horizon is not
behind that time is kept. It is needed by its open launches, its dead letters, its lost launches
(a late report names the job), and by audit for as long as history has rows of its time.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise

from cron.limits import SPANS_KEPT
from cron.state import earlier
from cron.state.commands import Forget
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import JobRecord, Span, State


def forget(context: Context, command: Forget) -> Result:
    """Forget what history does not need of jobs; `number` is how many records went. A cell that was
    restored keeps everything until it knows what ran (rule R13)."""
    state = context.state
    if state.is_resolving:
        return Result(Verdict.RESOLVING)
    lost = {key[0] for key, _ in state.lost}
    before_s = min(command.before_s, context.at_ms // 1000)
    gone = 0
    for number in command.numbers:
        record = state.by_number.get(number)
        if record is None:
            continue
        if _is_over(context, record, lost) and record.spans[-1].to_s <= before_s:
            _drop(state, record)
            gone += 1
        else:
            state.touch(record)
            compact(record, _needed_from(state, record, before_s))
    for number in command.removed:
        record = state.by_number.get(number)
        if record is not None and _is_over(context, record, lost):
            _drop(state, record)
            gone += 1
    return Result(Verdict.ACCEPTED, number=gone)


def _is_over(context: Context, record: JobRecord, lost: Container[int]) -> bool:
    """Whether nothing but history needs the record: the job was removed, no launch of it is open,
    dead, lost or in doubt, and no instant, manual launch or change of a job that has its name can
    come before what this one has accounted."""
    now_s = context.at_ms // 1000
    return (
        record.job is None
        and not context.state.is_open(record)
        and not record.dead
        and record.held_until_ms <= context.at_ms
        and not record.held_slots(context.at_ms)
        and max(record.horizon_s, record.trigger_s, record.spans[-1].to_s) < now_s
        and record.number not in lost
    )


def _drop(state: State, record: JobRecord) -> None:
    state.touch(record)
    earlier.drop(state, record)
    state.drop_record(record.number)
    del state.jobs[record.name]
    state.doubtful.pop(record.number, None)
    state.forgotten_s = max(state.forgotten_s, record.horizon_s)


def compact(record: JobRecord, before_s: int) -> None:
    """Let a record have no more spans than it needs: those that ended by `before_s` go, all but the
    last, neighbours that say the same become one, and of too many the oldest go. With 0 none goes
    for its age, whatever is open."""
    kept: list[Span] = []
    for span in record.spans:
        last = kept[-1] if kept else None
        if last is not None and _goes_on(last, span):
            kept[-1] = Span(last.revision, last.from_s, span.to_s, span.schedule, span.overlap)
        elif last is not None and 0 < last.to_s <= before_s:
            record.forgotten_s = max(record.forgotten_s, last.to_s)
            kept[-1] = span
        else:
            kept.append(span)
    for span in kept[:-SPANS_KEPT]:
        record.forgotten_s = max(record.forgotten_s, span.to_s)
    record.spans = kept[-SPANS_KEPT:]


def is_compact(state: State, record: JobRecord, before_s: int) -> bool:
    """Return whether a record has no span too many, if history needs nothing before `before_s`."""
    spans = record.spans
    if len(spans) == 1:
        return True
    before_s = _needed_from(state, record, before_s)
    if len(spans) > SPANS_KEPT or 0 < spans[0].to_s <= before_s:
        return False
    return not any(_goes_on(before, after) for before, after in pairwise(spans))


def _needed_from(state: State, record: JobRecord, before_s: int) -> int:
    """Return `before_s`, or what is before all instants that will have another row: launches that
    are open, and those that may be launched again."""
    others = [one.place for known in record.repeats.values() for one in known.others]
    places = (*state.open_of(record), *record.dead, *others)
    return min([before_s, *(scheduled_s - 1 for scheduled_s, _ in places)])


def _goes_on(before: Span, after: Span) -> bool:
    """Whether a span goes on where another ends, with the same instants and the same overlap."""
    return (
        before.to_s == after.from_s
        and before.schedule == after.schedule
        and before.overlap is after.overlap
    )
