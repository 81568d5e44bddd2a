"""One case: a history of so many finished launches, as one replica keeps it.

Rows go the way that they go in a replica: into State's tails, and sealed into segments on the disk.
Then a job's newest launches are asked for, for many jobs, and those of all jobs before a time in
the middle of history; and the replica begins anew, and answers.
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
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench.keeping_state import T0, finished, large_state
from cron.history.order import Query
from cron.history.segment import Segment
from cron.history.store import RowStore
from cron.state.archive import Sealed, SegmentRecord
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.rows import Chunk
from cron.state.state import State
from cron.storage.folders import Folders, name_of, open_rows

JOBS: Final = 1_000
SEGMENT_ROWS: Final = 65_536
BATCH_CHUNKS: Final = 30
"""Chunks that are made before they are appended: two in three entries."""
ASKED: Final = 200
"""Jobs whose history is asked for."""


def rss_mb() -> float:
    """Return how much memory this process has."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmRSS")


class MemorySegments:
    """The snapshot writer's place: it writes at once, in the same process."""

    def __init__(self, data: Path) -> None:
        self.folders = Folders(data, "bench")
        self.folders.open()
        self.version = 0

    def holdings(
        self, records: Iterable[SegmentRecord]
    ) -> tuple[list[SegmentRecord], list[Sealed]]:
        """All segments are files."""
        return list(records), []

    def open_rows(self, record: SegmentRecord) -> Segment:
        """Return a segment."""
        return open_rows(self.folders.segments / name_of(record), "bench", record)

    def distrust(self, record: SegmentRecord, error: Exception) -> None:
        """Nothing may be damaged."""
        raise RuntimeError(str(record)) from error


class History:
    """State, segments and questions of one replica, below `data`."""

    def __init__(self, data: Path, state: State) -> None:
        self.state = state
        self.segment_files = MemorySegments(data)
        self.append_s = 0.0
        self.seal_s = 0.0
        self.start()

    def start(self) -> None:
        """Begin to answer, as a replica that has its State and its files."""
        self.row_store = RowStore(self.segment_files)
        self.row_store.follow(self.state.history)

    def grow(self, chunks: Iterator[Chunk]) -> None:
        """Add launches that ended: to the tails, and to segments."""
        history = self.state.history
        while batch := list(islice(chunks, BATCH_CHUNKS)):
            began = time.process_time()
            for chunk in batch:
                history.append(chunk)
            self.append_s += time.process_time() - began
            if history.open_rows >= SEGMENT_ROWS:
                began = time.process_time()
                last = batch[-1]
                for sealed in history.seal(1, last.ended_index, last.ended_at_ms):
                    self.segment_files.folders.write(sealed)
                self.segment_files.version += 1
                self.seal_s += time.process_time() - began

    async def query_ms(self) -> list[float]:
        """Ask for the newest launches of many jobs, and return how long each answer took."""
        times = []
        for job in islice(self.state.jobs, 0, None, JOBS // ASKED):
            began = time.perf_counter()
            found = await self.row_store.newest(Query(jobs=frozenset((job,))))
            times.append((time.perf_counter() - began) * 1000)
            if not found or found[0].job != job:
                raise RuntimeError(f"history of {job} is not there")
        return times

    async def all_ms(self, at_ms: int) -> float:
        """Ask for the launches of all jobs before a time; return how long the answer took."""
        began = time.perf_counter()
        found = await self.row_store.newest(Query(until_ms=at_ms))
        if len(found) != Query().limit:
            raise RuntimeError("history is not there")
        return (time.perf_counter() - began) * 1000

    async def restart_s(self) -> float:
        """Begin anew from an image of the tails and the files; return how many seconds it takes to
        answer for the first time."""
        self.row_store.stop()
        image = encode_state(State(history=self.state.history))
        began = time.perf_counter()
        self.state.history = decode_state([image]).history
        self.start()
        if not await self.row_store.newest(Query(jobs=frozenset([*self.state.jobs][:1]))):
            raise RuntimeError("history is not there")
        return time.perf_counter() - began


async def measured(data: Path, launches: int) -> dict[str, Any]:
    """Return the row of one case."""
    kept = History(data, large_state(JOBS, open_per_job=1))
    kept.grow(finished(JOBS, launches))
    gc.collect()
    await kept.query_ms()  # the indexes are held from now on
    times = await kept.query_ms()
    memory_mb = rss_mb()
    image = sum(map(len, Imaging.begin(kept.state).pieces()))
    files = list(kept.segment_files.folders.segments.glob("*.seg"))
    segment_bytes = sum(path.stat().st_size for path in files)
    sealed_rows = sum(one.rows for one in kept.state.history.segments.values())
    all_ms = await kept.all_ms((T0 + launches // JOBS * 30) * 1000)
    restart_s = await kept.restart_s()
    kept.row_store.stop()
    return {
        "launches": launches,
        "segments": len(files),
        "segment_bytes_per_launch": segment_bytes / sealed_rows if sealed_rows else 0.0,
        "append_us": kept.append_s / launches * 1e6,
        "seal_us": kept.seal_s / sealed_rows * 1e6 if sealed_rows else 0.0,
        "state_mb": image / 1e6,
        "rss_mb": memory_mb,
        "query_p50_ms": statistics.median(times),
        "query_max_ms": max(times),
        "all_ms": all_ms,
        "restart_s": restart_s,
    }


def main() -> None:
    """Measure, and print the row."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        row = asyncio.run(measured(Path(folder), int(sys.argv[1])))
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
