"""How many tasks `raftcron status` counts."""

from __future__ import annotations

from cron.api.members import TaskCounts
from cron.scheduler.tasks import TaskIndex
from cron.service.members import task_counts
from tests.unit.tasks_rig import TasksRig, task


def test_each_task_that_is_not_over_is_counted_once() -> None:
    rig = TasksRig()
    rig.submit(task("a"), task("b"), task("c"), task("d", after_ms=60_000), task("e"))
    rig.ready("a")
    rig.begun("b")
    rig.ended("c")
    unbegun = TaskIndex(rig.state).unbegun
    assert task_counts(rig.state, len(unbegun)) == TaskCounts(waiting=2, due=1, running=1)
