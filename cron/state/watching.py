"""What the rules of alerts need to know of launches that are over.

State has no row of a launch that is over; history has. But a rule such as `failed:2` must hold on
after a failover. So the record of a job has how its newest launches ended (`Marks`), if a rule is
for the job. A job without rules costs nothing, and a success of one that did not fail costs a look
at its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cron.alert_rules import AlertKind
from cron.launch_state import LaunchState
from cron.state import alerts as a
from cron.state.context import Context
from cron.state.deliveries import mail_output
from cron.state.rows import RESTORED_BY, Chunk, Row, RowKind
from cron.state.state import JobRecord
from launcher.protocol.names import TASK_MARK, LaunchName
from launcher.protocol.status import Reason

SUCCEEDED: Final = LaunchState.SUCCEEDED  # members of an enumeration are slow to look up
SKIPPED: Final = LaunchState.SKIPPED
FAILURES: Final = (LaunchState.FAILED, LaunchState.LOST)
MISSED: Final = frozenset(
    {
        Reason.MISSED,
        Reason.DEADLINE,
        Reason.FENCED,
        Reason.FULL,
        Reason.OVERLOAD,
        Reason.NO_EXECUTOR,
    }
)
"""Why an instant has no launch though nobody wanted that."""
FAILURES_FORMAT: Final = 12
"""The format of State from which the failures in a row are counted, however many there are."""
_OF_SUCCESS: Final = 1 << AlertKind.NO_SUCCESS | 1 << AlertKind.LATE
_OF_MISSED: Final = 1 << AlertKind.MISSED
_ALL: Final = -1
"""Bits of the kinds that need successes, skipped instants, and all other ends."""


def note_ends(context: Context) -> None:
    """Note how launches ended by this entry. Call this after its last command: a launch that is
    open again is not over."""
    state = context.state
    for item in context.ended:
        for row in _rows_for(state.alerts, item):
            record = state.jobs.get(row.job)
            if record is not None and record.job is not None:
                _note_end(context, record, row)


def _rows_for(alerts: a.AlertState, item: Row | Chunk) -> Iterator[Row]:
    """Yield the rows of an item that rules, or `MAILTO`, may need. Of a chunk only these are made:
    an entry may have a hundred thousand rows."""
    if not isinstance(item, Chunk):
        if TASK_MARK not in item.job:
            yield item
        return
    names = item.names()
    if item.state is SUCCEEDED:
        wanted = alerts.marked.keys() & names if alerts.marked else set()
        if alerts.mailing and item.output_bytes:
            wanted |= alerts.mailing.keys() & names
        wanted |= _watched(alerts, names, _OF_SUCCESS)
    elif item.state is SKIPPED:
        wanted = _watched(alerts, names, _OF_MISSED) if item.reason in MISSED else set()
    else:
        wanted = _watched(alerts, names, _ALL)
        if alerts.mailing:
            wanted |= alerts.mailing.keys() & names
    for place, name in enumerate(names) if wanted else ():
        if name in wanted:
            yield item.row(place, name)


def _watched(alerts: a.AlertState, names: list[str], kinds: int) -> set[str]:
    """Return the jobs among these names that a rule of one of these kinds is for."""
    if not alerts.kinds & kinds:
        return set()
    return {name for name in names if TASK_MARK not in name and alerts.watch(name).kinds & kinds}


def _note_end(context: Context, record: JobRecord, row: Row) -> None:
    state = context.state
    watch = state.alerts.watch(record.name)
    own = state.alerts.own.get(record.name)
    mails = own.mail_to if own is not None else ()
    before = marks = record.marks or a.NO_MARKS
    if not watch.kinds and not mails:
        if record.marks is not None:
            _set_marks(context, record, before, a.NO_MARKS)
        return
    if watch.has(AlertKind.LATE) and row.attempt == 1 and row.begun_at_ms and not row.trigger:
        delay_ms = record.job.delay_ms(row.scheduled_s) if record.job is not None else 0
        marks = _with_lateness(marks, watch, row, delay_ms)
    is_over = state.row((record.number, row.scheduled_s, row.trigger)) is None
    is_restored = state.is_resolving or row.by == RESTORED_BY
    if is_over:
        marks = _with_end(context, watch, marks, row, is_restored=is_restored)
        if mails and not is_restored and _has_mail(record, row):
            mail_output(context, row, mails)
        if row.state is not SUCCEEDED and watch.kinds:
            context.marked[record.number] = None  # it may be a dead letter
    if marks != before:
        _set_marks(context, record, before, marks)


def _set_marks(context: Context, record: JobRecord, before: a.Marks, marks: a.Marks) -> None:
    alerts = context.state.alerts
    context.state.touch(record)
    record.marks = marks if marks != a.NO_MARKS else None
    alerts.note_marks(record.name, record.marks)
    is_more = before.is_marked or marks.is_marked
    if is_more or record.name in alerts.open_of:
        context.marked[record.number] = None


def _with_lateness(marks: a.Marks, watch: a.Watch, row: Row, delay_ms: int) -> a.Marks:
    """Return the marks with the lateness of a launch, if a rule allows less. Its jitter is no
    lateness: `delay_ms`."""
    late_ms = max(0, row.begun_at_ms - row.scheduled_s * 1000 - delay_ms)
    least_s = min(
        rule.condition.after_s for rule in watch.rules if rule.condition.kind is AlertKind.LATE
    )
    if late_ms <= least_s * 1000:
        return msgspec.structs.replace(marks, late_ms=0)
    launches = _newest(marks, row)
    return msgspec.structs.replace(marks, late_ms=late_ms, launches=launches)


def _with_end(
    context: Context, watch: a.Watch, marks: a.Marks, row: Row, *, is_restored: bool
) -> a.Marks:
    """Return the marks with the end of a launch. What a restored cell recorded of the life before
    is not told again, so of that only successes count."""
    bits = (1 << watch.launches) - 1
    if row.state is SUCCEEDED:
        success_ms = context.at_ms if watch.has(AlertKind.NO_SUCCESS) else 0
        failed = marks.failed << 1 & bits
        is_quiet = not failed and not marks.late_ms
        return a.Marks(
            failed,
            0,
            marks.late_ms,
            success_ms,
            marks.since_ms if failed else 0,
            () if is_quiet else marks.launches,
        )
    if is_restored or row.kind is RowKind.AMENDMENT:  # it was counted when it was lost
        return marks
    if row.state in FAILURES:
        counts = context.state.format >= FAILURES_FORMAT
        is_first = not marks.failed & 1
        return msgspec.structs.replace(
            marks,
            failed=(marks.failed << 1 | 1) & bits,
            missed=0,
            since_ms=context.at_ms if is_first else marks.since_ms,
            launches=_newest(marks, row) if bits else (),
            failures=_failures(marks) + 1 if bits and counts else 0,
        )
    if row.state is SKIPPED and row.reason in MISSED and watch.has(AlertKind.MISSED):
        return msgspec.structs.replace(
            marks,
            missed=marks.missed + row.count,
            since_ms=marks.since_ms if marks.missed else context.at_ms,
            launches=_newest(marks, row),
        )
    return marks


def _failures(marks: a.Marks) -> int:
    """Return how many launches failed in a row: at least as many as the newest bits say, which a
    State of an older format has."""
    return max(marks.failures, (~marks.failed & marks.failed + 1).bit_length() - 1)


def _newest(marks: a.Marks, row: Row) -> tuple[str, ...]:
    """Return the names of the newest launches of marks, with that of a row."""
    name = str(LaunchName(row.job, max(row.scheduled_s, row.last_s), row.trigger))
    kept = tuple(one for one in marks.launches if one != name)
    return (*kept, name)[-a.EVIDENCE_LAUNCHES :]


def _has_mail(record: JobRecord, row: Row) -> bool:
    """Whether the launch of a command has something to mail: it wrote something, or failed."""
    if record.job is None or record.job.work.handler:
        return False
    return row.state in FAILURES or (row.state is SUCCEEDED and row.output_bytes > 0)
