"""One case: a history of so many finished launches, as one replica keeps it.

Rows go the way that they go in a replica: into State's tails, sealed into segments on the disk, and
offered to the index. Then a job's newest launches are asked for, for many jobs; and the index is
deleted and filled again from the segments, newest first, as after a lost or damaged file.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench.keeping_state import finished, large_state
from cron.history.order import Query
from cron.history.projection import Projection
from cron.keeper.shelf import Folders
from cron.state.archive import SegmentRecord
from cron.state.imaging import Imaging
from cron.state.rows import Row
from cron.state.state import State

JOBS: Final = 1_000
SEGMENT_ROWS: Final = 65_536
BATCH_ROWS: Final = 1_000
"""Rows of one applied batch."""
ASKED: Final = 200
"""Jobs whose history is asked for."""


def rss_mb() -> float:
    """Return how much memory this process has."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmRSS")


class History:
    """State, segments and index of one replica, below `data`."""

    def __init__(self, data: Path, state: State) -> None:
        self.state = state
        self.folders = Folders(data, "bench")
        self.folders.open()
        self.index = data / "history.sqlite"
        self.projection = Projection(self.index)
        self.projection.start()

    async def grow(self, rows: Iterator[Row]) -> None:
        """Add launches that ended: to the tails, to segments, to the index."""
        history = self.state.history
        while batch := list(islice(rows, BATCH_ROWS)):
            for row in batch:
                history.append(row)
            last = batch[-1].ended_index
            self.projection.offer(batch, last)
            if history.open_rows >= SEGMENT_ROWS:
                for sealed in history.seal(1, last, batch[-1].ended_at_ms):
                    self.folders.write(sealed)
                await self.projection.caught_up(last)
        await self.projection.caught_up(last)

    async def query_ms(self) -> list[float]:
        """Ask for the newest launches of many jobs, and return how long each answer took."""
        times = []
        for job in islice(self.state.jobs, 0, None, JOBS // ASKED):
            began = time.perf_counter()
            found = await self.projection.newest(Query(job=job))
            times.append((time.perf_counter() - began) * 1000)
            if not found or found[0].job != job:
                raise RuntimeError(f"history of {job} is not there")
        return times

    async def rebuild(self) -> float:
        """Delete the index and fill it again; return how many seconds that takes."""
        before = await self.projection.counts()
        self.projection.stop()
        self.index.unlink()
        began = time.perf_counter()
        self.projection = Projection(self.index)
        self.projection.start()
        history = self.state.history
        last = max(tail.last_index for tail in history.tails)
        self.projection.offer(
            list(history.rows_after(0)), max(last, history.sealed_to), gap_to=history.sealed_to
        )
        for record in sorted(history.segments.values(), key=lambda one: -one.to_index):
            content = self.folders.read(record)
            await self.projection.fill(record, content, self._seal_of(record))
        if await self.projection.gaps() or await self.projection.counts() != before:
            raise RuntimeError("the index is not what it was")
        return time.perf_counter() - began

    def _seal_of(self, record: SegmentRecord) -> frozenset[tuple[int, int, int]]:
        keys = self.state.history.segments
        return frozenset(key for key in keys if key[:2] == record.key[:2])


async def measured(data: Path, launches: int) -> dict[str, Any]:
    """Return the row of one case."""
    kept = History(data, large_state(JOBS, open_per_job=1))
    await kept.grow(finished(JOBS, launches))
    gc.collect()
    times = await kept.query_ms()
    memory_mb = rss_mb()
    image = sum(map(len, Imaging.begin(kept.state).pieces()))
    files = list(kept.folders.segments.glob("*.seg"))
    segment_bytes = sum(path.stat().st_size for path in files)
    sealed_rows = sum(one.rows for one in kept.state.history.segments.values())
    rebuild_s = await kept.rebuild()
    kept.projection.stop()
    return {
        "launches": launches,
        "segments": len(files),
        "segment_bytes_per_launch": segment_bytes / sealed_rows if sealed_rows else 0.0,
        "index_bytes_per_launch": kept.index.stat().st_size / launches,
        "state_mb": image / 1e6,
        "rss_mb": memory_mb,
        "query_p50_ms": statistics.median(times),
        "query_max_ms": max(times),
        "rebuild_s": rebuild_s,
        "rebuild_per_s": launches / rebuild_s,
    }


def main() -> None:
    """Measure, and print the row."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        row = asyncio.run(measured(Path(folder), int(sys.argv[1])))
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
