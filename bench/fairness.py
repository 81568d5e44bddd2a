"""What deciding costs: CPU microseconds per launch, 200 tenants and 200,000 launches.

    python -m bench.fairness [--launches 200000] [--tenants 200] [--slots 395]

Tenant 0 owns half of all. Prints a line of JSON per case: `add`, `take`, `end` and their sum.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import deque
from collections.abc import Hashable
from random import Random
from typing import Final

from launcher.fairness.item import EACH_TENANT, Item, Limits
from launcher.fairness.pump import Pump

BATCH: Final = 100


def items(launches: int, tenants: int, pools: int, priorities: int) -> list[Item]:
    """Return launches of `tenants`, the first of which owns half."""
    chance = Random(1)
    made = []
    for number in range(launches):
        owner = 0 if chance.random() < 0.5 else chance.randrange(tenants)
        pool = f"pool-{number % pools}"
        job = f"t{owner}/job-{number % 1000}"
        priority = number % priorities
        made.append(
            Item(f"{job}@{number}", job, f"t{owner}", pool, priority, (pool, "", 0, 0), number)
        )
    return made


def has_room(place: Hashable) -> bool:
    """Say that there is room: the slots are counted outside."""
    return True


def measured(pump: Pump, made: list[Item], slots: int) -> dict[str, float]:
    """Return CPU microseconds per launch of each step; all wait before the first begins."""
    clock, count = time.process_time, len(made)
    began = clock()
    for item in made:
        pump.add(item)
    spent = {"add": clock() - began, "take": 0.0, "end": 0.0}
    under_way: deque[Hashable] = deque()
    left, now_ms = count, count
    while left:
        began = clock()
        pump.begin_round()
        taken: list[Hashable] = []
        while len(taken) < BATCH and len(under_way) + len(taken) < slots:
            launch = pump.take(now_ms, has_room)
            if launch is None:
                break
            taken.append(launch.key)
        between = clock()
        under_way += taken
        ends = [under_way.popleft() for _ in range(min(BATCH, len(under_way)))]
        ended = clock()
        for key in ends:
            pump.ended(key)
        spent["take"] += between - began
        spent["end"] += clock() - ended
        left -= len(ends)
        now_ms += 1
    row = {name: round(seconds / count * 1e6, 2) for name, seconds in spent.items()}
    row["sum"] = round(sum(row.values()), 2)
    return row


def main() -> None:
    """Print the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200_000)
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--slots", type=int, default=395)
    options = parser.parse_args()
    limited = {(EACH_TENANT, "", -1): Limits(concurrent=50)}
    full = limited | {("", "pool-0", -1): Limits(concurrent=300), ("", "", 0): Limits(reserved=0)}
    for name, pools, priorities, limits in (
        ("one queue, no limits", 1, 1, {}),
        ("one queue, a limit per tenant", 1, 1, limited),
        ("three priorities, a limit per tenant", 1, 3, limited),
        ("100 pools, three priorities, limits", 100, 3, full),
    ):
        pump = Pump()
        for scope, one in limits.items():
            pump.set_limits(scope, one)
        made = items(options.launches, options.tenants, pools, priorities)
        gc.collect()
        print(json.dumps({"case": name, **measured(pump, made, options.slots)}))


if __name__ == "__main__":
    main()
