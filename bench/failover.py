"""How long is a log without a leader when the leader's process is killed, or falls silent?

What is killed closes its connections, which the others notice at once. What is stopped (SIGSTOP)
keeps them, as a machine does that lost its power: only a timeout tells.

A client has connections to the survivors before the kill, and then tries at both every few
milliseconds without waiting for what it tried before: a try that a member holds back, or that was
forwarded to the dead, delays no other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from typing import Any, Final

from bench.consensus_cells import Cell, Target
from bench.consensus_client import Refused
from bench.http2 import CallFailed
from bench.workloads import percentile

RETRY_S: Final = 0.01
GIVE_UP_S: Final = 30.0
ITEM: Final = [(b"failover", b"v" * 100)]


async def lose_the_leader(cell: Cell, *, is_silent: bool) -> float:
    """Kill the leader, or stop it if `is_silent`; return after how many milliseconds another
    acknowledged a put.

    The lost one was killed, has been started again and is level when this returns.
    """
    leader = await cell.leader()
    survivors = [await cell.target(name) for name in cell.names if name != leader]
    try:
        await asyncio.gather(*(_try(target) for target in survivors))
        began = time.perf_counter()
        os.kill(cell.pid(leader), signal.SIGSTOP if is_silent else signal.SIGKILL)
        await first_success(survivors)
        took_ms = (time.perf_counter() - began) * 1000
        await cell.kill(leader)
    finally:
        for target in survivors:
            await target.close()
    await cell.restart(leader)
    return took_ms


async def first_success(targets: list[Target]) -> None:
    """Return when any target has acknowledged a put. Raises TimeoutError after GIVE_UP_S."""
    done = asyncio.Event()
    tries: set[asyncio.Task[None]] = set()

    async def attempt(target: Target) -> None:
        if await _try(target):
            done.set()

    try:
        async with asyncio.timeout(GIVE_UP_S):
            while not done.is_set():
                for target in targets:
                    task = asyncio.create_task(attempt(target))
                    tries.add(task)
                    task.add_done_callback(tries.discard)
                await _wait(done, RETRY_S)
    finally:
        for task in list(tries):
            task.cancel()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _try(target: Target) -> bool:
    """Whether a put was acknowledged."""
    prepared: Any = target.prepare(ITEM)
    try:
        await target.put(prepared)
    except (Refused, CallFailed, OSError):
        return False
    return True


def summarize(took_ms: list[float]) -> dict[str, float | int]:
    """Return median, p90 and the worst of some failovers."""
    return {
        "times": len(took_ms),
        "median_ms": round(statistics.median(took_ms)),
        "p90_ms": round(percentile(sorted(took_ms), 90)),
        "max_ms": round(max(took_ms)),
    }
