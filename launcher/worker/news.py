"""What the threads of a child say, on its way to the socket: in order, in batches, bounded."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from launcher.worker.link import Bell
from launcher.worker.outcome import Ended
from launcher.worker.wire import OUTPUT_PIECE_BYTES_MAX
from launcher.worker.work import Holding, Work

OUTPUT_WAITING_BYTES_MAX: Final = 1 << 20
"""Output of all works that waits; with OUTPUT_EVERY_MS at most 20 MB a second are sent."""
OUTPUT_EVERY_MS: Final = 50
BEATS_EVERY_MS: Final = 100
"""An executor that feeds hundreds of children must not wake for each line and each sign of life;
only an end takes what its work wrote along at once."""
_NEVER_MS: Final = 1 << 62


class End(NamedTuple):
    """A work that is over."""

    work: Work
    ended: Ended
    started_ms: int
    finished_ms: int


class Batch(NamedTuple):
    """What was said since the last one. Send it in this order: an end is the last of its work."""

    output: list[tuple[str, bytes]]
    beats: list[str]
    ends: list[End]


class News:
    """Many threads write, the one of the socket reads. Nobody waits for anybody."""

    def __init__(self, holding: Holding, bell: Bell) -> None:
        self._holding = holding
        self._bell = bell
        self._ends: deque[End] = deque()
        self._beats: deque[Work] = deque()
        self._writing = threading.Lock()
        self._output: dict[str, bytearray] = {}
        self._dropped: dict[str, int] = {}
        self._output_bytes = 0
        self._output_ms = 0
        self._beats_ms = 0

    def beat(self, name: str) -> None:
        """Say that an attempt is alive; once for any number of times until it is sent."""
        work = self._holding.get(name)
        if work is not None and not work.beats:
            work.beats = True
            self._beats.append(work)
            self._bell.ring()

    def write(self, name: str, text: str) -> None:
        """Add to the output of an attempt; what is over the bound is dropped, and that is said."""
        written = text.encode("utf-8", "replace")
        with self._writing:
            # What a thread that its handler left behind writes after the end is nobody's.
            if self._holding.get(name) is None:
                return
            is_first = not self._output and not self._dropped
            room = OUTPUT_WAITING_BYTES_MAX - self._output_bytes
            if len(written) > room:
                self._dropped[name] = self._dropped.get(name, 0) + len(written)
            else:
                self._output.setdefault(name, bytearray()).extend(written)
                self._output_bytes += len(written)
        if is_first:
            self._bell.ring()

    def end(self, work: Work, ended: Ended, started_ms: int, finished_ms: int) -> None:
        """Say that a work is over."""
        if ended.trace:
            self.write(work.task.name, ended.trace)
        self._ends.append(End(work, ended, started_ms, finished_ms))
        self._bell.ring()

    def take(self, now_ms: int) -> Batch:
        """Return what is to be sent now: ends at once, the rest at its time."""
        # Ends first: what their works wrote was written before.
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        output: list[tuple[str, bytes]] = []
        if (self._output or self._dropped) and (ends or now_ms >= self._output_ms):
            self._output_ms = now_ms + OUTPUT_EVERY_MS
            output = self._take_output()
        return Batch(output, self._take_beats(now_ms), ends)

    def due_ms(self) -> int:
        """Return when there will be something to send that nobody rings for."""
        return min(
            self._output_ms if self._output or self._dropped else _NEVER_MS,
            self._beats_ms if self._beats else _NEVER_MS,
        )

    def _take_beats(self, now_ms: int) -> list[str]:
        if not self._beats or now_ms < self._beats_ms:
            return []
        self._beats_ms = now_ms + BEATS_EVERY_MS
        works = [self._beats.popleft() for _ in range(len(self._beats))]
        for work in works:
            work.beats = False
        return [work.task.name for work in works if not work.is_over]

    def _take_output(self) -> list[tuple[str, bytes]]:
        with self._writing:
            output, self._output = self._output, {}
            dropped, self._dropped = self._dropped, {}
            self._output_bytes = 0
        for name, size in dropped.items():
            said = f"[{size} bytes dropped: written faster than they are read]\n"
            output.setdefault(name, bytearray()).extend(said.encode())
        step = OUTPUT_PIECE_BYTES_MAX
        return [
            (name, bytes(written[at : at + step]))
            for name, written in output.items()
            if self._holding.get(name) is not None  # its end has not been sent
            for at in range(0, len(written), step)
        ]
