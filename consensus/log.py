"""The interface of the replicated log.

Entries are opaque bytes. Each replica passes committed entries to its Applier, in the same order,
exactly once per process, always on the event loop's thread. So the state behind an Applier has one
owner and needs no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from consensus.leadership import Freshness, Leadership, Position


class Applied(msgspec.Struct, frozen=True):
    """An entry that was committed and applied here: its position and the Applier's result."""

    position: Position
    outcome: Any


class Applier(Protocol):
    """The state machine behind a log. All methods are called on the event loop's thread."""

    def apply(self, position: Position, entry: bytes) -> Any:
        """Apply one committed entry and return the result. It must not raise for invalid input: an
        exception stops the replica.
        """

    def take(self) -> Iterable[bytes]:
        """Return the state after the last applied entry, in pieces. The call must be short. The
        pieces are read in another thread, and must not change with later entries.
        """

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Replace the state by one that `take` returned at `position`; pieces may be split
        differently.
        """


class ReplicatedLog(Protocol):
    """The log of one replica. Not thread-safe: call it from the event loop's thread."""

    @property
    def replica(self) -> str:
        """This replica's id."""

    @property
    def applied(self) -> Position:
        """The position of the last entry that was applied here."""

    @property
    def leadership(self) -> Leadership:
        """What this replica believes about leadership now."""

    @property
    def freshness(self) -> Freshness:
        """Return how old a state is that is read here without a barrier; needs no majority. On a
        leader, this is how long ago a majority confirmed it.
        """

    def subscribe(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` after each change of `leadership`, on the event loop's thread."""

    async def start(self) -> None:
        """Load the files, restore the state, and join the cell. Returns once the local state is
        loaded; a leader may not be known yet.
        """

    async def stop(self) -> None:
        """Leave the cell in order; idempotent. Waiting appends fail with OutcomeUnknown."""

    async def append(self, entry: bytes, *, timeout_ms: int) -> Applied:
        """Commit `entry` and return once it is applied here.

        Appends that are started in one callback of the event loop are committed in that order.

        Raises:
            NotLeader, EntryTooBig, QueueFull, Stopped: nothing happened and nothing will.
            OutcomeUnknown: after `timeout_ms`, or when leadership changed meanwhile.
        """

    async def barrier(self, *, timeout_ms: int) -> Position:
        """Return once a majority has confirmed this leader, by answering a message sent after the
        call, and this replica has applied everything that was committed before the call. Use it
        before a linearizable read.

        Raises:
            NotLeader, QueueFull, Stopped, OutcomeUnknown: it could not be confirmed.
        """

    async def confirm(self, *, timeout_ms: int) -> None:
        """Return once a majority has answered, in this term, a message that was sent after the
        call. It appends no entry, so it implies nothing about what is applied here. Use it to renew
        leases.

        Raises:
            NotLeader, QueueFull, Stopped, OutcomeUnknown: it could not be confirmed.
        """

    async def snapshot(self) -> Position:
        """Write the Applier's state as a durable dump, and truncate the log before it."""

    async def transfer(self, replica: str | None = None) -> None:
        """Transfer leadership, to `replica` if given; best effort."""
