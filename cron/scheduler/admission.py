"""Whether one more launch may wait: `limit --waiting`, for instants and for what people ask for.

Theory of operation. The fair queue counts the launches that wait in it. A launch that somebody
asks for enters it two turns later: the request is built, its entry is committed, and the next plan
judges the launch. Until then the launch is counted here, so that a thousand requests in one turn do
not all find the same free place.
"""

from __future__ import annotations

from cron.errors import LimitExceeded, Unavailable
from cron.job import Job
from cron.scheduler.limits import LimitTable, WaitingLimit
from cron.scopes import Scope, scope_text
from cron.state.state import State
from launcher.protocol.names import split_job_name


class Admission:
    """The leader's count of admitted launches that are not in the fair queue yet."""

    def __init__(self, state: State, table: LimitTable) -> None:
        self._state = state
        self._table = table
        self._admitted: dict[Scope, int] = {}  # since the last plan
        self._entering: dict[Scope, int] = {}  # before the last plan
        self.is_loading = False  # the queue lacks launches that waited before the takeover

    def _limits(self, name: str, job: Job) -> list[WaitingLimit]:
        """Return the limits for a job's launches, with the admitted launches counted."""
        tenant, _ = split_job_name(name)
        return [
            one._replace(
                waiting=one.waiting
                + self._admitted.get(one.scope, 0)
                + self._entering.get(one.scope, 0)
            )
            for one in self._table.waiting_limits(tenant, job.pool, job.work.priority)
        ]

    def why_full(self, name: str, job: Job) -> str:
        """Return the limit that keeps one more launch of a job from waiting, "" for none."""
        for one in self._limits(name, job):
            if one.waiting >= one.most:
                return f"{scope_text(one.scope)}: {one.waiting} wait, limit {one.most}"
        return ""

    def room(self, name: str, job: Job) -> int | None:
        """Return how many more launches of a job may wait; None if nothing limits that."""
        rooms = [max(one.most - one.waiting, 0) for one in self._limits(name, job)]
        return min(rooms, default=None)

    def admit(self, name: str, job: Job, count: int = 1) -> None:
        """Count `count` launches of a job as waiting, from now on.

        Raises:
            LimitExceeded: they would exceed a limit; none is counted.
            Unavailable: a new leader does not know yet how many wait.
        """
        limits = self._limits(name, job)
        for one in limits:
            if one.waiting + count > one.most:
                raise _too_many(one, count)
            if self.is_loading and one.waiting + count + len(self._state.due) > one.most:
                raise Unavailable(
                    "a new leader is still counting the launches that wait", "try again shortly"
                )
        for one in limits:
            self._admitted[one.scope] = self._admitted.get(one.scope, 0) + count

    def entered(self, name: str, job: Job) -> None:
        """Count an admitted launch no more: the fair queue has it."""
        if not self._entering:
            return
        tenant, _ = split_job_name(name)
        for one in self._table.waiting_limits(tenant, job.pool, job.work.priority):
            count = self._entering.get(one.scope, 0)
            if count > 1:
                self._entering[one.scope] = count - 1
            elif count:
                del self._entering[one.scope]

    def end_plan(self, *, is_complete: bool) -> None:
        """Note the end of a plan. If it was complete, launches that were admitted before the plan
        before are in the queue by now, or were refused."""
        if not is_complete:
            for scope, count in self._entering.items():
                self._admitted[scope] = self._admitted.get(scope, 0) + count
        self._entering, self._admitted = self._admitted, {}


def _too_many(limit: WaitingLimit, count: int) -> LimitExceeded:
    waits = "1 launch waits" if limit.waiting == 1 else f"{limit.waiting} launches wait"
    asked = "" if count == 1 else f"; this would add {count}"
    room = max(limit.most - limit.waiting, 0)
    fewer = f"ask for {room} at most, " if 0 < room < count else ""
    return LimitExceeded(
        f"the waiting limit of {scope_text(limit.scope)} is reached: {waits}, limit "
        f"{limit.most}{asked}",
        f"{fewer}try again when some have begun (`raftcron queue`), or raise the limit "
        "(`raftcron limit set --waiting`)",
    )
