"""bench: the order of service alone, driven as the bench drives it."""

from __future__ import annotations

import pytest

from bench.pump import memory
from bench.pump.fairness import Served
from bench.pump.workload import Workload

SMALL = {(0, 0): 6, (1, 0): 2, (0, 1): 2, (1, 1): 1}


def tenants(batch: int, workers: int) -> list[tuple[int, int]]:
    order = memory.drain(memory.filled(SMALL), batch, workers)
    return [served_of[:2] for served_of in (memory.served_of(*row) for row in order)]


@pytest.mark.parametrize(("batch", "workers"), [(1, 1), (1, 3), (4, 3), (100, 100)])
def test_every_task_is_reserved_once_and_tenants_take_turns(batch: int, workers: int) -> None:
    order = tenants(batch, workers)
    assert order[:4] in ([(0, 0), (0, 1)] * 2, [(0, 1), (0, 0)] * 2)
    assert order[4:8] == [(0, 0)] * 4
    assert sorted(order[8:]) == [(1, 0), (1, 0), (1, 1)]


def test_nothing_runs_in_the_end() -> None:
    pump = memory.filled(SMALL)
    assert len(pump) == 11
    assert len(memory.drain(pump, 2, 4)) == 11
    assert (len(pump), pump.running) == (0, 0)


def test_no_more_than_the_workers_run_at_once() -> None:
    pump = memory.filled(SMALL)
    most = 0
    taken, ended = pump.take, pump.ended

    def take(*args: object) -> object:
        nonlocal most
        item = taken(*args)  # type: ignore[arg-type]
        most = max(most, pump.running)
        return item

    pump.take = take  # type: ignore[assignment]
    pump.ended = ended  # type: ignore[method-assign]
    memory.drain(pump, 100, 3)
    assert most == 3


def test_a_run_of_many_tenants_is_fair() -> None:
    backlog = Workload(tasks=8_000, tenants=20).backlog()
    run = memory.measure(backlog, 100)
    assert run.tasks == 8_000
    assert run.fairness.jain_least == pytest.approx(1.0, abs=0.001)
    assert run.fairness.longest_wait.others == 19


def test_a_key_of_somebody_else_is_refused() -> None:
    assert memory.served_of((2, 7, 0), 0.5) == Served(2, 7, 0.5)
    with pytest.raises(TypeError, match="no task"):
        memory.served_of("x", 0.0)
