"""A restored cell whose jobs are accounted for beyond its own clock: the leader before was ahead.
What was due may have run since, and what ran is recorded, all the same (rule R13).
"""

from __future__ import annotations

import pytest

from cron.job import Catchup
from cron.launch_state import LaunchState
from cron.leader.recovery import recover_items
from cron.state import commands as c
from cron.state.outcome import Verdict
from launcher.protocol.status import Reason, Status
from tests.unit.restored_rig import BASE, RestoredRig, retrying
from tests.unit.state_rig import T0, job


def ahead(*, is_retried: bool = False) -> RestoredRig:
    """A cell in whose snapshot two launches are due; the clock of the restored one is at 60 s, the
    horizon at 120 s."""
    one = job(catchup=Catchup.ALL)
    rig = RestoredRig(retrying(one) if is_retried else one)
    rig.to(120)
    rig.account(60, 120)
    return rig.restore(60)


def since(rig: RestoredRig) -> dict[tuple[int, int], tuple[LaunchState, Reason]]:
    """What was recorded since, by seconds after T0 and trigger."""
    return {
        (row.scheduled_s - T0, row.trigger): (row.state, row.reason)
        for row in rig.rows
        if row.ended_index > BASE
    }


def test_what_was_due_is_lost_though_the_job_is_accounted_for_beyond_now() -> None:
    rig = ahead()
    assert rig.resolve() == 60
    assert not rig.state.due
    lost = (LaunchState.LOST, Reason.RESTORED)
    assert since(rig) == {(60, 0): lost, (120, 0): lost}
    assert rig.record().horizon_s == T0 + 120, "horizons go nowhere but forward"


def test_what_was_due_and_ran_is_recorded_as_its_executor_remembers_it() -> None:
    rig = ahead()
    rig.remember(60)
    rig.remember(120, Status.ACCEPTED, executor=2)
    rig.remember(75, trigger=1)
    rig.resolve()
    assert since(rig) == {
        (60, 0): (LaunchState.SUCCEEDED, Reason.NONE),
        (75, 1): (LaunchState.SUCCEEDED, Reason.NONE),
    }
    assert rig.row(120).state is LaunchState.LAUNCHED, "it holds its place while it runs"
    assert not rig.state.due


def test_a_second_leader_records_nothing_twice() -> None:
    rig = ahead()
    rig.remember(60)
    rig.remember(75, trigger=1)
    items = tuple(recover_items(rig.state, rig.gathered(), T0 + 60))
    assert rig.items(c.Recover(items)) == [Verdict.ACCEPTED]
    rows = len(rig.rows)
    for again in (items, tuple(recover_items(rig.state, rig.gathered(), T0 + 60))):
        if again:
            assert set(rig.items(c.Recover(again))) <= {Verdict.ACCEPTED, Verdict.ALREADY}
    rig.resolve()
    assert len(rig.rows) == rows


def test_a_second_leader_that_comes_later_records_nothing_twice() -> None:
    rig = RestoredRig(job(), job("other")).restore(120)
    rig.remember(60)
    rig.remember(75, trigger=1)
    rig.remember(120, Status.ACCEPTED)
    items = list(recover_items(rig.state, rig.gathered(), T0 + 120))
    assert rig.items(c.Recover((items[0],))) == [Verdict.ACCEPTED]
    rig.to(240)  # the leader dies, and it takes a while until there is another
    assert rig.resolve() == 240
    mine = [row for row in rig.rows if row.job == "default/backup" and row.ended_index > BASE]
    assert sorted((row.scheduled_s - T0, row.trigger, row.count) for row in mine) == [
        (60, 0, 1), (75, 1, 1), (180, 0, 2),
    ]  # fmt: skip
    assert rig.row(120).state is LaunchState.LAUNCHED


def test_a_job_that_would_rather_run_twice_waits_for_whom_nobody_knows() -> None:
    rig = ahead(is_retried=True)
    items = tuple(recover_items(rig.state, rig.gathered(), T0 + 60, (T0 + 90) * 1000))
    assert rig.items(c.Recover(items)) == [Verdict.ACCEPTED]
    assert rig.answer(c.Resolve(T0 + 60)).verdict is Verdict.ACCEPTED
    assert [row.not_before_ms for row in rig.state.due.values()] == [(T0 + 90) * 1000] * 2


@pytest.mark.parametrize(
    "item",
    [
        c.RecoverItem(1, 1, T0 + 120, T0 + 120, due=(c.Instants(T0 + 120),)),
        c.RecoverItem(
            1,
            1,
            T0 + 120,
            T0 + 120,
            lost=(c.Instants(T0 + 120, -1, False, Reason.RESTORED, 1, T0 + 120),),
        ),
        c.RecoverItem(1, 1, T0 + 120, T0 + 60),
    ],
)
def test_it_moves_no_horizon_and_speaks_for_no_instant(item: c.RecoverItem) -> None:
    rig = ahead()
    with rig.unchanged():
        assert rig.item(c.Recover((item,))) in (Verdict.BAD_TIMES, Verdict.ALREADY)
