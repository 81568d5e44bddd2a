"""Leases of executors, as the leader keeps them: in memory, on the monotonic clock (rule R5).

A lease that is too long on this side only makes waiting longer; one that is too short starts work
twice. The executor counts its own, shorter lease from the *sending* of a heartbeat, this side from
its *arrival*, so self-kill always comes first.
"""

from __future__ import annotations

import msgspec

Key = tuple[str, str]
"""Executor id and the UUID of its ledger."""


class LeaseTimes(msgspec.Struct, frozen=True):
    """The three times of rule R5, in milliseconds.

    An executor sends a heartbeat every `heartbeat_ms`; guarded work is killed on its host
    `self_kill_ms` after the sending of the last answered one; the leader calls it lost
    `give_up_ms` after the arrival of the last answered one. The gap between the last two covers
    clocks of different speed and the time that a kill takes. Suggested: 5 s, 20 s, 30 s.
    """

    heartbeat_ms: int = 5_000
    self_kill_ms: int = 20_000
    give_up_ms: int = 30_000

    def __post_init__(self) -> None:
        """Refuse times in an order that would start work twice."""
        if not 0 < 2 * self.heartbeat_ms < self.self_kill_ms < self.give_up_ms:
            raise ValueError(
                f"lease times: heartbeat {self.heartbeat_ms} ms, self-kill {self.self_kill_ms} ms, "
                f"give up {self.give_up_ms} ms: twice the first must be below the second, and the "
                "second below the third"
            )


class Leases:
    """Until when each executor, with one journal, counts as alive."""

    def __init__(self, times: LeaseTimes) -> None:
        self._give_up_ms = times.give_up_ms
        self._until: dict[Key, int] = {}
        self._first = 0  # no lease ends before; they only get longer, so it is looked up rarely

    def renew(self, key: Key, since_mono_ms: int) -> None:
        """Extend the lease to `give_up_ms` after `since_mono_ms`; it never gets shorter."""
        until = since_mono_ms + self._give_up_ms
        self._until[key] = until = max(until, self._until.get(key, until))
        self._first = min(until, self._first)

    def begin(self, key: Key, now_mono_ms: int) -> None:
        """Give a full lease to an executor that has none; an existing one is not renewed."""
        if key not in self._until:
            self.renew(key, now_mono_ms)

    def until(self, key: Key) -> int | None:
        """Return the monotonic millisecond at which the lease ends; None without one."""
        return self._until.get(key)

    def expired(self, now_mono_ms: int) -> list[Key]:
        """Return the executors whose lease is over, in the order of the ends."""
        if now_mono_ms < self._first:
            return []
        over = [(until, key) for key, until in self._until.items() if until <= now_mono_ms]
        if not over:
            self._first = min(self._until.values(), default=now_mono_ms)
        return [key for _, key in sorted(over)]

    def forget(self, key: Key) -> None:
        """Drop a lease: the leader has recorded the loss of the executor."""
        self._until.pop(key, None)

    def clear(self) -> None:
        """Drop all leases."""
        self._until.clear()
        self._first = 0
