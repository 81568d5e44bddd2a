"""The executor's lease, and the check that the spawner still works.

The lease says how long the executor may start work without an answer from the leader (rule R5). It
is counted from the sending of an answered heartbeat, on the boot-time clock, so that neither a slow
answer, nor a wall clock that jumps, nor a sleeping host makes it longer.

A spawner that is stopped, or waits for a dead mount, keeps its socket open: only its silence shows
that. Meanwhile it meets no deadline, so the executor must not wait for it beyond the lease's end
(R6).

Pure: the caller passes the time, of the boot-time clock.
"""

from __future__ import annotations

import enum
from typing import Final

STEP_MS: Final = 100
"""Between two looks while an answer is awaited, or the lease ends soon."""
IDLE_STEP_MS: Final = 500
"""Between two looks otherwise."""
ASK_MS_MIN: Final = 500
ASK_MS_MAX: Final = 3_000
LEASE_PATIENCE_MS: Final = 500
"""The longest silence at the lease's end; a ping is sent so long before it, at the latest."""
_SELF_KILL_MS: Final = 20_000
"""Until a leader has sent it."""


class Lease:
    """Until when this executor may start work. `self_kill_ms` is how long after the sending of an
    answered heartbeat, 0 until a leader has sent it."""

    def __init__(self) -> None:
        self.until_ms = 0
        self._number = 0
        self._sent_ms: dict[int, int] = {}
        self.self_kill_ms = 0

    def connected(self, self_kill_ms: int) -> None:
        """Begin a new stream; heartbeats of the one before can no longer be answered. The lease
        stays."""
        self._number = 0
        self._sent_ms.clear()
        self.self_kill_ms = self_kill_ms

    def sent(self, now_ms: int) -> int:
        """Return the number of the heartbeat that is sent at `now_ms` (boot time)."""
        self._number += 1
        self._sent_ms[self._number] = now_ms
        return self._number

    def answered(self, number: int) -> bool:
        """Count the answer to heartbeat `number`; return whether it is one of ours.

        Heartbeats before it count as answered: the stream keeps their order.
        """
        sent_ms = self._sent_ms.get(number)
        if sent_ms is None:
            return False
        self._sent_ms = {other: at for other, at in self._sent_ms.items() if other > number}
        self.until_ms = sent_ms + self.self_kill_ms
        return True

    @property
    def awaits_answer(self) -> bool:
        """Whether a heartbeat is unanswered."""
        return bool(self._sent_ms)

    def unanswered_ms(self, now_ms: int) -> int:
        """How long the oldest unanswered heartbeat has been waiting; 0 if none is."""
        return now_ms - min(self._sent_ms.values(), default=now_ms)

    def valid(self, now_ms: int) -> bool:
        """Whether work may be started at `now_ms` (boot time)."""
        return now_ms < self.until_ms


class Finding(enum.Enum):
    """The result of a look."""

    WELL = "it answered, or has time to"
    ASK = "ask it now"
    HUNG = "it was asked, and did not answer in time"


class Pulse:
    """Whether the spawner still sends events. Only the time between two looks counts as waiting,
    and only up to a bound: an executor that was stopped itself reads the answers after its look."""

    def __init__(self, now_ms: int) -> None:
        self._received_ms = self._asked_ms = self._looked_ms = now_ms
        self._waited_ms = -1

    def received(self, now_ms: int) -> None:
        """Count an event of the spawner, which it sends at the end of a turn."""
        self._received_ms = now_ms
        self._waited_ms = -1

    def look(self, now_ms: int, lease: Lease) -> Finding:
        """Return what to do. Call it again after `step_ms`."""
        passed_ms = min(now_ms - self._looked_ms, 2 * STEP_MS)
        self._looked_ms = now_ms
        if self._waited_ms >= 0:
            self._waited_ms += passed_ms
            is_late = self._waited_ms >= self._patience_ms(now_ms, lease)
            return Finding.HUNG if is_late else Finding.WELL
        if now_ms < self._due_ms(lease):
            return Finding.WELL
        self._asked_ms = now_ms
        self._waited_ms = 0
        return Finding.ASK

    def step_ms(self, now_ms: int, lease: Lease) -> int:
        """Return the step of the boot clock at which to look next."""
        left_ms = lease.until_ms - now_ms
        is_near = 0 < left_ms <= LEASE_PATIENCE_MS + IDLE_STEP_MS
        return STEP_MS if is_near or self._waited_ms >= 0 else IDLE_STEP_MS

    def _due_ms(self, lease: Lease) -> int:
        every_ms = (lease.self_kill_ms or _SELF_KILL_MS) // 6
        due_ms = self._asked_ms + min(max(every_ms, ASK_MS_MIN), ASK_MS_MAX)
        before_end_ms = lease.until_ms - LEASE_PATIENCE_MS
        return min(due_ms, before_end_ms) if before_end_ms > self._asked_ms else due_ms

    def _patience_ms(self, now_ms: int, lease: Lease) -> int:
        if self._received_ms < lease.until_ms <= now_ms:
            return LEASE_PATIENCE_MS
        return max((lease.self_kill_ms or _SELF_KILL_MS) // 2, 2 * LEASE_PATIENCE_MS)
