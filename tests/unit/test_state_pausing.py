"""`pause-after`: a job is paused once so many of its launches in a row have failed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.reader import read_crontab
from cron.crontab.written import job_text
from cron.job import OnLost, Retry
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.state import Paused
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason, Status
from tests.unit.restored_rig import RestoredRig
from tests.unit.state_rig import StateRig, job, with_job

FAILED, LOST = LaunchState.FAILED, LaunchState.LOST
BACKUP = "default/backup"


def pausing(count: int = 3, **fields: Any) -> StateRig:
    return with_job(pause_after=count, **fields)


def ran(rig: StateRig, second: int, number: int = 1, **how: Any) -> None:
    """A launch begins and ends; it fails unless `how` says something else."""
    rig.to(second).account(second, number=number)
    assert rig.begin(second, number=number) is Verdict.ACCEPTED
    usual = {"state": FAILED, "exit_code": 1}
    assert rig.finished(second, number=number, **usual | how) is Verdict.ACCEPTED


def succeeded(rig: StateRig, second: int) -> None:
    ran(rig, second, state=LaunchState.SUCCEEDED, exit_code=0)


def test_a_job_is_paused_by_the_entry_that_brings_the_last_failure() -> None:
    rig = pausing()
    for second in (60, 120):
        ran(rig, second)
        assert rig.record().paused is None
        assert not rig.outcome.paused
    ran(rig, 180)
    paused = Paused("failed 3 times in a row", "raftcron", rig.at_ms, 0)
    assert rig.record().paused == paused
    assert (rig.outcome.paused, rig.record().failed_in_a_row) == ((BACKUP,), 3)
    change = rig.state.revisions[-1]
    assert (change.by, change.command, change.subject, change.count) == (
        "raftcron", "pause", BACKUP, 1,
    )  # fmt: skip
    assert [(one.name, one.before, one.after) for one in change.changed] == [(BACKUP, "", "paused")]


def test_failures_before_a_failover_and_a_snapshot_count() -> None:
    rig = pausing()
    ran(rig, 60)
    ran(rig, 120)
    rig.machine = Machine(decode_state([encode_state(rig.state)]))
    ran(rig, 180)
    assert rig.record().paused is not None


def test_a_success_begins_the_count_anew_and_other_ends_do_not_count() -> None:
    rig = pausing(2)
    ran(rig, 60)
    succeeded(rig, 120)
    ran(rig, 180)
    assert rig.record().paused is None
    rig.to(240).account(240)
    rig.skip(240)
    ran(rig, 300, state=LaunchState.CANCELLED, reason=Reason.KILLED, exit_code=137)
    assert (rig.record().paused, rig.record().failed_in_a_row) == (None, 1)
    ran(rig, 360)
    assert rig.record().paused is not None


def test_an_attempt_that_is_tried_again_does_not_count() -> None:
    rig = pausing(1, retry=Retry(tries=2, backoff_ms=1_000))
    ran(rig, 60)
    assert rig.record().paused is None
    rig.to(70)
    assert rig.begin(60, attempt=2) is Verdict.ACCEPTED
    rig.finished(60, attempt=2, state=FAILED, exit_code=1)
    assert rig.record().paused == Paused("failed", "raftcron", rig.at_ms, 0)


def test_a_lost_launch_counts_once_whatever_is_reported_later() -> None:
    rig = pausing(2)
    rig.to(60).account(60)
    rig.begin(60)
    assert rig.lost(60) is Verdict.ACCEPTED
    assert rig.finished(60, state=FAILED, exit_code=1) is Verdict.AMENDED
    assert (rig.record().failed_in_a_row, rig.record().paused) == (1, None)
    ran(rig, 120)
    assert rig.record().paused is not None


def test_a_lost_launch_that_begins_again_does_not_count() -> None:
    rig = pausing(1, on_lost=OnLost.RETRY)
    rig.to(60).account(60)
    rig.begin(60)
    rig.lost(60, held_until=61)
    assert (rig.record().failed_in_a_row, rig.record().paused) == (0, None)


def test_to_resume_a_job_clears_the_count() -> None:
    rig = pausing(2)
    ran(rig, 60)
    ran(rig, 120)
    assert rig.item(c.Resume((BACKUP,), "anna")) is Verdict.ACCEPTED
    assert (rig.record().paused, rig.record().failed_in_a_row) == (None, 0)
    ran(rig, 180)
    assert rig.record().paused is None
    ran(rig, 240)
    assert rig.record().paused is not None


def test_an_edit_of_the_job_clears_the_count_and_keeps_the_pause() -> None:
    rig = pausing(2)
    ran(rig, 60)
    rig.put(job(pause_after=2, deadline_s=200))
    ran(rig, 120)
    assert rig.record().paused is None
    ran(rig, 180)
    rig.put(job(pause_after=2))
    assert rig.record().paused is not None


def test_a_longer_pause_of_a_person_stays() -> None:
    rig = pausing(1)
    rig.to(60).account(60)
    rig.begin(60)
    rig.item(c.Pause((BACKUP,), "upgrade", 0, "anna"))
    rig.finished(60, state=FAILED, exit_code=1)
    assert rig.record().paused.by == "anna"  # type: ignore[union-attr]
    assert not rig.outcome.paused


def test_a_pause_that_ends_by_itself_becomes_one_that_does_not() -> None:
    rig = pausing(1)
    rig.to(60).account(60)
    rig.begin(60)
    rig.item(c.Pause((BACKUP,), "upgrade", rig.at_ms + 10_000, "anna"))
    rig.finished(60, state=FAILED, exit_code=1)
    assert rig.record().paused == Paused("failed", "raftcron", rig.at_ms, 0)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_rows_that_end_together_count_one_by_one(exit_code: int) -> None:
    """Usual rows of a batch become a chunk of history; job 2 has no such option."""
    rig = pausing(2)
    rig.put(job(pause_after=2), job("other"))
    ran(rig, 60)
    rig.to(120)
    rig.account(120)
    rig.account(120, number=2)
    begun = []
    for number in (1, 2):
        rig.begin(120, number=number)
        begun.append(rig.state.index)
    rows = [
        (1, BatchReport(index, Status.ENDED, Reason.NONE, exit_code, [0], [1], [2]))
        for index in begun
    ]
    rig.append(c.Report(rows=tuple(rows)))
    assert (rig.record().paused is not None) == bool(exit_code)
    assert rig.record().failed_in_a_row == (2 if exit_code else 0)
    assert rig.record("other").failed_in_a_row == 0


def test_pauses_of_one_minute_share_a_row_of_changes() -> None:
    rig = StateRig()
    rig.put(*(job(f"j{number}", pause_after=1) for number in range(30)))
    rig.join()
    for number in range(1, 31):
        ran(rig, 60, number=number)
    changes = [one for one in rig.state.revisions if one.by == "raftcron"]
    assert [(one.subject, one.count, len(one.changed)) for one in changes] == [
        ("default/j0", 30, 20)
    ]
    rig.put(job("late", pause_after=1))
    ran(rig, 240, number=31)
    assert [one.count for one in rig.state.revisions if one.by == "raftcron"] == [30, 1]


def test_what_a_restored_cell_learns_of_the_life_before_does_not_count() -> None:
    rig = RestoredRig(job(pause_after=1))
    rig.restore(600)
    rig.remember(60, exit_code=1)
    rig.resolve()
    assert any(row.state is FAILED for row in rig.rows)
    assert (rig.record().paused, rig.record().failed_in_a_row) == (None, 0)


def test_a_job_without_the_option_is_not_counted() -> None:
    rig = with_job()
    for second in (60, 120, 180):
        ran(rig, second)
    assert (rig.record().failed_in_a_row, rig.record().paused) == (0, None)


# ---- crontabs


def test_a_crontab_and_a_job_file_say_after_how_many() -> None:
    reading = read_crontab(b"#: name=a pause-after=3\n@daily x\n", file="crontab")
    [one] = reading.jobs
    assert one.pause_after == 3
    [again] = read_jobs_toml(job_text(one).encode(), file="jobs.toml").jobs
    assert msgspec.structs.replace(again, line=one.line) == one
    for wrong in ("0", "1001", "x"):
        text = f"#: pause-after={wrong}\n@daily x\n".encode()
        assert len(read_crontab(text, file="crontab").errors) == 1
