"""How fast the engine agrees: one JSON row. `python -m tests.cluster.engine_rate [SECONDS]`.

Three processes on this machine's disk; the appends are made in the leader's process, 2 KB each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from consensus.engine.replica import EngineLog
from tests.conformance.cells import IDS, NodeProcess, engine_configs, eventually
from tests.conformance.ledger import Ledger

ENTRY = b"x" * 2048


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def lead(log: EngineLog, nodes: list[NodeProcess]) -> None:
    async def leads() -> bool:
        if not log.leadership.leads:
            for node in nodes:
                await node.ask("transfer", to=log.replica)
        return log.leadership.leads

    await eventually(leads, "this process leads")


async def one_by_one(log: EngineLog, seconds: float) -> list[float]:
    took, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        await log.append(ENTRY, timeout_ms=5_000)
        took.append((time.perf_counter() - start) * 1000)
    return sorted(took)


async def many(log: EngineLog, seconds: float, width: int) -> float:
    until, count = time.perf_counter() + seconds, 0

    async def client() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await log.append(ENTRY, timeout_ms=10_000)
            count += 1

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(width)))
    return count / (time.perf_counter() - start)


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        configs = engine_configs(
            Path(directory), election_min_ms=800, election_max_ms=1_600, heartbeat_ms=100
        )
        nodes = [NodeProcess(configs[name]) for name in IDS[1:]]
        log = EngineLog(configs["r1"], Ledger(), on_failure=sys.exit)
        await asyncio.gather(log.start(), *(node.start() for node in nodes))
        await lead(log, nodes)
        pids = [node.process.pid for node in nodes if node.process]
        before = [cpu_s(pid) for pid in pids]
        await asyncio.sleep(seconds)
        idle = [(cpu_s(pid) - start) / seconds for pid, start in zip(pids, before, strict=True)]
        took = await one_by_one(log, seconds)
        rates = {width: await many(log, seconds, width) for width in (50, 1_000)}
        row = {
            "entry_bytes": len(ENTRY),
            "sequential_p50_ms": round(took[len(took) // 2], 2),
            "sequential_p99_ms": round(took[len(took) * 99 // 100], 2),
            "per_second_50_in_flight": round(rates[50]),
            "per_second_1000_in_flight": round(rates[1_000]),
            "idle_follower_cpu_percent": round(max(idle) * 100, 1),
            "term": log.leadership.term,
        }
        print(json.dumps(row))
        for node in nodes:
            await node.kill()
        await log.stop()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
