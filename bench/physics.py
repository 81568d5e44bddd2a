"""What this machine can do at this moment, so that a row can be compared with itself elsewhere."""

from __future__ import annotations

import os
import tempfile
import time


def fdatasyncs_per_second(seconds: float = 0.5, size: int = 100) -> int:
    """Return how often a second a small append can be made durable: one log entry at a time."""
    with tempfile.NamedTemporaryFile(prefix="raftcron-bench-") as file:
        number = file.fileno()
        content = b"x" * size
        done, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            os.write(number, content)
            os.fdatasync(number)
            done += 1
    return round(done / seconds)


def loops_per_second(rounds: int = 1_000_000) -> int:
    """Return how often a second this Python adds to a dict: the best of three."""
    best = 0.0
    for _ in range(3):
        began, seen = time.perf_counter(), {}
        for number in range(rounds):
            seen[number & 1023] = number
        best = max(best, rounds / (time.perf_counter() - began))
    return round(best)
