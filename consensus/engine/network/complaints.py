"""Rate-limited log lines about network errors: the first of each kind at once, then few.

Unauthenticated callers can cause any number of errors; a line for each could fill a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
EVERY_S: Final = 60.0
"""At most one line of a kind in this many seconds."""


class Complaints:
    """Counts and logs errors. `kind` is one of a few constants, never bytes from a socket."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, kind: str, text: str) -> None:
        """Log `text`, unless a line of its kind was logged recently."""
        now = self._mono()
        at, unsaid = self._said.get(kind, (now - EVERY_S, 0))
        if now - at < EVERY_S:
            self._said[kind] = (at, unsaid + 1)
            return
        self._said[kind] = (now, 0)
        more = f" (and {unsaid} more of this kind)" if unsaid else ""
        _log.warning("%s%s", text, more)

    def forget(self, kind: str) -> None:
        """Log the next error of `kind` at once: the previous problem is over."""
        self._said.pop(kind, None)
