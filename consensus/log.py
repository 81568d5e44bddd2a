"""The replicated log as the rest of the code sees it.

Entries are opaque bytes. What a majority has is handed to the Applier of each replica, in the same
order, exactly once per life of a process, always on the event loop's thread: the state behind an
Applier has one owner and needs no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from consensus.leadership import Freshness, Leadership, Position


class Applied(msgspec.Struct, frozen=True):
    """An entry that is committed and applied here: its position and what the Applier answered."""

    position: Position
    outcome: Any


class Applier(Protocol):
    """The state machine behind a log. All three are called on the event loop's thread."""

    def apply(self, position: Position, entry: bytes) -> Any:
        """Apply one committed entry; never raises for bad input. What it raises stops the
        replica."""

    def take(self) -> Iterable[bytes]:
        """Return the state after the last applied entry, in pieces. The call is short; the pieces
        are asked for in another thread, and stay those of this very state."""

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Replace the state by one that `take` returned at `position`, cut in pieces anywhere."""


class ReplicatedLog(Protocol):
    """Three replicas, one order. Not thread-safe: call it from the event loop's thread."""

    @property
    def replica(self) -> str:
        """This replica's id."""

    @property
    def applied(self) -> Position:
        """The position of the last entry that was applied here."""

    @property
    def leadership(self) -> Leadership:
        """What this replica believes now."""

    @property
    def freshness(self) -> Freshness:
        """How old a state is that is read here without a barrier; at once, also without a majority.
        On a leader, how long ago a majority confirmed it."""

    def subscribe(self, listener: Callable[[Leadership], None]) -> None:
        """Call `listener` after each change of `leadership`, on the event loop's thread."""

    async def start(self) -> None:
        """Read what is on the disk, restore and apply it, and take part. Returns once local state
        is loaded; a leader may not be known yet."""

    async def stop(self) -> None:
        """Leave in an orderly way; idempotent. Waiting appends end with OutcomeUnknown."""

    async def append(self, entry: bytes, *, timeout_ms: int) -> Applied:
        """Commit `entry` and return once it is applied here.

        Appends that are started in one turn of the loop are committed in the order they were
        started in.

        Raises:
            NotLeader, EntryTooBig, QueueFull, Stopped: nothing happened and nothing will.
            OutcomeUnknown: after `timeout_ms`, or when leadership changed meanwhile.
        """

    async def barrier(self, *, timeout_ms: int) -> Position:
        """Return once this replica is confirmed as leader by a majority that answered a message
        sent after the call, and has applied all that was committed before it: a linearizable
        read starts here.

        Raises:
            NotLeader, QueueFull, Stopped, OutcomeUnknown: it could not be confirmed.
        """

    async def confirm(self, *, timeout_ms: int) -> None:
        """Return once a majority has answered, in this leadership's term, a message that was sent
        after the call. It waits for no entry, so it says nothing of what is applied. A lease
        renewal starts here.

        Raises:
            NotLeader, QueueFull, Stopped, OutcomeUnknown: it could not be confirmed.
        """

    async def snapshot(self) -> Position:
        """Ask the Applier for its state, keep it durably, and let the log before it go."""

    async def transfer(self, replica: str | None = None) -> None:
        """Give leadership away, to `replica` if given; best effort."""
