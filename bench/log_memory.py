"""What a replica's log costs in memory: appends entries to a cell of one, and measures its RSS.

`python -m bench.log_memory [--size 1200] [--journal-mb 56]` prints a JSON row. The Applier keeps
nothing, so all that grows is the log's. Entries are appended as fast as they are answered: only
bytes are measured, so the machine's speed does not matter. Below 64 MiB no dump is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Iterable
from typing import Any, Final

from bench.consensus_cells import free_ports
from bench.processes import resident_bytes
from consensus.config import EngineConfig
from consensus.engine.replica import EngineLog
from consensus.leadership import Position

TOGETHER: Final = 50
"""Appends under way at once: they share frames, as launches of one turn share entries."""


class Counter:
    """An Applier that counts."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, position: Position, entry: bytes) -> int:
        """Count an entry."""
        self.count += 1
        return self.count

    def take(self) -> Iterable[bytes]:
        """Return the count."""
        return [str(self.count).encode()]

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Go on from a count."""
        self.count = int(b"".join(pieces))


def fail(error: BaseException) -> None:
    """End: a log that failed measures nothing."""
    raise SystemExit(f"failed: {error!r}")


async def leads(log: EngineLog) -> None:
    """Return once `log` leads."""
    elected = asyncio.Event()
    log.subscribe(lambda leadership: elected.set() if leadership.leads else None)
    if not log.leadership.leads:
        await elected.wait()


async def measure(size: int, journal_mb: float, steps: int) -> dict[str, Any]:
    """Fill a journal; return the RSS in MB at the start and after each of `steps` equal parts."""
    with tempfile.TemporaryDirectory(prefix="raftcron-log-memory-") as data:
        config = EngineConfig(
            replica="r1",
            peers={"r1": f"127.0.0.1:{free_ports(1)[0]}"},
            data=data,
            start="bootstrap",
        )
        log = EngineLog(config, Counter(), on_failure=fail)
        await log.start()
        await leads(log)
        found = [resident_bytes(os.getpid()) / 1e6]
        rounds = round(journal_mb * 1e6 / steps / size / TOGETHER)
        for _ in range(steps):
            for _ in range(rounds):
                one = (log.append(bytes(size), timeout_ms=60_000) for _ in range(TOGETHER))
                await asyncio.gather(*one)
            found.append(resident_bytes(os.getpid()) / 1e6)
        on_disk = sum(entry.stat().st_size for entry in os.scandir(data) if "wal-" in entry.name)
        await log.stop()
    slope = (found[-1] - found[steps // 2]) / (journal_mb * (steps - steps // 2) / steps)
    return {
        "entry_bytes": size,
        "journal_mb": round(on_disk / 1e6, 1),
        "rss_mb": [round(one, 1) for one in found],
        "rss_mb_per_journal_mb": round(slope, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.log_memory")
    parser.add_argument("--size", type=int, default=1_200, help="bytes of an entry")
    parser.add_argument("--journal-mb", type=float, default=56.0)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.size, options.journal_mb, options.steps))))


if __name__ == "__main__":
    main()
