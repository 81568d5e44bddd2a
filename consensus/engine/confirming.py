"""Rounds of heartbeats by which a leader learns that it still leads.

A round is a number in heartbeats that were sent after somebody asked. Once a majority has answered
one of them in this term, nobody else was elected before the question. No entry is needed, so a
round waits neither for bulk work nor for a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from consensus.engine.roster import Roster


class Confirming:
    """One leadership's rounds, in the tick thread. `round` is what heartbeats carry from now on;
    `is_due` says that none was sent since it was asked for."""

    def __init__(self, roster: Roster, me: str) -> None:
        self.round = 0
        self.is_due = False
        self._roster = roster
        self._me = me
        self._asked: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._answered: dict[str, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a round has not been answered by a majority."""
        return bool(self._asked)

    def ask(self, told: Callable[[bool], None]) -> None:
        """Call `told(True)` once a majority has answered a heartbeat that is sent after this call,
        `told(False)` if the leadership ends before."""
        if not self.is_due:
            self.is_due = True
            self.round += 1
        self._asked.append((self.round, told))

    def answered(self, name: str, number: int) -> None:
        """Note that `name`, which has a vote, answered a heartbeat of the round `number`."""
        self._answered[name] = max(number, self._answered.get(name, 0))
        self.settle()

    def settle(self) -> None:
        """Tell those whose round a majority has answered."""
        while self._asked:
            number, told = self._asked[0]
            names = {name for name, newest in self._answered.items() if newest >= number}
            if not self._roster.has_quorum(names | {self._me}):
                return
            self._asked.popleft()
            told(True)

    def end(self) -> None:
        """Tell those who wait that the leadership is over. Rounds are never numbered anew."""
        self._answered.clear()
        self.is_due = False
        asked, self._asked = self._asked, deque()
        for _, told in asked:
            told(False)
