"""Counts of an audit: each instant is one thing, and what is more is counted by itself."""

from __future__ import annotations

import msgspec

from cron.history.audited import AuditedJob
from cron.history.census import Census, count
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from cron.state.state import Span
from launcher.protocol.status import Reason
from tests.unit.history_rig import open_row
from tests.unit.test_history_why import ran, unbegun

S = LaunchState
T0 = 1_795_190_400
JOB = AuditedJob(
    "default/backup",
    (Span(3, T0, 0, Schedule("* * * * *", "* * * * *")),),
    T0 + 600,
)


def at(minute: int, **fields: object) -> Row:
    return ran(**({"scheduled_s": T0 + 60 * minute} | fields))


def skipped(minute: int, **fields: object) -> Row:
    return unbegun(**({"scheduled_s": T0 + 60 * minute, "reason": Reason.OVERLAP} | fields))


def run(first: int, last: int) -> Row:
    return skipped(
        first, kind=RowKind.RANGE, last_s=T0 + 60 * last, count=last - first + 1,
        reason=Reason.MISSED,
    )  # fmt: skip


def counted(*rows: Row, open_rows: tuple[Row, ...] = (), until: int = 10) -> Census:
    ordered = sorted([*rows, *open_rows], key=lambda row: row.scheduled_s)
    return count(JOB, ordered, T0, T0 + 60 * until)


def test_each_instant_is_counted_as_one_thing() -> None:
    due = open_row(T0 + 600, 0, 0, S.DUE)
    failed, lost = at(2, state=S.FAILED), at(3, state=S.LOST)
    unbegun_end = skipped(5, state=S.CANCELLED, reason=Reason.REPLACED, by="a newer launch")
    killed = at(6, state=S.CANCELLED, reason=Reason.KILLED, by="ann")
    rows = (at(1), failed, lost, skipped(4), unbegun_end, killed, run(7, 9))
    assert counted(*rows, open_rows=(due,)) == Census(
        instants=10, ran=4, skipped=2, skipped_in_runs=3, runs=1, open=1
    )


def test_a_launch_that_never_started_did_not_run() -> None:
    """All jobs of a cell failed, since no command might run as its user, and the audit said that
    they ran."""
    refused = {"state": S.FAILED, "reason": Reason.USER, "started_ms": 0}
    again = at(2, attempt=2)
    found = counted(at(1, **refused), at(2, **refused), again, skipped(3), run(4, 10))
    assert found == Census(
        instants=10, ran=1, not_started=1, skipped=1, skipped_in_runs=7, runs=1, extra_attempts=1
    )


def test_a_backfill_makes_a_skipped_instant_one_that_ran_and_is_an_extra_attempt() -> None:
    rows = (skipped(1), at(1, by="ann"), run(2, 10), at(5, by="ann"))
    assert counted(*rows) == Census(instants=10, ran=2, skipped_in_runs=8, runs=1, extra_attempts=2)


def test_what_a_restore_lost_is_neither_skipped_nor_known_to_have_run() -> None:
    lost = {"state": S.LOST, "reason": Reason.RESTORED}
    stretch = msgspec.structs.replace(run(3, 7), **lost)
    found = counted(at(1), skipped(2, **lost), stretch, at(5, by="ann"), run(8, 10))
    assert found == Census(
        instants=10, ran=2, skipped_in_runs=3, runs=1, extra_attempts=1, lost=5, lost_stretches=2
    )


def test_what_is_open_again_counts_as_open() -> None:
    again = open_row(T0 + 300, 0, 0, S.DUE, by="ann")
    found = counted(run(1, 10), open_rows=(again,))
    assert (found.skipped_in_runs, found.open, found.extra_attempts) == (9, 1, 1)


def test_a_backfill_of_a_time_before_the_job_was_is_extra_alone() -> None:
    early = AuditedJob(JOB.name, (msgspec.structs.replace(JOB.revisions[0], from_s=T0 + 300),), T0)
    found = count(early, [at(2, by="ann")], T0, T0 + 600)
    assert found == Census(extra_attempts=1)


def test_manual_launches_retries_and_late_report_are_counted_by_themselves() -> None:
    lost = at(1, state=S.LOST)
    news = skipped(1, kind=RowKind.AMENDMENT, state=S.SUCCEEDED, attempt=1)
    by_hand = at(1, trigger=1, by="ann")
    runs_by_hand = open_row(T0 + 61, 1, 1, S.LAUNCHED, by="bo")
    found = counted(lost, news, at(1, attempt=2), by_hand, open_rows=(runs_by_hand,), until=1)
    assert found == Census(instants=1, ran=1, extra_attempts=1, manual=1, amendments=1)


def test_what_is_outside_the_period_is_not_counted() -> None:
    later = open_row(T0 + 360, 0, 0, S.DUE)
    assert counted(at(0), at(1), run(2, 10), open_rows=(later,), until=4) == Census(
        instants=4, ran=1, skipped_in_runs=3, runs=1
    )
