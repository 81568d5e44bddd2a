"""Whether a replica is alive, and whether it can answer calls."""

from __future__ import annotations

from cron.api.readiness import Readiness
from cron.api.rpc import View, encode
from cron.web.problems import RETRY_AFTER_S, Answer
from cron.web.requests import JSON


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
    """Answers `/healthz` and `/readyz` without a majority and without a token."""

    def __init__(self, replica: str, readiness: Readiness) -> None:
        self._replica = replica
        self._readiness = readiness

    def alive(self) -> Answer:
        """Return that the process runs its event loop. A replica that fails ends, and so does not
        answer."""
        return _answer(Health(status="ok", replica=self._replica))

    def ready(self) -> Answer:
        """Return whether calls are answered here, or forwarded from here, now."""
        leadership, reason = self._readiness.leadership(), self._readiness.reason()
        said = Health(
            status="unavailable" if reason else "ok",
            replica=self._replica,
            role="leader" if leadership.leads else "follower",
            leader=leadership.leader or "",
            age_ms=self._readiness.freshness().age_ms,
            reason=reason,
        )
        return _answer(said)


def _answer(said: Health) -> Answer:
    if said.reason:
        return Answer(503, {"content-type": JSON, "retry-after": str(RETRY_AFTER_S)}, encode(said))
    return Answer(200, {"content-type": JSON}, encode(said))
