"""Simulated time: what happens when, one thing after the other, and a digest of what did."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """What will happen, by its time in seconds; things of one moment in the order they were put.

    `note` says what happened: into the digest by which two runs are compared, and with `tracing`
    into `trace`, a line each.
    """

    def __init__(self, *, tracing: bool = False) -> None:
        self.now = 0.0
        self.count = 0
        self.trace: list[str] = []
        self._tracing = tracing
        self._digest = hashlib.blake2b(digest_size=8)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._put = 0

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do `action` at `time_s`, or now if that is over."""
        self._put += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self._put, action, arguments))

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do `action` in `delay_s`."""
        self._put += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._put, action, arguments))

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until `until_s`, or until `stop` says so."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, action, arguments = heapq.heappop(heap)
            self.count += 1
            action(*arguments)
            if stop():
                return
        self.now = until_s

    def note(self, who: str, what: str) -> None:
        """Keep what happened."""
        line = f"{self.now:10.6f} {who:8} {what}"
        self._digest.update(line.encode())
        if self._tracing:
            self.trace.append(line)

    def mark(self, content: bytes) -> None:
        """Keep bytes that went somewhere, in the digest alone."""
        self._digest.update(content[:64])
        self._digest.update(b"%d %.6f" % (len(content), self.now))

    @property
    def digest(self) -> str:
        """What stands for everything that was noted so far."""
        return self._digest.hexdigest()
