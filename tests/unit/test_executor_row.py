"""What an executor's log says of the rows of its ledger."""

from __future__ import annotations

from structlog.testing import capture_logs

from launcher.executor.row import ACCEPTED, ENDED, FENCED, Row, log_ends

NAME = "default/a@2026-11-20T15:00:00Z#1"


def test_the_text_that_a_handler_returned_is_a_detail_and_no_error() -> None:
    row = Row(NAME, ENDED, started_ms=1_000, finished_ms=1_250, detail="42.00 EUR from acme")
    with capture_logs() as lines:
        log_ends([row])
    assert lines == [
        {
            "launch": NAME, "fate": "ended", "reason": "", "exit_code": 0, "ran_ms": 250,
            "detail": "42.00 EUR from acme", "event": "launch.finished", "log_level": "info",
        }
    ]  # fmt: skip


def test_what_is_not_over_and_what_never_was_is_no_news() -> None:
    with capture_logs() as lines:
        log_ends([Row(NAME, ACCEPTED, started_ms=1_000), Row(NAME, FENCED, detail="fenced")])
    assert lines == []
