"""What deciding costs: CPU microseconds per launch, 200 tenants and 200,000 launches.

    python -m bench.fairness [--launches 200000] [--tenants 200] [--slots 395]

Tenant 0 owns half of all. Prints a line of JSON per case: `add`, `take`, `end` and their sum. The
first case has room for all that waits: nothing is to be decided, and flows are taken by count.
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

from cron.scheduler.fair_queue import FairQueue
from cron.scheduler.flows import FlowKey, Key
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits

BATCH: Final = 100
TURN: Final = 5_000
Due = tuple[Key, FlowKey, int]


def launches(count: int, tenants: int, pools: int, priorities: int) -> list[Due]:
    """Return launches of `tenants`, the first of which owns half, due 100 at an instant."""
    chance = Random(1)
    flows: dict[tuple[int, int, int], FlowKey] = {}
    made = []
    for number in range(count):
        owner = 0 if chance.random() < 0.5 else chance.randrange(tenants)
        pool, priority = number % pools, number % priorities
        key = (owner, pool, priority)
        flow = flows.get(key)
        if flow is None:
            name = f"pool-{pool}"
            flow = flows[key] = FlowKey(f"t{owner}", name, priority, (name, "", 0, 0))
        made.append(((owner * 1000 + number % 1000, number, 0), flow, number // 100))
    return made


def measured(queue: FairQueue, made: list[Due], slots: int, most: int) -> dict[str, float]:
    """Return CPU microseconds per launch of each step; all wait before the first begins."""
    clock, count = time.process_time, len(made)
    began = clock()
    for key, flow, due_ms in made:
        queue.add(key, flow, due_ms)
    spent = {"add": clock() - began, "take": 0.0, "end": 0.0}
    under_way: deque[Key] = deque()
    left, now_ms = count, count

    def room(need: Hashable, wanted: int) -> int:
        return min(wanted, slots - len(under_way))

    while left:
        began = clock()
        queue.begin_round()
        taken: list[Key] = []
        while len(taken) < most and len(under_way) + len(taken) < slots:
            found = queue.take(now_ms, room, 1, None, most - len(taken))
            if not found:
                break
            taken += found
        between = clock()
        under_way += taken
        ends = [under_way.popleft() for _ in range(min(most, len(under_way)))]
        ended = clock()
        queue.ended(ends)
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
    plenty = 2 * options.launches
    for name, pools, priorities, limits, slots, most in (
        ("one queue, room for all", 1, 1, {}, plenty, TURN),
        ("one queue, no limits", 1, 1, {}, options.slots, BATCH),
        ("one queue, a limit per tenant", 1, 1, limited, options.slots, BATCH),
        ("three priorities, a limit per tenant", 1, 3, limited, options.slots, BATCH),
        ("100 pools, three priorities, limits", 100, 3, full, options.slots, BATCH),
    ):
        queue = FairQueue()
        for scope, one in limits.items():
            queue.set_limits(scope, one)
        made = launches(options.launches, options.tenants, pools, priorities)
        gc.collect()
        print(json.dumps({"case": name, **measured(queue, made, slots, most)}))


if __name__ == "__main__":
    main()
