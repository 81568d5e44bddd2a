"""One worker process as its executor sees it: what it serves, what it was given, what it does.

It says nothing of the ledger and decides nothing of what waits: `Workers` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from launcher.executor.attempt import Attempt, pace_us
from launcher.executor.line import Line, Peer
from launcher.launch import Reason
from launcher.limits import PIECE_BYTES_PENDING_MAX
from launcher.worker import wire

AHEAD_US: Final = 20_000
"""A worker gets what it ends within this beside what runs: the way to it and back, many times."""
PACE_US: Final = 10_000
"""How long a launch takes, until it is known."""
LOOK_MS_MAX: Final = 1_000
"""What one look may add to a worker's silence."""
UNSENT_BYTES_MAX: Final = 1 << 20
"""A worker that leaves so much unread hears of no lease: it could not obey."""


class Worker:
    """A process that said Hello. `is_enlisted`: the ledger has it, and it may be given launches.
    `is_unheard`: not all that it said could be read, so that it may have begun anything.
    `memory_bytes` is what it was last seen to have, where it has a bound."""

    def __init__(self, hello: wire.Hello, peer: Peer, line: Line) -> None:
        self.peer = peer
        self.line = line
        self.pid, self.ticks = peer.pid, peer.ticks
        self.group = hello.group
        self.threads = hello.threads
        self.capacity = hello.threads + hello.buffer
        self.served: Mapping[str, wire.Served] = {one.name: one for one in hello.handlers}
        self.given: dict[str, Attempt] = {}
        self.begun: dict[str, Attempt] = {}
        self.memory_max_bytes = hello.memory_max_bytes
        self.memory_bytes = 0
        self.pulse_ms = hello.pulse_ms
        self.silent_ms = 0
        self._looked_ms = 0
        self.is_enlisted = False
        self.is_leaving = False
        self.killed_for = ""
        self.is_unheard = False
        self.unwritten_bytes = 0
        self.is_confused = False
        self.has_run = False
        self._pace_us = PACE_US

    @property
    def is_serving(self) -> bool:
        """Whether it takes launches."""
        return (
            self.is_enlisted
            and not self.is_leaving
            and not self.killed_for
            and not self.line.is_over
        )

    @property
    def room(self) -> int:
        """How many launches more it should be given now. A few more than it has threads where they
        are short, so that no thread waits; where they are long, the others wait here, for whichever
        worker is free first."""
        return min(self.capacity, self.threads + self.ahead(AHEAD_US)) - len(self.given)

    def ahead(self, us: int) -> int:
        """Return how many launches it ends within so many microseconds."""
        return self.threads * us // max(self._pace_us, 1)

    def look(self, now_ms: int, silence_ms: int) -> bool:
        """Return whether it has been silent for too long, although it runs something.

        Only time in which the executor looked counts: after a pause of the whole host, what the
        worker said meanwhile is yet to be read.
        """
        passed_ms = min(now_ms - (self._looked_ms or now_ms), LOOK_MS_MAX)
        self._looked_ms = now_ms
        if not self.pulse_ms or not self.begun or self.unwritten_bytes > PIECE_BYTES_PENDING_MAX:
            self.silent_ms = 0
            return False
        self.silent_ms += passed_ms
        return 0 < silence_ms <= self.silent_ms and self.silent_ms > 2 * self.pulse_ms

    def give(self, some: list[Attempt]) -> None:
        """Send it launches to run."""
        served = self.served
        tasks = [attempt.task(served[attempt.spec.handler]) for attempt in some]
        self.given.update((attempt.name, attempt) for attempt in some)
        self.line.send_frames(wire.encode_each(wire.Run, tasks))

    def lease(self, until_ms: int) -> None:
        """Tell it that the lease was renewed."""
        if self.is_enlisted and self.line.unsent_bytes < UNSENT_BYTES_MAX:
            self.line.send(wire.Lease(until_ms))

    def ask_end(self, name: str, reason: Reason) -> None:
        """Ask it to end a launch."""
        self.line.send(wire.Cancel([(name, int(reason))]))

    def take_back(self, name: str) -> Attempt | None:
        """Return a launch that it no longer has; None if it never had it."""
        self.begun.pop(name, None)
        return self.given.pop(name, None)

    def ran(self, ran_ms: int) -> None:
        """Learn how long its launches take."""
        self.has_run = True
        self._pace_us = pace_us(self._pace_us, ran_ms)
