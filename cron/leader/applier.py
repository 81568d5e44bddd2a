"""The Applier of a replica, between the replicated log and State: it applies entries, keeps what
they sealed, and notifies listeners.

Owned by the event loop's thread, like State itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from consensus.histogram import Histogram
from consensus.leadership import Position
from cron import failpoints
from cron.history.store import RowStore
from cron.pace import paced
from cron.state import commands as c
from cron.state.archive import History, Sealed
from cron.state.image import decode_state
from cron.state.imaging import Imaging
from cron.state.machine import Machine
from cron.state.outcome import Outcome, Verdict
from cron.state.state import State

Listener = Callable[[int, Outcome], None]


class Keeping(Protocol):
    """The writer of segments and snapshots on this replica's disk. It is called on the loop's
    thread, and its calls return at once, except `wait_durable`."""

    def keep(self, sealed: Sequence[Sealed]) -> None:
        """Write segments that were sealed just now."""

    def snapshot(self, state: State, imaging: Imaging) -> None:
        """Write the snapshot of State as it is now; its image has begun."""

    def catalog(self, history: History) -> None:
        """Note the segments that State names; delete the files and rows of others."""

    def wait_durable(self) -> None:
        """Return once everything given to `keep` is on disk. Called in another thread.

        Raises:
            OSError: the disk refuses.
        """


class StateApplier:
    """The Applier of a replica, with its State and its snapshot writer."""

    def __init__(
        self,
        row_store: RowStore,
        writer: Keeping | None = None,
        mono_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._machine = Machine()
        self._mono_ms = mono_ms
        self.busy_ms = 0  # what applying has taken so far
        self.durations = Histogram()  # the same, by entry
        self._row_store = row_store
        row_store.follow(self.state.history)
        self._writer = writer
        self._listeners: list[Listener] = []

    @property
    def state(self) -> State:
        """State after the last applied entry; read it, never change it."""
        return self._machine.state

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(index, outcome)` after each entry, in log order, on the loop's thread."""
        self._listeners.append(listener)

    def apply(self, position: Position, entry: bytes) -> Outcome:
        """Apply one entry, keep what it sealed, and notify the listeners."""
        began_ms = self._mono_ms()
        outcome = self._machine.apply(position.term, position.index, entry)
        if self._writer is not None:
            self._keep(self._writer, outcome)
        for listener in self._listeners:
            listener(position.index, outcome)
        took_ms = self._mono_ms() - began_ms
        self.busy_ms = self.durations.sum_ms = self.busy_ms + took_ms
        self.durations.counts[bisect_left(self.durations.bounds_ms, took_ms)] += 1
        return outcome

    def _keep(self, writer: Keeping, outcome: Outcome) -> None:
        if outcome.sealed:
            writer.keep(outcome.sealed)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.SnapshotAt) and result.verdict is Verdict.ACCEPTED:
                writer.snapshot(self.state, Imaging.begin(self.state))
            elif isinstance(command, c.Retire):
                writer.catalog(self.state.history)

    def take(self) -> Iterable[bytes]:
        """Return State's image as it is now; its pieces may be read in another thread.

        After a dump the log forgets older entries and the rows that they sealed, so their segments
        are written to disk first.
        """
        return self._durable(Imaging.begin(self.state))

    def _durable(self, imaging: Imaging) -> Iterator[bytes]:
        if self._writer is not None:
            self._writer.wait_durable()
        for piece in paced(imaging.pieces()):
            failpoints.hit("dump-piece")
            yield piece

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Replace State. Its tails have the rows since the newest Seal; the backfill fetches
        segments that are not on this disk."""
        self._machine = Machine(decode_state(pieces))
        self._row_store.follow(self.state.history)
        if self._writer is not None:
            self._writer.catalog(self.state.history)
