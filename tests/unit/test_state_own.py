"""Launches and dead letters of the cell itself, told apart from those of users."""

from __future__ import annotations

import msgspec

from cron.launch_state import ACTIVE, LaunchState
from cron.state import alerts as a
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.own import Counts, own_counts, users_counts
from cron.state.pool import DropDead
from cron.state.state import State
from cron.state.tasks import ReadyTasks
from launcher.protocol.status import Reason
from tests.unit.state_rig import T0, job
from tests.unit.tasks_rig import TasksRig, task

BEAT = "raftcron/heartbeat-ops"


def counted(state: State, *, own: bool) -> Counts:
    """What `own_counts` or `users_counts` must say, counted one by one."""
    names = {number: one.name for number, one in state.by_number.items()}
    rows = [row for row in state.open_rows() if a.is_own(names[row.number]) is own]
    return Counts(
        sum(row.state is LaunchState.DUE for row in rows),
        sum(row.state in ACTIVE for row in rows),
        sum(a.is_own(names[key[0]]) is own for key in state.dead),
    )


def check(state: State) -> None:
    for one in (state, decode_state([encode_state(state)])):
        assert own_counts(one) == counted(one, own=True)
        assert users_counts(one) == counted(one, own=False)


def test_what_the_cell_has_open_and_dead_is_counted_apart_whatever_becomes_of_it() -> None:
    rig = TasksRig()
    rig.put(job(), msgspec.structs.replace(job(), name=BEAT))
    beat = rig.state.jobs[BEAT].number
    for number in (1, beat):
        rig.account(60, 120, 180, number=number)
    check(rig.state)
    assert own_counts(rig.state) == Counts(due=3)
    rig.to(180)
    assert rig.begin(60, number=beat) is Verdict.ACCEPTED
    rig.begin(60, number=1)
    rig.cancel(120, number=beat)
    check(rig.state)
    rig.submit(task("a"), task("b"), task("1-firing-ops", queue=a.QUEUE))
    rig.submit(task("2-firing-ops", queue=a.QUEUE))
    rig.items(ReadyTasks(tuple(rig.state.tasks_by_number)))
    check(rig.state)
    assert own_counts(rig.state) == Counts(due=3, active=1)
    record = rig.state.record_of(f"{a.QUEUE}:1-firing-ops")
    assert record is not None
    second = record.horizon_s - T0
    rig.begin(second, number=record.number)
    check(rig.state)
    failed = {"state": LaunchState.FAILED, "reason": Reason.FATAL}
    rig.finished(second, number=record.number, **failed)
    check(rig.state)
    assert own_counts(rig.state) == Counts(due=2, active=1, dead=1)
    rig.append(DropDead(((record.number, record.horizon_s, 0),), "anna"))
    rig.append()
    check(rig.state)
    assert record.number not in rig.state.own
