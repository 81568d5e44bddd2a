"""The threads of a worker, and what wakes them."""

from __future__ import annotations

from launcher.worker.registry import Registry
from launcher.worker.thread_pool import ThreadPool
from launcher.worker.wire import Run, TaskWork
from launcher.worker.work import Holding, Outgoing, Over, WakeUp
from tests.sent_tasks import tasks_of


def test_threads_that_are_busy_for_hours_are_not_woken_more_often_than_there_are_threads() -> None:
    registry = Registry()
    registry.handler("long")(lambda: None)
    holding, ended = Holding(registry, 2), list[Over]()
    wake_up = WakeUp()
    works = [TaskWork(0, "default/a", "long", b"")]
    holding.take(Run([tasks_of(1, 9, "0.1.r1", [0, 0], [60], [1], [0], [1])], works))
    beginning, _ = holding.begin(Outgoing(holding, wake_up), 0, 0)
    pool = ThreadPool(registry, 2, ended.append, wake_up.ring)
    pool.submit(beginning, holding.quick)
    for _ in range(1_000):
        pool.nudge()
    assert pool.has_waiting
    assert pool._calls.qsize() == 2
