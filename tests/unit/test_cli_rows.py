"""The JSON that programs rely on: keys may be added at the end, never renamed or moved."""

from __future__ import annotations

import pytest

from cron.api.jobs import JobView
from cron.api.members import StatusRow
from cron.cli import cell, jobs, rows
from tests.unit.api_rig import NOON_S, launch

LAUNCH_KEYS = """
launch job tenant scheduled_at attempt state reason begun_at launched_at started_at finished_at
exit_code executor term lateness_ms full_name output_bytes
kind is_amended amends ended_index number cpu_ms memory_peak_bytes
"""
DETAIL_KEYS = """
epoch replica begun_index launched_index ended_at local_time revision by detail in_doubt
waiting deadline_at is_open parts
"""
JOB_KEYS = """
job tenant schedule resolved zone next overlap catchup on_lost deadline_s timeout_ms paused
pause_reason paused_by held paused_until source revision command user running last full_name
handler payload priority collection concurrency where cpu_milli memory_bytes heartbeat_ms retries
backoff_ms backoff_max_ms retry_on fatal_on dead parts each after after_any secrets gate changed_by
changed_at start end calendar pause_after failed_in_a_row jitter_s cwd
"""
STATUS_KEYS = """
kind id address pid role term applied digest version leader clock_offset_ms tzdata since slots
running ledger note incarnation member_state matched joining keeping overload tasks
"""


def test_the_keys_of_a_launch():
    assert list(rows.launch_row(launch())) == LAUNCH_KEYS.split()


def test_the_keys_of_a_launch_in_detail_begin_with_those_of_a_launch():
    keys = LAUNCH_KEYS.split() + DETAIL_KEYS.split()
    assert list(rows.launch_details(launch())) == keys


def test_the_keys_of_a_job():
    assert list(jobs.job_row(JobView(name="acme/a", schedule="@daily"))) == JOB_KEYS.split()


@pytest.mark.parametrize("kind", ["replica", "executor"])
def test_the_keys_of_a_status_row(kind):
    assert list(cell.status_row(StatusRow(kind=kind, id="x"))) == STATUS_KEYS.split()


def test_a_job_that_never_ran_has_no_last_launch():
    view = JobView(name="acme/a", schedule="@daily")
    assert jobs.job_row(view)["last"] is None
    assert jobs.JOBS.cells(view)[3:6] == ["-", "-", "-"]


def test_a_job_shows_the_default_tenant_to_programs_only():
    view = JobView(name="default/a", schedule="@daily", next_s=[NOON_S])
    assert jobs.job_row(view)["tenant"] == "default"
    assert jobs.JOBS.cells(view)[0] == "a"
    assert jobs.JOBS.cells(view)[3] == "2026-11-20 15:00:00"


def test_what_is_zero_is_not_what_is_unknown():
    row = rows.launch_row(launch(exit_code=0, lateness_ms=0))
    assert (row["exit_code"], row["lateness_ms"]) == (0, 0)
    row = rows.launch_row(launch(exit_code=None, lateness_ms=None))
    assert (row["exit_code"], row["lateness_ms"]) == (None, None)


def test_a_launch_that_still_runs_has_not_run_for_any_time_yet():
    assert rows.ran_ms(launch(finished_at_ms=0)) is None
    assert rows.ran_ms(launch()) == 1_500
    assert rows.LAUNCHES.cells(launch(finished_at_ms=0, exit_code=None))[6:8] == ["-", "-"]


def test_late_report_are_told_from_the_end_they_amend():
    assert "late report" in rows.LAUNCHES.cells(launch(kind="amendment", state="succeeded"))[2]


def test_a_launch_that_waits_says_for_what():
    cells = rows.LAUNCHES.cells(launch(state="due", waiting="no executor has a free slot"))
    assert (cells[3], cells[-1]) == ("waits", "no executor has a free slot")


def test_a_launch_says_what_was_in_its_way_or_what_is_known_of_its_end():
    skipped = launch(state="skipped", reason="predecessor", detail="first failed", begun_at_ms=0)
    assert rows.LAUNCHES.cells(skipped)[-1] == "first failed"
    assert rows.LAUNCHES.cells(launch(detail="sent"))[-1] == "sent"
    waits = launch(state="due", waiting="no executor has a free slot", detail="exit 3")
    assert rows.LAUNCHES.cells(waits)[-1] == "no executor has a free slot"


def test_a_launch_is_called_in_tables_as_its_job_is_and_names_a_second_attempt():
    assert rows.LAUNCHES.cells(launch())[0] == "backup@2026-11-20T15:00:00Z"
    assert rows.LAUNCHES.cells(launch(attempt=2))[0] == "backup@2026-11-20T15:00:00Z#2"
    other = launch(launch="acme/a@2026-11-20T15:00:00Z", job="a", tenant="acme")
    assert rows.LAUNCHES.cells(other)[0] == "acme/a@2026-11-20T15:00:00Z"
    assert rows.launch_row(other)["full_name"] == "acme/a"


def test_of_a_replica_that_does_not_answer_nobody_knows_where_it_stands():
    row = cell.status_row(StatusRow(kind="replica", id="r1", role="unreachable"))
    assert (row["term"], row["applied"]) == (None, None)
    row = cell.status_row(StatusRow(kind="replica", id="r1", role="follower"))
    assert (row["term"], row["applied"]) == (0, 0)


def test_a_clock_that_is_a_little_off_is_no_note():
    cells = cell.status_at(None).cells(StatusRow(kind="replica", id="r1", clock_offset_ms=999))
    assert cells[-1] == ""
    off = StatusRow(kind="replica", id="r1", clock_offset_ms=1_000, note="x")
    cells = cell.status_at(None).cells(off)
    assert cells[-1] == "clock 1s off, x"


def test_of_a_stretch_of_instants_the_last_is_when_a_job_was_due_last():
    stretch = launch(state="lost", last_s=NOON_S + 300, count=6, kind="range")
    assert (
        jobs.JOBS.cells(JobView(name="a", schedule="@daily", last=stretch))[4]
        == "2026-11-20 15:05:00"
    )
    assert (
        jobs.JOBS.cells(JobView(name="a", schedule="@daily", last=launch()))[4]
        == "2026-11-20 15:00:00"
    )


@pytest.mark.parametrize(
    ("matched", "applied", "note"),
    [
        (0, 183, ""),  # a new leader has not heard of it yet
        (0, 20, "190 entries behind"),
        (20, 0, "190 entries behind"),  # it does not answer us
        (0, 0, ""),
        (110, 20, "100 entries behind"),
        (None, 20, ""),
    ],
)
def test_a_replica_is_behind_by_what_it_lacks_and_not_by_what_is_not_known(matched, applied, note):
    view = StatusRow(kind="replica", id="r2", role="follower", matched=matched, applied=applied)
    assert cell.status_at(210).cells(view)[-1] == note
