"""One case: a snapshot of a State with so many jobs, taken while the loop that owns it goes on.

The pause is the longest time that the loop's thread did not come to a millisecond's turn while the
image was encoded, compressed and written by another thread; `pause_idle_ms` is the same without.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.keeping_state import T0, large_state
from cron.state.image import decode_state
from cron.state.imaging import Imaging
from cron.state.state import State
from snapshots.disk import read_snapshot, write_snapshot
from snapshots.format import SnapshotHeader


def longest_pause_ms(state: State, work: Callable[[], None]) -> float:
    """Let `work` be done in another thread; return how long this one had to wait at most."""
    done = threading.Thread(target=work)
    done.start()
    longest, last, number = 0.0, time.perf_counter(), 0
    records = list(state.by_number.values())
    while done.is_alive():
        time.sleep(0.001)
        record = records[number % len(records)]
        state.touch(record)  # as applying does: what is about to change is encoded first
        record.ended_index += 1
        number += 37
        now = time.perf_counter()
        longest, last = max(longest, now - last - 0.001), now
    done.join()
    return longest * 1000


def main() -> None:
    """Measure, and print the row."""
    jobs = int(sys.argv[1])
    state = large_state(jobs)
    open_launches = len(state.due) + len(state.active)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)
    header = SnapshotHeader("bench", 1, state.term, state.index, bytes(16), T0 * 1000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        began = time.perf_counter()
        imaging = Imaging.begin(state)
        begin_ms = (time.perf_counter() - began) * 1000
        times: dict[str, float] = {}

        def write() -> None:
            start = time.perf_counter()
            write_snapshot(Path(folder), header, imaging.pieces())
            times["write_s"] = time.perf_counter() - start

        pause_ms = longest_pause_ms(state, write)
        idle_ms = longest_pause_ms(state, lambda: time.sleep(times["write_s"]))
        path = next(Path(folder).glob("*.snap"))
        began = time.perf_counter()
        file, pieces = read_snapshot(path, "bench")
        loaded = decode_state(pieces)
        load_s = time.perf_counter() - began
        if len(loaded.by_number) != jobs:
            raise RuntimeError("the snapshot lost jobs")
        raw = path.read_bytes()
        began = time.perf_counter()
        with (Path(folder) / "raw").open("wb") as copy:
            copy.write(raw)
            copy.flush()
            os.fsync(copy.fileno())
        raw_s = time.perf_counter() - began
    row = {
        "jobs": jobs,
        "open_launches": open_launches,
        "content_mb": file.content_bytes / 1e6,
        "file_mb": file.file_bytes / 1e6,
        "begin_ms": begin_ms,
        "pause_ms": pause_ms,
        "pause_idle_ms": idle_ms,
        "write_s": times["write_s"],
        "raw_write_s": raw_s,
        "load_s": load_s,
    }
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
