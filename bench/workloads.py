"""What is put into a replicated log, how fast, and what was measured; the same for every log."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

Item = tuple[bytes, bytes]
"""A key and its value."""

KEYS: Final = 1_000
WARM_UP_S: Final = 0.3


class Workload(msgspec.Struct, frozen=True):
    """`in_flight` puts at any time, each of `items` values of `value_bytes`."""

    name: str
    value_bytes: int
    items: int
    in_flight: int


WORKLOADS: Final = tuple(
    Workload(f"{name}, {label}", size, items, in_flight)
    for size, label in ((100, "100 B"), (2_048, "2 KB"))
    for name, items, in_flight in (
        ("one by one", 1, 1),
        ("50 in flight", 1, 50),
        ("batches of 1,000", 1_000, 4),
    )
)


class Measured(msgspec.Struct, frozen=True):
    """What one client saw. CPU is the share of a core that the client's process used, and what all
    three replicas used for an item (0 if nobody looked)."""

    puts_per_second: float
    items_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_percent: float
    replicas_us_per_item: float = 0.0


Prepared = TypeVar("Prepared")


class Target(Protocol[Prepared]):
    """A log that takes puts. What can be encoded before the clock runs is."""

    def prepare(self, items: list[Item]) -> Prepared:
        """Return `items` ready to be sent any number of times."""

    async def put(self, prepared: Prepared) -> None:
        """Return once it is acknowledged; raises what went wrong."""


def batches(workload: Workload) -> list[list[Item]]:
    """Return the puts of a workload, to be repeated: every one of KEYS keys is in one of them."""
    value = b"v" * workload.value_bytes
    keys = [b"key%06d" % number for number in range(KEYS)]
    return [
        [(key, value) for key in keys[at : at + workload.items]]
        for at in range(0, KEYS, workload.items)
    ]


async def drive(target: Target[Any], workload: Workload, seconds: float) -> Measured:
    """Put for `seconds` after a short warming up, and return what the acknowledged ones took."""
    prepared = itertools.cycle([target.prepare(items) for items in batches(workload)])
    await _drive(target.put, prepared.__next__, workload.in_flight, WARM_UP_S)
    began, cpu = time.perf_counter(), time.process_time()
    took = await _drive(target.put, prepared.__next__, workload.in_flight, seconds)
    spent = time.perf_counter() - began
    return summarize(took, workload, spent, time.process_time() - cpu)


async def _drive(
    put: Callable[[Any], Awaitable[None]], draw: Callable[[], Any], width: int, seconds: float
) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        now = time.perf_counter()
        while now < until:
            await put(draw())
            began, now = now, time.perf_counter()
            took.append(now - began)

    await asyncio.gather(*(client() for _ in range(width)))
    return took


def summarize(took: list[float], workload: Workload, seconds: float, cpu_s: float) -> Measured:
    """Return the figures of puts that took these seconds each."""
    ordered = sorted(took)
    rate = len(ordered) / seconds
    return Measured(
        puts_per_second=round(rate, 1),
        items_per_second=round(rate * workload.items, 1),
        p50_ms=round(percentile(ordered, 50) * 1000, 3),
        p99_ms=round(percentile(ordered, 99) * 1000, 3),
        cpu_percent=round(cpu_s / seconds * 100, 1),
    )


def together(parts: list[Measured]) -> Measured:
    """Return what several clients at once amount to; latencies and CPU are the worst client's."""
    return Measured(
        puts_per_second=round(sum(part.puts_per_second for part in parts), 1),
        items_per_second=round(sum(part.items_per_second for part in parts), 1),
        p50_ms=max(part.p50_ms for part in parts),
        p99_ms=max(part.p99_ms for part in parts),
        cpu_percent=max(part.cpu_percent for part in parts),
    )


def percentile(ordered: list[float], share: int) -> float:
    """Return the smallest value that `share` per cent of the values do not exceed; nan of none."""
    if not ordered:
        return float("nan")
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]
