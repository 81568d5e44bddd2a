"""What an executor's log says of the rows of its ledger: what failed, and not too much of it."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from launcher.executor.loop import LINES_MAX, FailureLog
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    UNKNOWN,
    changes_of,
)
from launcher.executor.stream import messages_of
from launcher.protocol.reading import parse_reports
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason
from tests.unit.rows_rig import each

NAME = "default/a@2026-11-20T15:00:00Z#1"


def logged(*batches: tuple[int, list[RowReport]]) -> list[Any]:
    """The lines about batches of rows, each at its time in milliseconds."""
    failures = FailureLog()
    with capture_logs() as lines:
        for now_ms, rows in batches:
            for row in rows:
                failures.note([row], now_ms)
            failures.note([], now_ms)
    return lines


def row(status: int, **fields: Any) -> RowReport:
    return RowReport(9, 0, status, name=NAME, **fields)


def test_an_attempt_that_failed_is_a_line_with_all_that_is_known() -> None:
    times = {"started_ms": 1_000, "finished_ms": 1_250}
    one = row(ENDED, exit_code=143, reason=Reason.TIMEOUT, detail="after 250 ms", **times)
    assert logged((1_250, [one])) == [
        {
            "launch": NAME, "status": "ended", "reason": "timeout", "exit_code": 143, "ran_ms": 250,
            "detail": "after 250 ms", "event": "launch.failed", "log_level": "info",
        }
    ]  # fmt: skip


def test_only_what_failed_or_never_ran_is_logged() -> None:
    rows = [
        row(ENDED, started_ms=1_000, finished_ms=1_250, detail="42.00 EUR from acme"),
        row(ACCEPTED, started_ms=1_000),
        row(FENCED, detail="a tombstone"),
        row(REFUSED, detail="no free slot"),
        row(INTERRUPTED, finished_ms=9),
        row(ENDED, finished_ms=9, reason=200),  # of a version that knows more reasons
    ]
    lines = logged((9, rows))
    assert [(line["status"], line["reason"], line["ran_ms"]) for line in lines] == [
        ("refused", "", 0),
        ("interrupted", "", 0),
        ("ended", "200", 0),
    ]


def test_of_many_failures_in_a_second_the_rest_is_a_number() -> None:
    many = [row(REFUSED, detail="no free slot")] * 700
    lines = logged((5_000, many), (5_900, many), (6_000, many[:1]), (7_000, []), (7_500, []))
    said = [line["event"] for line in lines]
    assert said == ["launch.failed"] * LINES_MAX + ["launches.failed", "launch.failed"]
    assert lines[LINES_MAX]["count"] == 1_400 - LINES_MAX


# ---- columns


def ended(number: int, index: int = 9, **fields: Any) -> RowReport:
    return RowReport(index, number, ENDED, started_ms=1_000 + number, finished_ms=2_000, **fields)


def test_what_became_of_many_rows_alike_is_one_change_in_the_order_of_their_rows() -> None:
    [change] = changes_of([ended(7), ended(3, output_bytes=5), ended(4)])
    assert (change.index, change.rows, change.finished_ms) == (9, [3, 1, 3], [2_000])
    assert each(change) == [ended(3, output_bytes=5), ended(4), ended(7)]
    assert change.output_bytes == [5, 0, 0]
    [message] = messages_of([change], 9)
    assert message.ByteSize() < 42


def test_rows_that_differ_in_batch_reason_exit_code_or_text_are_told_apart() -> None:
    some = [ended(1), ended(2, 10), ended(3, exit_code=1), ended(4, reason=6), ended(5, detail="x")]
    changes = changes_of(some)
    said = [(one.index, one.exit_code, one.reason, one.detail) for one in changes]
    assert said == [(9, 0, 0, ""), (10, 0, 0, ""), (9, 1, 0, ""), (9, 0, 6, ""), (9, 0, 0, "x")]


def test_usage_and_a_wish_to_be_tried_again_are_columns_like_any_other() -> None:
    odd = [ended(1, retry_after_ms=5), ended(2, cpu_ms=6, memory_peak_bytes=7), ended(4)]
    [change] = changes_of(odd)
    assert each(change) == odd
    assert (change.cpu_ms, change.memory_peak_bytes) == ([0, 6, 0], [0, 7, 0])


def test_the_journal_has_the_processes_of_what_runs_and_the_leader_is_told_of_none() -> None:
    some = [
        RowReport(9, 1, ACCEPTED, started_ms=1, pid=5, ticks=6),
        RowReport(9, 2, ACCEPTED, started_ms=1),
    ]
    [running] = changes_of(some)
    assert each(running) == some
    [over] = changes_of([ended(1, pid=5, ticks=6)])
    assert (over.pids, over.ticks) == ([], [])
    bare = [RowReport(9, 1, ACCEPTED, started_ms=1), RowReport(9, 2, ACCEPTED, started_ms=1)]
    assert [*messages_of([running], 9)] == [*messages_of(changes_of(bare), 9)]


def test_a_leader_reads_of_every_status_what_its_executor_says_in_columns() -> None:
    for status in range(ACCEPTED, UNKNOWN + 1):
        [message] = messages_of(changes_of([RowReport(9, 3, status)]), 9)
        [batch] = parse_reports(message)
        assert [(one.row, one.status) for one in batch.row_reports()] == [(3, status)]


def test_what_was_never_started_has_no_times() -> None:
    rows = [
        RowReport(9, 1, REFUSED, detail="late"),
        RowReport(9, 2, FENCED),
        RowReport(9, 2, FENCED),
    ]
    changes = changes_of(rows)
    assert [(one.status, one.rows, one.started_ms, one.finished_ms) for one in changes] == [
        (REFUSED, [1], [], []),
        (FENCED, [2], [], []),
    ]
