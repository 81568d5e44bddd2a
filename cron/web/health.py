"""Whether a replica is alive, and whether it can answer calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from consensus.cell import Joining
from consensus.leadership import Freshness, Leadership
from cron.api.rpc import View, encode
from cron.web.problems import RETRY_AFTER_S, Answer
from cron.web.requests import JSON

BEHIND_MS_MAX: Final = 10_000
"""A replica that has not been level with its leader for longer than this is not ready."""


class Health(View, frozen=True, kw_only=True):
    """What a replica says of itself. `role` is leader or follower; `reason` says why it is not
    ready."""

    status: str
    replica: str = ""
    role: str = ""
    leader: str = ""
    age_ms: int | None = None
    reason: str = ""


class HealthChecks:
    """Answers `/healthz` and `/readyz` without a majority and without a token. `joining` returns
    the progress of a replica that does not vote yet."""

    def __init__(
        self,
        replica: str,
        leadership: Callable[[], Leadership],
        freshness: Callable[[], Freshness],
        joining: Callable[[], Joining | None] = lambda: None,
    ) -> None:
        self._replica = replica
        self._leadership = leadership
        self._freshness = freshness
        self._joining = joining

    def alive(self) -> Answer:
        """Return that the process runs its event loop. A replica that fails ends, and so does not
        answer."""
        return _answer(Health(status="ok", replica=self._replica))

    def ready(self) -> Answer:
        """Return whether calls are answered here, or forwarded from here, now."""
        leadership, fresh, joining = self._leadership(), self._freshness(), self._joining()
        reason = ""
        if joining is not None:
            reason = "it joins the cell and does not vote yet"
        elif leadership.leader is None:
            reason = "no leader is known"
        elif fresh.age_ms is None:
            reason = "it was not level with the leader since its start"
        elif fresh.age_ms > BEHIND_MS_MAX:
            reason = f"it was level with the leader {fresh.age_ms} ms ago"
        said = Health(
            status="unavailable" if reason else "ok",
            replica=self._replica,
            role="leader" if leadership.leads else "follower",
            leader=leadership.leader or "",
            age_ms=fresh.age_ms,
            reason=reason,
        )
        return _answer(said)


def _answer(said: Health) -> Answer:
    if said.reason:
        return Answer(503, {"content-type": JSON, "retry-after": str(RETRY_AFTER_S)}, encode(said))
    return Answer(200, {"content-type": JSON}, encode(said))
