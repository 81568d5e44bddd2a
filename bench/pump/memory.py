"""The order of service alone: reservations in the memory of one process, on one core.

Nothing of it is durable or leaves the process. It shows what of our figures the decisions take, and
is not to be compared with the rates of queues that sync.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable

from bench.pump.fairness import Served, summarize
from bench.pump.run import Run
from bench.pump.workload import WORKERS, Backlog
from launcher.fairness.item import Item
from launcher.fairness.pump import Pump

POOL = "command"


def filled(backlog: Backlog) -> Pump:
    """Return a pump in which all tasks wait, in the order of the backlog."""
    pump = Pump()
    for (priority, tenant), count in backlog.items():
        for number in range(count):
            key = (priority, tenant, number)
            pump.add(Item(key, key, str(tenant), POOL, priority, "", 0))
    return pump


def drain(pump: Pump, batch: int, workers: int = WORKERS) -> list[tuple[Hashable, float]]:
    """Reserve and complete all tasks, `batch` at once, so that at most `workers` run.

    Returns their keys in the order of reservation, each with the seconds since the beginning.
    """
    running: deque[Hashable] = deque()
    order: list[tuple[Hashable, float]] = []
    began = time.perf_counter()
    while True:
        now_s = time.perf_counter() - began
        pump.begin_round()
        for _ in range(min(batch, workers - len(running))):
            item = pump.take(int(now_s * 1_000), _has_room)
            if item is None:
                break
            running.append(item.key)
            order.append((item.key, now_s))
        if not running:
            return order
        if len(running) >= workers or not len(pump):
            for _ in range(min(batch, len(running))):
                pump.ended(running.popleft())


def _has_room(place: Hashable) -> bool:
    return True  # slots are counted by whoever takes


def measure(backlog: Backlog, batch: int) -> Run:
    """Return one run."""
    pump = filled(backlog)
    began, cpu = time.perf_counter(), time.process_time()
    order = drain(pump, batch)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    served = [served_of(key, at_s) for key, at_s in order]
    return Run(
        name="raftcron, reservations in memory (not durable)",
        batch=batch,
        clients=1,
        tasks=len(served),
        seconds=seconds,
        server_us=cpu * 1e6 / len(served),
        client_us=None,
        fairness=summarize(served, backlog, seconds),
    )


def served_of(key: Hashable, at_s: float) -> Served:
    """Return a reservation as the measures want it. Raises TypeError if the key is not ours."""
    if not isinstance(key, tuple):
        raise TypeError(f"{key!r} is no task of this bench")
    priority, tenant, _ = key
    return Served(priority, tenant, at_s)
