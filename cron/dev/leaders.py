"""Who leads the cell, said whenever that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cron.api.members import StatusRow
from cron.api.rpc import Asks
from cron.api.table import STATUS

LOOK_MS: Final = 1_000


class Leaders:
    """Says `r2 leads now, term 2, 0.5 s after r1`, where r1 died, once for each new term.

    `died_ms` returns when a replica was last seen to die, by the wall clock; 0 if it never did.
    """

    def __init__(self, say: Callable[[str], None], died_ms: Callable[[str], int]) -> None:
        self._say = say
        self._died_ms = died_ms
        self._looked_ms = 0
        self._last: StatusRow | None = None

    def look(self, cell: Asks, now_ms: int) -> None:
        """Ask who leads, at most once a second, and say it if that is news."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        leader = next((row for row in cell.ask(STATUS).rows if row.role == "leader"), None)
        if leader is None or (self._last is not None and leader.term <= self._last.term):
            return
        before, self._last = self._last, leader
        after = "" if before is None else self._after(before, leader)
        self._say(f"{leader.id} leads now, term {leader.term}{after}")

    def _after(self, before: StatusRow, leader: StatusRow) -> str:
        died_ms = self._died_ms(before.id)
        if before.since_ms < died_ms <= leader.since_ms:
            return f", {(leader.since_ms - died_ms) / 1000:.1f} s after {before.id}"
        return f"; {before.id} led before" if before.id != leader.id else ""
