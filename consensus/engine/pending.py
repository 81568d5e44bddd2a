"""Appends and barriers that wait for their answer; used on the event loop's thread. A barrier is a
round of an empty entry, shared by all calls that came before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from consensus.errors import ConsensusError, OutcomeUnknown, QueueFull
from consensus.limits import BARRIERS_MAX, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX
from consensus.log import Applied


class Pending:
    """Futures by counter, with limits on their number and bytes.

    A cancelled append is kept until its outcome is known, because its bytes are still queued.
    """

    def __init__(self) -> None:
        self._counter = 0
        self._bytes = 0
        self._waiting: dict[int, tuple[asyncio.Future[Applied], int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, size: int) -> tuple[int, asyncio.Future[Applied]]:
        """Return the counter and future of a new append of `size` bytes.

        Raises:
            QueueFull: too many appends or bytes are in flight.
        """
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise QueueFull(f"{IN_FLIGHT_MAX} appends are waiting")
        if self._bytes + size > IN_FLIGHT_BYTES_MAX:
            raise QueueFull(f"{self._bytes} bytes are waiting, {IN_FLIGHT_BYTES_MAX} may")
        self._counter += 1
        self._bytes += size
        answer: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._waiting[self._counter] = (answer, size)
        return self._counter, answer

    def resolve(self, counter: int, applied: Applied) -> None:
        """Answer an append with its result; do nothing if it was cancelled."""
        answer = self._pop(counter)
        if answer is not None and not answer.done():
            answer.set_result(applied)

    def refuse(self, counter: int, error: ConsensusError) -> None:
        """End an append with `error`."""
        answer = self._pop(counter)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def lose(self, upto: int, error: ConsensusError) -> None:
        """End all appends up to `upto` with `error`; the later ones are not logged yet."""
        for counter in [c for c in self._waiting if c <= upto]:
            self.refuse(counter, error)

    def close(self, error: ConsensusError) -> None:
        """End all appends with `error`."""
        self.lose(self._counter, error)

    def _pop(self, counter: int) -> asyncio.Future[Applied] | None:
        answer, size = self._waiting.pop(counter, (None, 0))
        self._bytes -= size
        return answer


T = TypeVar("T")


# --- barriers


class Barriers:
    """At most one round in progress and one waiting. A call joins the next round, because the round
    in progress may have been confirmed before the call.
    """

    def __init__(self, submit: Callable[[], asyncio.Future[Applied]]) -> None:
        self._submit = submit
        self._running = False
        self._waiting: list[asyncio.Future[Applied]] = []

    def join(self) -> asyncio.Future[Applied]:
        """Return a future with the result of the next round; it begins at once if none is in
        progress.

        Raises:
            QueueFull: too many calls wait for it.
            ConsensusError: the round could not begin.
        """
        if not self._running:
            return self._begin([])
        if len(self._waiting) >= BARRIERS_MAX:
            # Cancelled calls are removed here, so that they cost nothing elsewhere.
            self._waiting = [turn for turn in self._waiting if not turn.done()]
            if len(self._waiting) >= BARRIERS_MAX:
                raise QueueFull(f"{BARRIERS_MAX} calls wait for a barrier")
        turn: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    def _begin(self, guests: list[asyncio.Future[Applied]]) -> asyncio.Future[Applied]:
        answer = self._submit()
        self._running = True
        answer.add_done_callback(lambda done: self._end(done, guests))
        return answer

    def _end(self, answer: asyncio.Future[Applied], guests: list[asyncio.Future[Applied]]) -> None:
        self._running = False
        for guest in guests:
            if guest.done():
                continue
            if answer.cancelled():
                guest.set_exception(OutcomeUnknown("the barrier was given up"))
            elif (lost := answer.exception()) is not None:
                guest.set_exception(lost)
            else:
                guest.set_result(answer.result())
        waiting, self._waiting = [g for g in self._waiting if not g.done()], []
        if not waiting:
            return
        try:
            self._begin(waiting)
        except ConsensusError as error:
            for guest in waiting:
                if not guest.done():
                    guest.set_exception(error)


async def within(answer: asyncio.Future[T], timeout_ms: int) -> T:
    """Wait for `answer` at most `timeout_ms`; it is OutcomeUnknown afterwards."""
    # A timer of its own: asyncio.timeout costs four times as much, for each append.
    loop = asyncio.get_running_loop()
    timer = loop.call_later(timeout_ms / 1000, _give_up, answer, timeout_ms)
    try:
        return await answer
    finally:
        timer.cancel()


def _give_up(answer: asyncio.Future[T], timeout_ms: int) -> None:
    if not answer.done():
        answer.set_exception(OutcomeUnknown(f"no answer within {timeout_ms} ms"))
