"""How much of a page its tables may take: a page has 100 KB at most, whatever its rows say.

A template makes each row, and asks whether there is room for it. Rows are asked for in their order;
after the first that does not fit, none does, so that a table ends at one place.
"""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

PAGE_BYTES_MAX: Final = 100_000
"""The rooms of one page and what stands around them stay below this."""


class Room:
    """Room for the rows of one table: `bytes_max` of HTML. `hidden` rows had none."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self.shown = 0
        self.hidden = 0

    def has(self, row: Markup) -> bool:
        """Return whether there is room for one more row, and take it."""
        size = len(row.encode(errors="replace"))
        if self.hidden or size > self._left:
            self.hidden += 1
            return False
        self._left -= size
        self.shown += 1
        return True
