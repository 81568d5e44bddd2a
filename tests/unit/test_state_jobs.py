"""Changes of jobs, pauses, executors (rules R2, R4)."""

from __future__ import annotations

import pytest

from cron.limits import DEADLINE_S_MAX
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, StateRig, job, said, skips, with_job


def names(rig: StateRig) -> list[str]:
    """The jobs that there are."""
    return [record.name for record in rig.state.jobs.values() if record.job is not None]


# ---- PutJobs


@pytest.mark.parametrize("deadline_s", [-1, 0, DEADLINE_S_MAX + 1])
def test_a_job_with_an_impossible_deadline_is_refused(deadline_s: int) -> None:
    rig = StateRig()
    with rig.unchanged():
        assert rig.put(job(deadline_s=deadline_s)).verdict is Verdict.BAD_TIMES


# ---- a change in parts


# ---- Pause, Resume


def test_a_pause_says_who_why_and_until_when() -> None:
    rig = with_job()
    pause = c.Pause(("default/backup", "default/nobody"), "disk full", 5, "anna")
    assert rig.items(pause) == [Verdict.ACCEPTED, Verdict.UNKNOWN_JOB]
    paused = rig.record().paused
    assert paused is not None
    assert (paused.reason, paused.by, paused.since_ms, paused.until_ms) == (
        "disk full",
        "anna",
        rig.at_ms,
        5,
    )
    resume = c.Resume(("default/backup",), "bert")
    assert rig.item(resume) is Verdict.ACCEPTED
    assert rig.record().paused is None
    with rig.unchanged():
        assert rig.item(resume) is Verdict.ALREADY


def test_what_a_pause_skipped_says_by_whom_and_why_when_it_is_long_resumed() -> None:
    rig = with_job()
    rig.append(c.Pause(("default/backup",), "disk full", (T0 + 3600) * 1000, "anna"))
    paused = c.Instants(T0 + 60, -1, False, Reason.PAUSED, 3, T0 + 180)
    missed = skips(240, 240, 1)
    assert rig.account(300, to=300, skipped=(paused, missed)) is Verdict.ACCEPTED
    assert rig.skip(300, Reason.PAUSED) is Verdict.ACCEPTED
    told = "paused by anna until 2026-11-20T17:00:00Z: disk full"
    assert [said(row) for row in rig.rows] == [told, "", told]
    assert [row.by for row in rig.rows] == ["", "", ""]  # nobody asked for these launches


@pytest.mark.parametrize("until_ms", [-(1 << 62), -1, 0, (1 << 62)])
def test_a_pause_with_an_absurd_end_is_told_like_any_other(until_ms: int) -> None:
    rig = with_job()
    rig.append(c.Pause(("default/backup",), "", until_ms, ""))
    rig.account(60)
    assert rig.skip(60, Reason.PAUSED) is Verdict.ACCEPTED
    assert said(rig.rows[-1]).startswith("paused by somebody until ")
    assert ("resumes it" in said(rig.rows[-1])) is (until_ms == 0)


# ---- executors


def test_a_number_is_never_given_again() -> None:  # R4
    rig = StateRig()
    rig.join()
    rig.answer(c.ExecutorLeft(1))
    assert rig.join() == 2
