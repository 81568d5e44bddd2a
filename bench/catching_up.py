"""How long does a follower that is far behind take to be level, and what does the leader notice?

Appends go on one after the other. What the leader notices is the longest time between two that
were acknowledged, and between the beginnings of two ticks of its Raft.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.consensus_cells import OursCell

VALUE_BYTES: Final = 2_048
BEHIND_BYTES: Final = 100 * 1024 * 1024


class Case(msgspec.Struct, frozen=True):
    """A follower is behind by `log` (every entry is in the leader's journal), or by a `dump`."""

    name: str
    is_dump: bool
    settings: dict[str, int]


CASES: Final = (
    Case(
        "log",
        False,
        {
            "snapshot_entries": 1_000_000,
            "snapshot_bytes": 1024 * 1024 * 1024,
            "trailing_entries": 1_000_000,
        },
    ),
    Case("dump", True, {"trailing_entries": 100}),
)


async def measure(directory: Path, case: Case, behind_bytes: int = BEHIND_BYTES) -> dict[str, Any]:
    """Return one row: times in milliseconds, from a quiet leader to a level follower."""
    cell = OursCell(directory, **case.settings)
    try:
        await cell.start()
        leader = cell.nodes[await cell.leader()]
        behind = next(name for name in cell.names if name != leader.config.replica)
        await cell.kill(behind)
        await leader.ask("append", value_bytes=100)
        quiet = await _gaps(leader, 2.0)
        began = time.perf_counter()
        size = await leader.ask("fill", items=behind_bytes // VALUE_BYTES, value_bytes=VALUE_BYTES)
        filled = time.perf_counter() - began
        filling = await leader.ask("gaps")
        dumping = await _dump(leader) if case.is_dump else {}
        before = (await leader.ask("status"))[0]
        began = time.perf_counter()
        await cell.restart(behind)
        took = time.perf_counter() - began
        catching = await leader.ask("gaps")
        after = (await leader.ask("status"))[0]
        return {
            "behind": case.name,
            "megabytes": round(size / 1024**2),
            "fill_ms": round(filled * 1000),
            **_named("quiet", quiet),
            **_named("filling", filling),
            **dumping,
            "level_ms": round(took * 1000),
            **_named("catching_up", catching),
            "elections": after - before,
        }
    finally:
        await cell.close()


async def _dump(leader: Any) -> dict[str, float]:
    """Take a dump of the state, which lets the log before it go."""
    began = time.perf_counter()
    await leader.ask("snapshot")
    took = round((time.perf_counter() - began) * 1000)
    return {"dump_ms": took, **_named("dumping", await leader.ask("gaps"))}


async def _gaps(leader: Any, seconds: float) -> list[float]:
    await leader.ask("gaps")
    await asyncio.sleep(seconds)
    gaps: list[float] = await leader.ask("gaps")
    return gaps


def _named(when: str, gaps: list[float]) -> dict[str, float]:
    return {f"{when}_ack_gap_ms": gaps[0], f"{when}_tick_gap_ms": gaps[1]}
