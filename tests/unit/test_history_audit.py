"""Audit, case by case: what breaks a promise, what is only worth telling, what is fine."""

from __future__ import annotations

import msgspec
import pytest

from cron.history.audit import audit
from cron.history.audited import AuditedJob, Finding, FindingKind
from cron.job import Overlap, Schedule
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from cron.state.state import Span
from launcher.protocol.status import Reason
from tests.unit.history_rig import open_row

S, K = LaunchState, FindingKind
EVERY_MINUTE = Schedule("@every 60s", every_s=60)


def job(overlap: Overlap = Overlap.ALLOW, horizon_s: int = 600, to_s: int = 0) -> AuditedJob:
    span = Span(1, 0, to_s, EVERY_MINUTE, overlap)
    return AuditedJob("default/backup", (span,), horizon_s)


def ran(at_s: int, index: int, **fields: object) -> Row:
    known: dict[str, object] = {
        "kind": RowKind.ENDED,
        "job": "default/backup",
        "revision": 1,
        "scheduled_s": at_s,
        "trigger": 0,
        "attempt": 1,
        "state": S.SUCCEEDED,
        "reason": Reason.NONE,
        "begun_index": index,
        "launched_index": index + 1,
        "ended_index": index + 2,
        "started_ms": at_s * 1000 + 10,
        "finished_ms": at_s * 1000 + 20,
        "ended_at_ms": at_s * 1000 + 30,
    }
    return Row(**(known | fields))  # type: ignore[arg-type]


def skipped(at_s: int, index: int, **fields: object) -> Row:
    unbegun = {
        "attempt": 0,
        "state": S.SKIPPED,
        "begun_index": 0,
        "launched_index": 0,
        "ended_index": index,
        "started_ms": 0,
        "finished_ms": 0,
    }
    return ran(at_s, 0, **(unbegun | fields))


def skipped_range(first_s: int, last_s: int, index: int) -> Row:
    count = (last_s - first_s) // 60 + 1
    return skipped(first_s, index, kind=RowKind.RANGE, last_s=last_s, count=count)


def find(
    rows: list[Row],
    open_rows: list[Row] | None = None,
    *,
    of: AuditedJob | None = None,
    since_s: int = 0,
    until_s: int = 180,
) -> list[Finding]:
    ordered = sorted([*rows, *(open_rows or [])], key=lambda row: row.scheduled_s)
    return list(audit(of or job(), ordered, since_s, until_s))


def kinds(findings: list[Finding]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


def test_three_instants_that_ran_are_fine() -> None:
    assert find([ran(60, 1), ran(120, 11), ran(180, 21)]) == []


def test_a_missing_row_names_its_launch() -> None:
    (found,) = find([ran(60, 1), ran(180, 21)])
    assert found == Finding(
        "default/backup",
        120,
        K.MISSING,
        "default/backup@1970-01-01T00:02:00Z: it has no row",
    )
    assert found.is_violation


def test_nothing_is_expected_outside_the_period_the_horizon_and_the_revisions() -> None:
    assert find([], since_s=180, until_s=180) == []
    assert find([], of=job(horizon_s=59)) == []
    assert kinds(find([], of=job(horizon_s=120))) == [K.MISSING] * 2
    assert kinds(find([], of=job(to_s=60))) == [K.MISSING]


@pytest.mark.parametrize(
    "row",
    [
        open_row(60, 0, 1, S.BEGUN),
        open_row(60, 0, 0, S.BEGUN, begun_index=5),
        open_row(60, 0, 1, S.LAUNCHED, begun_index=5),
        open_row(60, 0, 1, S.BEGUN, begun_index=5, started_ms=60_001),
        open_row(60, 0, 1, S.LAUNCHED, begun_index=5, launched_index=4),
    ],
)
def test_an_open_launch_without_its_log_points_is_found(row: Row) -> None:
    assert kinds(find([], [row], until_s=60)) == [K.LOG_POINT]


def test_a_range_must_have_as_many_instants_as_it_says() -> None:
    assert find([skipped_range(60, 180, 1)]) == []
    wrong = skipped(60, 1, kind=RowKind.RANGE, last_s=180, count=2)
    (found,) = find([wrong])
    assert found.kind is K.WRONG_COUNT
    assert "says 2 instants, the schedule has 3" in found.message


def test_a_row_where_nothing_is_due_is_found_unless_it_was_triggered() -> None:
    fine = [skipped_range(60, 180, 1)]
    assert kinds(find([*fine, ran(90, 5)])) == [K.NO_INSTANT]
    assert kinds(find([*fine, ran(90, 5, by="ann")])) == [K.NO_INSTANT]
    assert kinds(find(fine, [open_row(90, 0, 0, S.DUE)])) == [K.NO_INSTANT]
    assert find([*fine, ran(90, 5, by="ann", trigger=1), ran(90, 5, by="ann", trigger=2)]) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"begun_index": 0},
        {"attempt": 0},
        {"launched_index": 0},
        {"begun_index": 3},
        {"launched_index": 9},
        {"state": S.LOST, "begun_index": 0, "launched_index": 0, "started_ms": 0},
    ],
)
def test_a_launch_that_ran_without_its_log_points_is_found(fields: dict[str, object]) -> None:
    assert set(kinds(find([ran(60, 1, **fields)], until_s=60))) == {K.LOG_POINT}


def test_an_attempt_without_a_row_is_told_and_is_no_violation() -> None:
    (found,) = find([ran(60, 1, attempt=3)], until_s=60)
    assert found.kind is K.UNRECORDED_ATTEMPT
    assert "attempt 1 to 2 has no row" in found.message
    assert not found.is_violation


def test_late_report_is_told_and_is_no_violation() -> None:
    lost = ran(60, 1, state=S.LOST, finished_ms=0)
    news = skipped(60, 30, kind=RowKind.AMENDMENT, state=S.SUCCEEDED, attempt=1)
    (found,) = find([lost, news], until_s=60)
    assert found.kind is K.LATE_REPORT
    assert not found.is_violation
    assert "attempt 1 succeeded after all" in found.message


LONG = {"finished_ms": 130_000, "ended_index": 50}  # of the launch at 60: until after 120


@pytest.mark.parametrize("overlap", [Overlap.FORBID, Overlap.QUEUE, Overlap.REPLACE])
def test_two_launches_of_a_job_that_forbids_it_must_not_run_at_once(overlap: Overlap) -> None:
    rows = [ran(60, 1, **LONG), ran(120, 11)]
    assert find(rows, until_s=120) == []
    (found,) = find(rows, of=job(overlap), until_s=120)
    assert found.kind is K.OVERLAP
    assert "default/backup@1970-01-01T00:01:00Z was running" in found.message


def test_clocks_that_differ_make_no_overlap_where_the_log_proves_the_order() -> None:
    rows = [ran(60, 1, finished_ms=120_500), ran(120, 11)]  # ended at index 3, begun at 11
    assert find(rows, of=job(Overlap.FORBID), until_s=120) == []


def test_a_lost_launch_holds_until_it_was_given_up() -> None:
    lost = ran(60, 1, state=S.LOST, finished_ms=0, ended_at_ms=130_000, ended_index=50)
    assert kinds(find([lost, ran(120, 11)], of=job(Overlap.FORBID), until_s=120)) == [K.OVERLAP]
    assert find([lost, ran(180, 61)], of=job(Overlap.FORBID), since_s=120) == []


def test_the_revision_of_the_later_launch_decides() -> None:
    spans = (
        Span(1, 0, 60, EVERY_MINUTE, Overlap.FORBID),
        Span(2, 60, 0, EVERY_MINUTE, Overlap.ALLOW),
    )
    changed = AuditedJob("default/backup", spans, 600)
    rows = [ran(60, 1, **LONG), ran(120, 11, revision=2)]
    assert find(rows, of=changed, until_s=120) == []
    assert kinds(find([rows[0], ran(120, 11)], of=changed, until_s=120)) == [K.OVERLAP]


def test_rows_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not in scheduled order"):
        list(audit(job(), [ran(120, 11), ran(60, 1)], 0, 180))


def test_each_revision_is_judged_by_its_own_schedule() -> None:
    spans = (
        Span(1, 0, 120, EVERY_MINUTE),
        Span(2, 120, 200, Schedule("@every 50s", every_s=50)),
        Span(4, 300, 0, EVERY_MINUTE),
    )
    changed = AuditedJob("default/backup", spans, 400)
    rows = [ran(at_s, at_s) for at_s in (60, 120, 150, 200, 360)]
    assert find(rows, of=changed, until_s=400) == []
    assert [f.scheduled_s for f in find([], of=changed, until_s=400)] == [60, 120, 150, 200, 360]
    assert kinds(find([*rows, ran(180, 900)], of=changed, until_s=400)) == [K.NO_INSTANT]


def test_a_start_before_the_scheduled_time_is_found() -> None:
    # Its executor answered with the times of another launch (a log that was set back).
    (found,) = find([ran(60, 1, started_ms=30_000)], until_s=60)
    assert (found.kind, found.is_violation) == (K.EARLY, True)
    assert "started 30 s before its scheduled time" in found.message
    again = ran(60, 1, started_ms=30_000, kind=RowKind.OPEN, state=S.LAUNCHED)
    assert kinds(find([], [again], until_s=60)) == [K.EARLY]


def test_a_start_that_is_early_by_as_much_as_clocks_may_differ_is_fine() -> None:
    assert find([ran(60, 1, started_ms=40_000)], until_s=60) == []


def test_times_before_the_cells_clock_was_set_back_prove_nothing() -> None:
    early = ran(60, 5, started_ms=30_000)
    was_reset = msgspec.structs.replace(job(), reset_index=5)
    assert find([early], of=was_reset, until_s=60) == []
    since = msgspec.structs.replace(job(), reset_index=4)
    assert kinds(find([early], of=since, until_s=60)) == [K.EARLY]
