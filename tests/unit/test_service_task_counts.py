"""How many tasks `raftcron status` counts."""

from __future__ import annotations

from cron.api.members import TaskCounts
from cron.scheduler.tasks import TaskIndex
from cron.service.members import task_counts
from cron.state.alerts import QUEUE
from cron.state.outcome import Verdict
from cron.state.tasks import ReadyTasks
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, task


def test_each_task_that_is_not_over_is_counted_once() -> None:
    rig = TasksRig()
    rig.submit(task("a"), task("b"), task("c"), task("d", after_ms=60_000), task("e"))
    rig.ready("a")
    rig.begun("b")
    rig.ended("c")
    due = TaskIndex(rig.state).count_unbegun()
    assert task_counts(rig.state, due) == TaskCounts(waiting=2, due=1, running=1)


def test_messages_of_the_cell_itself_are_not_counted() -> None:
    rig = TasksRig()
    rig.submit(task("a"), *(task(f"{n}-firing-ops", queue=QUEUE) for n in range(3)))
    rig.ready("a")
    first, second, _ = rig.state.queues[QUEUE].tasks.values()
    rig.items(ReadyTasks((first.number, second.number)))
    record = rig.state.record_of(first.name)
    assert record is not None
    assert rig.begin(record.horizon_s - T0, 1, record.number) is Verdict.ACCEPTED
    due = TaskIndex(rig.state).count_unbegun()
    assert task_counts(rig.state, due) == TaskCounts(waiting=0, due=1, running=0)
