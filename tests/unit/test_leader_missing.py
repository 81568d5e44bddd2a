"""What a launch lacked that nobody could start before its deadline."""

from __future__ import annotations

import pytest

from cron.scheduler import plan as planning
from cron.scheduler.plan import plan
from cron.state import commands as c
from tests.unit.state_rig import StateRig, job
from tests.unit.test_scheduler_plan import follow, view_of

NOBODY = "no executor that may get work is connected"


def skipped(rig: StateRig) -> list[str]:
    """The details of what the plan skips."""
    (skip,) = plan(view_of(rig, slots={}), rig.at_ms)
    assert isinstance(skip, c.Skip)
    return [item.detail for item in skip.items]


def waiting(jobs: int) -> StateRig:
    """So many jobs, of each of which a launch waits whose deadline is over."""
    rig = StateRig()
    rig.put(*(job(f"j{number}", deadline_s=60) for number in range(jobs)))
    rig.to(60)
    follow(rig, *range(1, jobs + 1), slots={})
    return rig.to(120)


def test_what_is_skipped_at_its_deadline_says_what_it_lacked() -> None:
    """While it waited everybody could see it; afterwards nobody knew it any more."""
    assert skipped(waiting(1)) == [NOBODY]


def test_of_very_many_an_entry_says_it_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MISSING_MAX", 3)
    assert skipped(waiting(5)) == [NOBODY] * 3 + [""] * 2


def test_of_very_many_jobs_one_plan_looks_at_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LACKS_MAX", 2)
    assert skipped(waiting(5)) == [NOBODY] * 2 + [""] * 3
