"""Appends that wait for their answer; used on the event loop's thread."""

from __future__ import annotations

import asyncio

from consensus.errors import ConsensusError, QueueFull
from consensus.limits import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX
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
