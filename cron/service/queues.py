"""Queues as people see them: how much waits where, and where one launch stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from cron.api.checks import is_wild, unknown_job
from cron.api.queues import QueueQuery, QueuesReport, QueueView, WaitQuery, WaitsReport, WaitView
from cron.clock import Clock
from cron.errors import NotNow, Unavailable, UnknownLaunch
from cron.launch_state import LaunchState
from cron.leader.applier import StateApplier
from cron.scheduler.gates import shown_deadline_ms
from cron.scheduler.job_filter import JobFilter, selector
from cron.scheduler.views import Depth
from cron.scheduler.why import AskQueued, Queued, WaitReason, asked, why_waiting
from cron.scopes import scope_text
from cron.state.state import LaunchRow, State
from launcher.protocol.names import parse_launch_name, split_job_name

Place: TypeAlias = tuple[str, int, str]
"""Pool, priority and tenant."""
POSITIONS_MAX: Final = 5
"""Each costs a look at all that waits; a job's launches of one queue follow each other."""


class QueueAnswers:
    """Answers about queues on the leader. `queued` gives the queues of this term, `behind` how
    many jobs are behind, by pool, priority and tenant."""

    def __init__(
        self,
        applier: StateApplier,
        clock: Clock,
        queued: AskQueued,
        behind: Callable[[], Mapping[Place, int]],
    ) -> None:
        self._applier = applier
        self._clock = clock
        self._queued = queued
        self._behind = behind

    @property
    def _state(self) -> State:
        return self._applier.state

    async def depths(self, query: QueueQuery) -> QueuesReport:
        """Return what waits and runs, by pool, priority and tenant.

        Raises:
            Unavailable: the queues are not made yet.
        """
        queued = self._queued()
        if queued is None:
            raise Unavailable("the leader has no queues yet", "try again shortly")
        behind = self._behind()
        depths = {(one.pool, one.priority, one.tenant): one for one in queued.depths()}
        for place in behind:
            depths.setdefault(place, Depth(*place, 0, 0, 0, None))
        views = [
            _view(depth, behind.get(place, 0))
            for place, depth in sorted(depths.items(), key=lambda item: item[0])
            if query.tenant in ("", depth.tenant) and query.pool in ("", depth.pool)
        ]
        return QueuesReport(queues=views, now_ms=self._clock.wall_ms())

    async def waits(self, query: WaitQuery, connected: frozenset[int]) -> WaitsReport:
        """Return where a launch stands, or each open one of jobs or a collection; oldest first.

        Raises:
            UnknownJob, UnknownLaunch: there is no such thing. NotNow: the launch is over.
        """
        rows = self._rows(query)
        now_ms, queued = self._clock.wall_ms(), asked(self._queued())
        due = 0
        views = []
        for row in rows[: query.limit]:
            due += row.state is LaunchState.DUE
            is_placed = due <= POSITIONS_MAX
            views.append(self._wait(row, connected, now_ms, queued, is_placed=is_placed))
        return WaitsReport(waits=views, total=len(rows), now_ms=now_ms)

    def _rows(self, query: WaitQuery) -> list[LaunchRow]:
        if query.collection or is_wild(query.job):
            fits = selector(JobFilter(pattern=query.job, collection=query.collection))
            numbers = {one.number for one in self._state.jobs.values() if fits(one)}
            rows = [row for row in self._state.open_rows() if row.number in numbers]
            return sorted(rows, key=lambda row: (row.scheduled_s, row.number, row.trigger))
        if query.job:
            record = self._state.jobs.get(query.job)
            if record is None:
                raise unknown_job(query.job)
            found = self._state.open_of(record)
            return [found[place] for place in sorted(found)]
        name = parse_launch_name(query.launch)
        key = self._state.key_of(name)
        row = self._state.row(key) if key is not None else None
        if row is not None:
            return [row]
        if key is None:
            raise UnknownLaunch(f"launch {name} does not exist", "`raftcron history` lists them")
        raise NotNow(f"launch {name} waits for nothing", "`raftcron show` tells what became of it")

    def _wait(
        self,
        row: LaunchRow,
        connected: frozenset[int],
        now_ms: int,
        queued: Queued | None,
        *,
        is_placed: bool,
    ) -> WaitView:
        record = self._state.by_number[row.number]
        job = row.job or record.job
        is_due = row.state is LaunchState.DUE
        why = WaitReason("")
        ahead = None
        if is_due:
            why = why_waiting(self._state, row, connected, now_ms, queued)
            ahead = queued.position(row.key) if queued is not None and is_placed else None
        executor = self._state.executors.get(row.executor) if not is_due else None
        return WaitView(
            launch=str(self._state.launch_name(row.key)),
            state=row.state.label,
            pool=job.pool if job is not None else "",
            priority=job.work.priority if job is not None else 0,
            tenant=split_job_name(record.name)[0],
            ahead=ahead,
            due_ms=row.due_at_ms or row.scheduled_s * 1000,
            deadline_ms=shown_deadline_ms(self._state, row, record, now_ms),
            waiting=why.text,
            until_ms=why.until_ms,
            executor=executor.executor if executor is not None else "",
        )


def _view(depth: Depth, jobs_behind: int) -> QueueView:
    return QueueView(
        pool=depth.pool,
        priority=depth.priority,
        tenant=depth.tenant,
        waiting=depth.waiting,
        running=depth.running,
        oldest_ms=depth.oldest_ms,
        blocked_by=scope_text(depth.blocked_by) if depth.blocked_by is not None else "",
        jobs_behind=jobs_behind,
    )
