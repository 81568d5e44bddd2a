"""What stands between the replicated log and State on every replica: apply, project, tell.

Owned by the event loop's thread, like State itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from consensus.leadership import Position
from cron.history.projection import Projection
from cron.state.image import decode_state
from cron.state.imaging import Imaging
from cron.state.machine import Machine
from cron.state.outcome import Outcome
from cron.state.state import State

Listener = Callable[[int, Outcome], None]


class StateApplier:
    """The Applier of a replica: State behind it, the history projection beside it."""

    def __init__(self, projection: Projection) -> None:
        self._machine = Machine()
        self._projection = projection
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
        outcome = self._machine.apply(position.term, position.index, entry)
        if outcome.rows:
            self._projection.offer(list(outcome.rows), position.index)
            self.rows_index = position.index
        for listener in self._listeners:
            listener(position.index, outcome)
        return outcome

    def take(self) -> Iterable[bytes]:
        """Return State's image as it is now; its pieces may be asked for in another thread."""
        return Imaging.begin(self.state).pieces()

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        """Replace State, and give history what the projection does not have yet."""
        self._machine = Machine(decode_state(pieces))
        recent = self.state.recent
        mark = self._projection.mark
        gap = recent.gap_after(mark)
        rows = list(recent.rows_after(mark))
        if gap is not None:
            self._projection.offer(rows, position.index, gap_from=gap[0], gap_to=gap[1])
        elif rows:
            self._projection.offer(rows, position.index)
        if gap is not None or rows:
            self.rows_index = position.index
