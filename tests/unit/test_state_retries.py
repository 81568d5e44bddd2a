"""`on-lost=retry`: a launch of which nobody knows the end is begun again (rules R5, R6)."""

from __future__ import annotations

import msgspec
import pytest

from cron.crontab.reader import read_crontab
from cron.job import OnLost, Overlap
from cron.scheduler.plan import Expired, View, plan
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.launch import LaunchState, Reason
from tests.batches import items_of
from tests.unit.queues_rig import queues_with
from tests.unit.state_rig import T0, StateRig, job


def begun(*, on_lost: OnLost = OnLost.RETRY, overlap: Overlap = Overlap.ALLOW) -> StateRig:
    """A launch that runs on executor 1; executor 2 is free."""
    rig = StateRig()
    rig.put(msgspec.structs.replace(job(overlap=overlap), on_lost=on_lost))
    rig.join("e1", "l1")
    rig.join("e2", "l2")
    rig.to(60).account(60)
    rig.begin(60)
    rig.launched(60)
    return rig


def test_a_lost_launch_is_due_again_as_its_next_attempt() -> None:
    rig = begun()
    rig.to(90)
    assert rig.lost(60, held_until=90) is Verdict.ACCEPTED
    row = rig.row(60)
    assert (row.state, row.attempt) == (LaunchState.DUE, 1)
    assert rig.rows[-1].state is LaunchState.LOST
    assert rig.begin(60, attempt=2, executor=2) is Verdict.ACCEPTED
    rig.launched(60, attempt=2)
    assert rig.finished(60, attempt=2) is Verdict.ACCEPTED
    assert [(row.attempt, row.state.label) for row in rig.rows] == [(1, "lost"), (2, "succeeded")]


def test_it_is_not_begun_while_the_attempt_before_may_be_running() -> None:
    rig = begun()
    rig.to(90)
    rig.lost(60, held_until=100)
    assert rig.begin(60, attempt=2, executor=2) is Verdict.OVERLAP
    rig.to(100)
    assert rig.begin(60, attempt=2, executor=2) is Verdict.ACCEPTED


@pytest.mark.parametrize("now", [99, 100])
def test_the_plan_waits_as_well(now: int) -> None:
    rig = begun()
    rig.to(90)
    rig.lost(60, held_until=100)
    commands = plan(View(rig.state, [], queues_with(rig.state, {2: 4})), (T0 + now) * 1000)
    begins = [item for one in commands if isinstance(one, c.Begin) for item in items_of(one)]
    assert [(item.attempt, item.executor) for item in begins] == ([(2, 2)] if now == 100 else [])


def test_an_executor_that_went_silent_makes_its_launches_due_elsewhere() -> None:
    rig = begun()
    rig.to(90)
    gone = Expired(1, (T0 + 90) * 1000)
    rig.append(
        *plan(View(rig.state, [], queues_with(rig.state, {2: 4}), expired=[gone]), rig.at_ms)
    )
    assert rig.row(60).attempt == 1
    rig.append(*plan(View(rig.state, [], queues_with(rig.state, {2: 4})), rig.at_ms))
    assert (rig.row(60).attempt, rig.row(60).executor) == (2, 2)


def test_past_its_deadline_it_stays_lost() -> None:
    rig = begun()
    rig.to(60 + 300)
    rig.lost(60)
    assert not rig.state.due


def test_what_somebody_cancelled_is_not_tried_again() -> None:
    rig = begun()
    rig.cancel(60)
    rig.lost(60)
    assert not rig.state.due


def test_a_job_that_skips_what_is_lost_stays_as_it_was() -> None:
    rig = begun(on_lost=OnLost.SKIP)
    rig.lost(60)
    assert not rig.state.due
    assert rig.rows[-1].reason is Reason.EXECUTOR_LOST


def test_late_news_of_the_lost_attempt_reopen_nothing_and_end_nothing() -> None:
    rig = begun()
    rig.lost(60)
    assert rig.finished(60, attempt=1) is Verdict.AMENDED
    assert rig.row(60).attempt == 1


def test_such_work_is_killed_on_its_host_when_the_lease_is_over() -> None:
    crontab = b"#: name=a on-lost=retry\n@hourly run\n@daily run\n"
    assert [(one.on_lost, one.work.guarded) for one in read_crontab(crontab, file="t").jobs] == [
        (OnLost.RETRY, True),
        (OnLost.SKIP, False),
    ]
