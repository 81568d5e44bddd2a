"""What an executor's log says of the rows of its ledger: what failed, and not too much of it."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from launcher.executor.row import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    LINES_MAX,
    REFUSED,
    FailureLog,
    Row,
)
from launcher.launch import Reason

NAME = "default/a@2026-11-20T15:00:00Z#1"


def logged(*batches: tuple[int, list[Row]]) -> list[Any]:
    """The lines about batches of rows, each at its time in milliseconds."""
    failures = FailureLog()
    with capture_logs() as lines:
        for now_ms, rows in batches:
            failures.note(rows, now_ms)
    return lines


def test_an_attempt_that_failed_is_a_line_with_all_that_is_known() -> None:
    row = Row(NAME, ENDED, started_ms=1_000, finished_ms=1_250, exit_code=143)
    row.reason, row.detail = Reason.TIMEOUT, "after 250 ms"
    assert logged((1_250, [row])) == [
        {
            "launch": NAME, "fate": "ended", "reason": "timeout", "exit_code": 143, "ran_ms": 250,
            "detail": "after 250 ms", "event": "launch.failed", "log_level": "info",
        }
    ]  # fmt: skip


def test_only_what_failed_or_never_ran_is_logged() -> None:
    rows = [
        Row(NAME, ENDED, started_ms=1_000, finished_ms=1_250, detail="42.00 EUR from acme"),
        Row(NAME, ACCEPTED, started_ms=1_000),
        Row(NAME, FENCED, detail="a tombstone"),
        Row(NAME, REFUSED, detail="no free slot"),
        Row(NAME, INTERRUPTED, finished_ms=9),
        Row(NAME, ENDED, finished_ms=9, reason=200),  # of a version that knows more reasons
    ]
    lines = logged((9, rows))
    assert [(line["fate"], line["reason"], line["ran_ms"]) for line in lines] == [
        ("refused", "", 0),
        ("interrupted", "", 0),
        ("ended", "200", 0),
    ]


def test_of_many_failures_in_a_second_the_rest_is_a_number() -> None:
    many = [Row(NAME, REFUSED, detail="no free slot")] * 700
    lines = logged((5_000, many), (5_900, many), (6_000, many[:1]), (7_000, []), (7_500, []))
    said = [line["event"] for line in lines]
    assert said == ["launch.failed"] * LINES_MAX + ["launches.failed", "launch.failed"]
    assert lines[LINES_MAX]["count"] == 1_400 - LINES_MAX
