"""The clock of the library of clients, which a test sets forward: a timeout is over when the test
says so, and a busy machine does not use it up before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from launcher.client import batching, cell, core

SETTLED_WITHIN_S = 60.0


class ClientClock:
    """What `launcher.client` takes for the module `time`. `put` is `setattr`, or that of pytest's
    monkeypatch, which takes it back."""

    sleep = staticmethod(time.sleep)

    def __init__(self, put: Callable[[Any, str, Any], object] = setattr) -> None:
        self._put = put
        self._ahead_s = 0.0
        for module in (batching, cell, core):
            put(module, "time", self)
        # A caller that looks at the clock just after a skip would give up before the thread that
        # sends has said why: it waits for that thread.
        put(batching.Parcel, "left_s", lambda _: SETTLED_WITHIN_S)

    def monotonic(self) -> float:
        """The machine's monotonic time, and what was skipped."""
        return time.monotonic() + self._ahead_s

    def skip(self, seconds: float = 3_600) -> None:
        """Let so much time pass at once."""
        self._ahead_s += seconds

    def skip_at_a_failure(self) -> None:
        """Let all time pass once a replica did not act."""
        note = cell.Cell._note

        def noted(*given: Any) -> None:
            note(*given)
            self.skip()

        self._put(cell.Cell, "_note", noted)
