"""The queue from the tick thread to the event loop: in order, many items per wake-up.

The opposite direction is `Raft.offer` and `Raft.ask`. Neither side ever waits for the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from consensus.engine.storage.dump import Dump
from consensus.engine.storage.records import Entry
from consensus.errors import ConsensusError
from consensus.leadership import Leadership, Position
from consensus.limits import HANDOVER_BYTES_MAX, HANDOVER_ENTRIES_MAX


class Committed(msgspec.Struct, frozen=True):
    """Entries a majority has, to be applied."""

    entries: list[Entry]


class Changed(msgspec.Struct, frozen=True):
    """Leadership changed; appends up to number `logged` may be in the log of an older term."""

    leadership: Leadership
    logged: int


class Refused(msgspec.Struct, frozen=True):
    """Appends that were not logged and will not be, because of `error`; None: this replica does not
    lead.
    """

    counters: list[int]
    error: ConsensusError | None = None


class TakeDump(msgspec.Struct, frozen=True):
    """A request for the state after all entries queued so far, which is the state at `position`;
    with the encoded members and the cell's life at that position.
    """

    position: Position
    members: bytes = b""
    life: int = 0


class Dumped(msgspec.Struct, frozen=True):
    """A dump at `position` is durable, or could not be written."""

    position: Position
    error: Exception | None


class Restored(msgspec.Struct, frozen=True):
    """The leader's state, which replaces this replica's state; `pieces` reads it."""

    dump: Dump
    pieces: Iterable[bytes]


class Failed(msgspec.Struct, frozen=True):
    """The tick thread ended with an error."""

    error: BaseException


Event = Committed | Changed | Refused | TakeDump | Dumped | Restored | Failed
_SLICE_S = 0.005
"""How long the event loop applies entries before it runs other callbacks, such as leases; one entry
is applied as a whole.
"""


class Handover:
    """The queue; the tick thread calls `post`, the event loop calls `take`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[Event], None]) -> None:
        self._loop = loop
        self._take = take
        self._events: deque[Event] = deque()
        self._woken = False
        self._closed = False
        self._put = 0
        self._taken = 0
        self._bytes = [0, 0]  # put and taken: one thread writes each of them

    @property
    def entries(self) -> int:
        """The number of queued committed entries."""
        return self._put - self._taken

    @property
    def has_room(self) -> bool:
        """Return whether more committed entries may be queued."""
        waiting = self._bytes[0] - self._bytes[1]
        return self.entries < HANDOVER_ENTRIES_MAX and waiting < HANDOVER_BYTES_MAX

    def post(self, event: Event) -> None:
        """Queue `event` for the event loop."""
        if isinstance(event, Committed):
            self._put += len(event.entries)
            self._bytes[0] += sum(len(entry[0]) for entry in event.entries)
            # One at a time: a few large entries would block the event loop for seconds.
            self._events.extend([Committed([entry]) for entry in event.entries])
        else:
            self._events.append(event)
        # The drain clears the flag before it reads the queue, so no event is left behind.
        if not self._woken and not self._closed:
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    def close(self) -> None:
        """Drop all queued events; called on the event loop's thread."""
        self._closed = True
        self._events.clear()

    def _drain(self) -> None:
        self._woken = False
        until = self._loop.time() + _SLICE_S
        while self._events and not self._closed:
            event = self._events.popleft()
            self._take(event)
            if isinstance(event, Committed):
                self._taken += 1
                self._bytes[1] += len(event.entries[0][0])
            if self._events and self._loop.time() > until:
                self._woken = True
                self._loop.call_soon(self._drain)
                return
