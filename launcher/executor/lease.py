"""The executor's lease: how long it may start work without hearing from the leader (rule R5).

Counted from the sending of a heartbeat that was answered, on the boot-time clock, so that neither a
slow answer, nor a wall clock that jumps, nor a sleeping host makes it longer.
"""

from __future__ import annotations


class Lease:
    """Until when the leader vouches for this executor. Pure: whoever calls brings the time.

    `self_kill_ms` is what an answer grants, 0 until a leader has said.
    """

    def __init__(self) -> None:
        self.until_ms = 0
        self._number = 0
        self._sent_ms: dict[int, int] = {}
        self.self_kill_ms = 0

    def connected(self, self_kill_ms: int) -> None:
        """Begin counting on a new stream; heartbeats of the one before can no longer be answered.
        What was granted stays granted."""
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

    def unanswered_ms(self, now_ms: int) -> int:
        """How long the oldest unanswered heartbeat has been waiting; 0 if none is."""
        return now_ms - min(self._sent_ms.values(), default=now_ms)

    def valid(self, now_ms: int) -> bool:
        """Whether work may be started at `now_ms` (boot time)."""
        return now_ms < self.until_ms
