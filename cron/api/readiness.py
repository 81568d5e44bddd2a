"""Whether a replica can answer calls, or forward them, now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consensus.cell import Joining
from consensus.leadership import Freshness, Leadership

BEHIND_MS_MAX: Final = 10_000
"""A replica that has not been level with its leader for longer than this is not ready."""


class Readiness:
    """The readiness of one replica. `joining` returns the progress of a replica that does not vote
    yet."""

    def __init__(
        self,
        leadership: Callable[[], Leadership],
        freshness: Callable[[], Freshness],
        joining: Callable[[], Joining | None] = lambda: None,
    ) -> None:
        self.leadership = leadership
        self.freshness = freshness
        self._joining = joining

    def reason(self) -> str:
        """Return why the replica is not ready, "" where it is."""
        fresh = self.freshness()
        if self._joining() is not None:
            return "it joins the cell and does not vote yet"
        if self.leadership().leader is None:
            return "no leader is known"
        if fresh.age_ms is None:
            return "it was not level with the leader since its start"
        if fresh.age_ms > BEHIND_MS_MAX:
            return f"it was level with the leader {fresh.age_ms} ms ago"
        return ""
