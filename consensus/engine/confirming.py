"""Rounds of heartbeats that confirm that a leader still leads.

A round has a number, which is in the heartbeats sent after a call. Once a majority has answered
them in this term, no other leader was elected before the call. A round needs no entry, so it waits
neither for other work nor for a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from consensus.engine.roster import Roster


class Confirming:
    """The rounds of one leadership; used in the tick thread. `round` is the number for the next
    heartbeats; `is_due` says that no heartbeat with this number was sent yet.
    """

    def __init__(self, roster: Roster, me: str) -> None:
        self.round = 0
        self.is_due = False
        self._roster = roster
        self._me = me
        self._asked: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._answered: dict[str, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Return whether a round waits for answers of a majority."""
        return bool(self._asked)

    def ask(self, told: Callable[[bool], None]) -> None:
        """Call `told(True)` once a majority has answered a heartbeat that is sent after this call,
        `told(False)` if the leadership ends before."""
        if not self.is_due:
            self.is_due = True
            self.round += 1
        self._asked.append((self.round, told))

    def answered(self, name: str, number: int) -> None:
        """Record that the voter `name` answered a heartbeat of the round `number`."""
        self._answered[name] = max(number, self._answered.get(name, 0))
        self.settle()

    def settle(self) -> None:
        """Call the callbacks of rounds that a majority has answered."""
        while self._asked:
            number, told = self._asked[0]
            names = {name for name, newest in self._answered.items() if newest >= number}
            if not self._roster.has_quorum(names | {self._me}):
                return
            self._asked.popleft()
            told(True)

    def end(self) -> None:
        """Call all waiting callbacks with False: the leadership is over."""
        self._answered.clear()
        self.is_due = False
        asked, self._asked = self._asked, deque()
        for _, told in asked:
            told(False)
