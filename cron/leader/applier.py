"""What stands between the replicated log and State on every replica: apply, project, keep, tell.

Owned by the event loop's thread, like State itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from consensus.leadership import Position
from cron import failpoints
from cron.history.projection import Projection
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
    """Who keeps segments and snapshots on this replica's disk. Called on the loop's thread, but for
    `wait_durable`; all return at once, but for that one."""

    def keep(self, sealed: Sequence[Sealed]) -> None:
        """Write segments that were sealed just now."""

    def snapshot(self, state: State, imaging: Imaging) -> None:
        """Write the snapshot of State as it is now, whose image has begun."""

    def catalog(self, history: History) -> None:
        """Take note of the segments that State names; files and rows of others go."""

    def wait_durable(self) -> None:
        """Return once all that `keep` was given is on the disk. In another thread.

        Raises:
            OSError: the disk refuses.
        """


class StateApplier:
    """The Applier of a replica: State behind it, the history projection and the keeper beside."""

    def __init__(
        self,
        projection: Projection,
        keeper: Keeping | None = None,
        mono_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._machine = Machine()
        self._mono_ms = mono_ms
        self.busy_ms = 0  # what applying has taken so far
        self._projection = projection
        self._keeper = keeper
        self._listeners: list[Listener] = []
        self.rows_index = 0  # log index of the newest entry that added rows to history

    @property
    def state(self) -> State:
        """State after the last applied entry; read it, never change it."""
        return self._machine.state

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(index, outcome)` after each entry, in log order, on the loop's thread."""
        self._listeners.append(listener)

    def apply(self, position: Position, entry: bytes) -> Outcome:
        """Apply one entry, offer its rows to history, and tell who listens."""
        began_ms = self._mono_ms()
        outcome = self._machine.apply(position.term, position.index, entry)
        if outcome.rows or outcome.sealed:  # the mark must reach where a segment ends
            self._projection.offer(list(outcome.rows), position.index)
        if outcome.rows:
            self.rows_index = position.index
        if self._keeper is not None:
            self._keep(self._keeper, outcome)
        for listener in self._listeners:
            listener(position.index, outcome)
        self.busy_ms += self._mono_ms() - began_ms
        return outcome

    def _keep(self, keeper: Keeping, outcome: Outcome) -> None:
        if outcome.sealed:
            keeper.keep(outcome.sealed)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.SnapshotAt) and result.verdict is Verdict.ACCEPTED:
                keeper.snapshot(self.state, Imaging.begin(self.state))
            elif isinstance(command, c.Retire):
                keeper.catalog(self.state.history)

    def take(self) -> Iterable[bytes]:
        """Return State's image as it is now; its pieces may be asked for in another thread.

        A dump lets the log before it go, and with it the rows that were sealed there: so their
        segments must be on the disk first.
        """
        return self._durable(Imaging.begin(self.state))

    def _durable(self, imaging: Imaging) -> Iterator[bytes]:
        if self._keeper is not None:
            self._keeper.wait_durable()
        for piece in paced(imaging.pieces()):
            failpoints.hit("dump-piece")
            yield piece

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Replace State, and give history what the projection does not have yet.

        The rows after the projection's mark are in State's tails, or in segments: those are a gap,
        which the keeper's filler closes. The mark is a log index, which means the same in all lives
        of a cell that a file may have seen: a folder that a restore writes is new, and so is that
        of a replica that joins the restored cell, so that neither has a file with another mark.
        """
        self._machine = Machine(decode_state(pieces))
        history = self.state.history
        mark = self._projection.mark
        rows = list(history.rows_after(mark))
        if mark < history.sealed_to:
            self._projection.offer(rows, position.index, gap_from=mark, gap_to=history.sealed_to)
        elif rows:
            self._projection.offer(rows, position.index)
        if rows or mark < history.sealed_to:
            self.rows_index = position.index
        if self._keeper is not None:
            self._keeper.catalog(self.state.history)
