"""calendar: what is sent and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

from cron.api.calendars import ApplyCalendarReport, CalendarsReport, CalendarView
from tests.unit.api_rig import FakeBackend
from tests.unit.test_cli_alerts import NOW_MS
from tests.unit.test_cli_tasks import asked, cli, rows

VIEW = CalendarView(
    calendar="hol", day_count=2, first="2026-12-25", last="2026-12-26", job_count=1, by="ada",
    at_ms=NOW_MS, days=["2026-12-25", "2026-12-26"], jobs=["default/mail"],
)  # fmt: skip


async def test_apply_sends_the_file_and_prints_days_and_jobs(tmp_path: Path) -> None:
    file = tmp_path / "hol.ics"
    file.write_bytes(b"2026-12-25\n")
    report = ApplyCalendarReport(
        calendar="hol", action="changed", day_count=2, added=["2026-12-25"],
        removed=["2025-12-25"], jobs=["default/mail"],
    )  # fmt: skip
    backend = FakeBackend(apply_calendar=report)
    result = await cli(backend, "calendar", "apply", "hol", str(file))
    assert result.stdout.splitlines() == [
        "calendar hol, 2 days: changed", "+ 2026-12-25", "- 2025-12-25",
        "changes when mail run",
    ]  # fmt: skip
    request = asked(backend, "apply_calendar")
    assert (request.calendar, request.content, request.is_dry_run) == (
        "hol", b"2026-12-25\n", False,
    )  # fmt: skip
    plan = await cli(backend, "calendar", "apply", "hol", str(file), "--dry-run", "-o", "json")
    assert rows(plan)[0]["added"] == ["2026-12-25"]
    assert backend.calls[-1][1][0].is_dry_run
    missing = await cli(backend, "calendar", "apply", "hol", str(tmp_path / "no"))
    assert missing.exit_code == 2


async def test_list_show_and_remove() -> None:
    backend = FakeBackend(calendars=CalendarsReport(calendars=[VIEW]), remove_calendar=VIEW)
    result = await cli(backend, "calendar", "list")
    assert result.stdout.splitlines()[1].split()[:5] == [
        "hol", "2", "2026-12-25", "2026-12-26", "1",
    ]  # fmt: skip
    result = await cli(backend, "calendar", "show", "hol")
    assert result.stdout.splitlines() == [
        "calendar hol is used by mail", "2026-12-25", "2026-12-26",
    ]  # fmt: skip
    row = json.loads((await cli(backend, "calendar", "show", "hol", "-o", "json")).stdout)
    assert (row["days"], row["jobs"]) == (["2026-12-25", "2026-12-26"], ["default/mail"])
    result = await cli(backend, "calendar", "remove", "hol")
    assert result.stdout == "removed calendar hol\n"
    bad = await cli(backend, "calendar", "remove", "a/b")
    assert bad.exit_code == 2
    assert "is not a plain word" in bad.stderr
