"""What people ask for: Cancel, Trigger, Reopen (rules R1, R8)."""

from __future__ import annotations

from cron.limits import REQUEST_IDS_KEPT
from cron.state import commands as c
from cron.state.outcome import Verdict
from tests.unit.state_rig import T0, with_job

# ---- Cancel


# ---- Trigger


def test_a_request_is_remembered_after_its_launch_is_over() -> None:  # R8
    rig = with_job()
    rig.trigger("q1")
    rig.begin(0, trigger=1)
    rig.finished(0, key=(1, T0, 1))
    assert rig.trigger("q1").verdict is Verdict.ALREADY
    assert not list(rig.state.open_rows())


def test_the_oldest_request_is_forgotten_when_there_are_too_many() -> None:
    rig = with_job()
    rig.append(
        *(c.Trigger("default/backup", f"q{n}", "") for n in range(REQUEST_IDS_KEPT + 1)),
    )
    assert len(rig.state.requests) == REQUEST_IDS_KEPT
    assert rig.trigger("q1").verdict is Verdict.ALREADY
    assert rig.trigger("q0").verdict is Verdict.ACCEPTED


def test_a_clock_that_went_back_gives_no_name_twice() -> None:  # R8, R10
    rig = with_job()
    rig.to(10).trigger("q1")
    result = rig.to(5).trigger("q2")
    assert (result.scheduled_s, result.number) == (T0 + 10, 2)


# ---- Reopen


def test_an_instant_before_the_job_was_made_can_be_launched() -> None:  # R1
    rig = with_job()
    assert rig.reopen(-600, 0) is Verdict.ACCEPTED
    assert rig.begin(-600) is Verdict.ACCEPTED
    assert rig.record().horizon_s == T0


def test_an_instant_before_1970_has_no_launch() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.reopen(-T0 - 1, 0) is Verdict.BAD_TIMES
