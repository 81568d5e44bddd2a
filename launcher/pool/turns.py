"""Turns: a bound on how many executors are greeted at once, so that a flood keeps no one out.

A turn begins before the Hello is read, because a Hello may be large, and lasts until the session
has a lease or is over. An authenticated caller has one turn or one place in the queue; its newest
stream takes it from an older one. A caller that has not sent its Hello loses its turn after
`SILENT_MS` if others wait. No turn lasts longer than `HELLO_WITHIN_MS`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from launcher.pool import limits

NEWER: Final = "a newer stream of the same certificate is here"


class Turn:
    """One stream's turn, or its place in the queue. `limit` bounds the wait of its reader."""

    def __init__(self, caller: str, limit: asyncio.Timeout) -> None:
        self.caller = caller
        self.is_silent = True
        self.given = asyncio.Event()
        self.since_s = 0.0
        self.reason = f"no Hello within {limits.HELLO_WITHIN_MS} ms"
        self._limit = limit

    def expire(self, reason: str) -> None:
        """End the reader's wait with TimeoutError."""
        self.reason = reason
        self._limit.reschedule(asyncio.get_running_loop().time())

    def begin(self) -> None:
        """Let the reader read its Hello within HELLO_WITHIN_MS."""
        self.since_s = asyncio.get_running_loop().time()
        self._limit.reschedule(self.since_s + limits.HELLO_WITHIN_MS / 1000)
        self.given.set()


class Turns:
    """The turns of one server. Everything happens on the event loop."""

    def __init__(self) -> None:
        self._held: dict[Turn, None] = {}  # the oldest first
        self._queue: dict[Turn, None] = {}
        self._silent: dict[str, Turn] = {}  # by caller, those without a Hello
        self._look: asyncio.TimerHandle | None = None

    async def take(self, caller: str, limit: asyncio.Timeout) -> Turn:
        """Return a turn once there is one; end it with `give_back`.

        `caller` is "" if it is not authenticated. The Hello is read within `limit`.
        """
        turn = Turn(caller, limit)
        if caller:
            if (older := self._silent.get(caller)) is not None:
                self._end(older, NEWER)
            self._silent[caller] = turn
        self._queue[turn] = None
        self._go_on()
        try:
            await turn.given.wait()
        except BaseException:
            self.give_back(turn)
            raise
        return turn

    def greeted(self, turn: Turn) -> None:
        """Note that the Hello was read: the stream keeps its turn for HELLO_WITHIN_MS more."""
        self._note_hello(turn)
        loop = asyncio.get_running_loop()
        loop.call_later(limits.HELLO_WITHIN_MS / 1000, self.give_back, turn)

    def give_back(self, turn: Turn) -> None:
        """End a turn, or its wait. Idempotent."""
        self._note_hello(turn)
        self._held.pop(turn, None)
        self._queue.pop(turn, None)
        self._go_on()

    def _note_hello(self, turn: Turn) -> None:
        turn.is_silent = False
        if self._silent.get(turn.caller) is turn:
            del self._silent[turn.caller]

    def _end(self, turn: Turn, reason: str) -> None:
        turn.expire(reason)
        self.give_back(turn)

    def _go_on(self) -> None:
        """Give free turns to callers that wait; watch for holders that stay silent too long."""
        while self._queue and len(self._held) < limits.GREETINGS_MAX:
            turn = next(iter(self._queue))
            del self._queue[turn]
            self._held[turn] = None
            turn.begin()
        if self._queue and self._look is None:
            loop = asyncio.get_running_loop()
            first_s = next((turn.since_s for turn in self._held if turn.is_silent), None)
            if first_s is not None:
                self._look = loop.call_at(first_s + limits.SILENT_MS / 1000, self._expire)

    def _expire(self) -> None:
        self._look = None
        now_s = asyncio.get_running_loop().time()
        for turn in list(self._held):
            if self._queue and turn.is_silent and turn.since_s <= now_s - limits.SILENT_MS / 1000:
                self._end(turn, f"no Hello within {limits.SILENT_MS} ms, and others wait")
        self._go_on()
