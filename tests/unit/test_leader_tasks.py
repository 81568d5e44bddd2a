"""What a leader orders for tasks, and what it forgets with their jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.leader.dispatch import Dispatcher
from cron.scheduler.indexes import LeaderIndexes
from cron.state import commands as c
from cron.state import tasks as t
from cron.state.outcome import Outcome, Verdict
from launcher.protocol.orders import JobWork, KillOrder, StartBatch
from launcher.protocol.work import WorkSpec
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import TasksRig, name, task


class Orders:
    """A pool that notes what is ordered."""

    def __init__(self) -> None:
        self.starts: list[StartBatch[JobWork]] = []
        self.kills: list[KillOrder] = []

    def order(self, executor: str, ledger: str, **orders: Any) -> bool:
        assert (executor, ledger) == ("e1", "l1")
        self.starts += orders.get("starts", ())
        self.kills += orders.get("kills", ())
        return True


class LeaderRig(TasksRig):
    """A rig whose entries a dispatcher and a leader's indexes follow."""

    def __init__(self) -> None:
        self.orders = Orders()
        pool: Any = self.orders
        self.dispatcher = Dispatcher(pool)
        self.indexes: LeaderIndexes | None = None
        super().__init__()
        self.indexes = LeaderIndexes(self.state)

    def append(self, *commands: c.Command, **fields: Any) -> Outcome:
        outcome: Outcome = super().append(*commands, **fields)
        self.dispatcher.follow(self.state, outcome)
        if self.indexes is not None:
            self.indexes.follow(outcome)
        return outcome


@pytest.fixture
def rig() -> LeaderRig:
    return LeaderRig()


def test_a_task_is_started_with_its_payload_under_its_name(rig: LeaderRig) -> None:
    rig.submit(task("a"), task("b", payload=b"2"))
    rig.begun("a")
    rig.begun("b")
    works = [start.works[0] for start in rig.orders.starts]
    assert [work.job for work in works] == [name("a"), name("b")]
    specs = [msgspec.msgpack.decode(work.spec, type=WorkSpec) for work in works]
    assert [spec.payload for spec in specs] == [b'{"to":"anna"}', b"2"]
    assert {spec.handler for spec in specs} == {"mail.send"}


def test_a_cancelled_task_is_killed_where_it_runs_and_nowhere_else(rig: LeaderRig) -> None:
    # Rule R8.
    rig.submit(task("runs"), task("due"), task("waits", 5_000), task("over"))
    rig.ended("over")
    begun = rig.begun("runs")
    index = rig.state.index
    rig.ready("due")
    assert rig.cancel_tasks("runs", "due", "waits", "over", "none") == [
        *[Verdict.ACCEPTED] * 3,
        Verdict.ENDED,
        Verdict.UNKNOWN_TASK,
    ]
    assert [(kill.index, kill.row) for kill in rig.orders.kills] == [(index, 0)]
    assert rig.row(0, begun.number).cancel_by == "anna"


def test_a_leader_remembers_nothing_of_jobs_that_are_gone(rig: LeaderRig) -> None:
    assert rig.indexes is not None
    queues = rig.indexes.queues
    rig.submit(*(task(f"k{n}") for n in range(20)))
    numbers = [rig.ended(f"k{n}").number for n in range(20)]
    rig.append(c.Forget((), 0))
    assert not rig.state.by_number
    assert not rig.dispatcher._works
    assert not rig.dispatcher._current
    kept = {*queues._placed, *queues._flows, *rig.indexes.tasks.unbegun}
    assert kept.isdisjoint(numbers)


def test_a_leader_makes_ready_what_its_executors_serve(rig: LeaderRig) -> None:
    assert rig.indexes is not None
    rig.submit(task("a"), task("b", 1_000))
    assert rig.indexes.plan_tasks(rig.at_ms, 100) == []  # nobody serves the handler
    rig.indexes.tasks.plan(rig.at_ms, lambda _pool: 1, 100)
    assert rig.indexes.tasks.next_ms() == (T0 + 1) * 1000


def test_changed_queues_count_at_once_for_what_waits(rig: LeaderRig) -> None:
    assert rig.indexes is not None
    rig.submit(task("a", options=t.TaskOptions("mail.send")))
    rig.put_queues(t.QueueSpec("default/mail", "mail.other"))
    asked: list[str] = []

    def slots(pool: str) -> int:
        asked.append(pool)
        return 0

    rig.indexes.tasks.plan(rig.at_ms, slots, 100)
    assert asked == ["mail.other"]
