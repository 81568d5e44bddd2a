"""Whether one more launch or task may wait: `limit --waiting`, for instants, for what people ask
for, and for tasks that programs hand over.

Theory of operation. The fair queue counts the launches that wait in it. A launch that somebody
asks for enters it two turns later: the request is built, its entry is committed, and the next plan
judges the launch. Until then the launch is counted here, so that a thousand requests in one turn do
not all find the same free place.

A task waits from the entry that takes it: for its time, for others that it follows, then for room.
State counts these by queue. Once it is ready it has a launch, which is counted here until the next
plan has judged it. So all that was accepted and has not begun counts, and what was accepted is
never skipped: a task for next week has its place as one for now, or all of them could come at once.
"""

from __future__ import annotations

from cron.errors import LimitExceeded, Unavailable
from cron.job import Job
from cron.scheduler.limits import LimitTable, WaitingLimit, covers
from cron.scopes import Scope, scope_arguments, scope_text
from cron.state.state import JobRecord, State
from launcher.protocol.names import split_job_name


class Admission:
    """The leader's count of admitted launches that are not in the fair queue yet."""

    def __init__(self, state: State, table: LimitTable) -> None:
        self._state = state
        self._table = table
        self._admitted: dict[Scope, int] = {}  # since the last plan
        self._entering: dict[Scope, int] = {}  # before the last plan
        # As of one entry: the tasks that wait, and those that the next entry will have as well.
        self._index = -1
        self._tasks: dict[Scope, int] = {}
        self._handed: dict[Scope, int] = {}
        self.is_loading = False  # the queue lacks launches that waited before the takeover

    def _limits(self, name: str, job: Job) -> list[WaitingLimit]:
        """Return the limits for a job's launches, with all that waits counted."""
        tenant, _ = split_job_name(name)
        return self._limits_of(tenant, job.pool, job.work.priority)

    def _limits_of(self, tenant: str, pool: str, priority: int) -> list[WaitingLimit]:
        if self._index != self._state.index:
            self._index, self._tasks, self._handed = self._state.index, {}, {}
        return [
            one._replace(
                waiting=one.waiting
                + self._admitted.get(one.scope, 0)
                + self._entering.get(one.scope, 0)
                + self._tasks_of(one.scope)
                + self._handed.get(one.scope, 0)
            )
            for one in self._table.waiting_limits(tenant, pool, priority)
        ]

    def _tasks_of(self, scope: Scope) -> int:
        """Return how many tasks of a scope wait and have no launch yet; O(queues), once an
        entry."""
        if scope not in self._tasks:
            self._tasks[scope] = sum(
                count
                for queue in self._state.queues.values()
                if queue.waiting
                for handler, priority, count in queue.waiting_for()
                if covers(scope, queue.tenant, handler, priority)
            )
        return self._tasks[scope]

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
        self._count(self._limits(name, job), self._admitted, count)

    def hand_over(self, tenant: str, handler: str, priority: int) -> None:
        """Count a task that the next entry takes as waiting, from now on.

        Raises:
            LimitExceeded, Unavailable: as `admit`.
        """
        limits = self._limits_of(tenant, handler, priority)  # it begins to count anew, if need be
        self._count(limits, self._handed, 1)

    def _count(self, limits: list[WaitingLimit], counts: dict[Scope, int], more: int) -> None:
        for one in limits:
            if one.waiting + more > one.most:
                raise _too_many(one, more, has_tasks=self._tasks_of(one.scope) > 0)
            if self.is_loading and one.waiting + more + len(self._state.due) > one.most:
                raise Unavailable(
                    "a new leader is still counting the launches that wait", "try again shortly"
                )
        for one in limits:
            counts[one.scope] = counts.get(one.scope, 0) + more

    def came(self, record: JobRecord) -> None:
        """Count a launch that is due as of the newest entry and not in the fair queue yet, if it is
        a task's: nobody has admitted that."""
        if not record.task or record.job is None or not self._table.limits:
            return
        tenant, job = split_job_name(record.name)[0], record.job
        for one in self._table.waiting_limits(tenant, job.pool, job.work.priority):
            self._entering[one.scope] = self._entering.get(one.scope, 0) + 1

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


def _too_many(limit: WaitingLimit, count: int, *, has_tasks: bool) -> LimitExceeded:
    one, many = ("launch or task", "launches and tasks") if has_tasks else ("launch", "launches")
    waits = f"1 {one} waits" if limit.waiting == 1 else f"{limit.waiting} {many} wait"
    asked = "" if count == 1 else f"; this would add {count}"
    room = max(limit.most - limit.waiting, 0)
    fewer = f"ask for {room} at most, " if 0 < room < count else ""
    return LimitExceeded(
        f"the waiting limit of {scope_text(limit.scope)} is reached: {waits}, limit "
        f"{limit.most}{asked}",
        f"{fewer}try again when some have begun (`raftcron queue`), or raise the limit "
        f"(`raftcron limit set --waiting N {scope_arguments(limit.scope)}`)",
    )
