"""Queues as people see them: how much waits where, and where one launch stands."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from cron.access import tenants_within
from cron.api.checks import is_wild, unknown_job
from cron.api.queues import QueueQuery, QueuesReport, QueueView, WaitQuery, WaitsReport
from cron.errors import NotNow, Unavailable, UnknownLaunch
from cron.launch_state import LaunchState
from cron.pace import in_turns
from cron.scheduler.job_filter import JobFilter, selector
from cron.scheduler.views import Depth
from cron.scopes import scope_text
from cron.service.launches import open_viewer
from cron.service.replica import Replica
from cron.state.launch_row import LaunchRow
from cron.state.state import State
from launcher.protocol.names import parse_launch_name, short_job_name, split_job_name

Place = tuple[str, int, str]
"""A pool, a priority and a tenant."""
_scheduled: Final = attrgetter("scheduled_s")

DUE_LOOKS: Final = 20_000
"""Launches that one question about all queues looks at: some hundredths of a second."""
WHY_MAX: Final = 200
"""Queues of which one answer says why their oldest launch waits."""
POSITIONS_MAX: Final = 5
"""Each costs a look at all that waits; a job's launches of one queue follow each other."""


async def depths(replica: Replica, query: QueueQuery) -> QueuesReport:
    """Return the waiting and running launches, by pool, priority and tenant.

    Raises:
        Unavailable: the queues are not made yet.
    """
    queues, is_within = replica.leader.queues, tenants_within(query.within)
    if queues is None:
        raise Unavailable("the leader has no queues yet", "try again shortly")
    behind = replica.leader.behind()
    depths = {(one.pool, one.priority, one.tenant): one for one in queues.depths()}
    due = await _due(replica.state)
    for place in (*behind, *due):
        depths.setdefault(place, Depth(*place, 0, 0, 0, None))
    shown = {
        place: depth
        for place, depth in sorted(depths.items(), key=lambda item: item[0])
        if query.tenant in ("", depth.tenant) and query.pool in ("", depth.pool)
        if is_within is None or is_within(depth.tenant)
    }
    now_ms, viewer = replica.clock.wall_ms(), open_viewer(replica)
    oldest = sorted((due[place][0].scheduled_s, place) for place in shown if place in due)
    asked = {place for _, place in oldest[:WHY_MAX]}
    views = []
    for place, depth in shown.items():
        view = _view(depth, behind.get(place, 0))
        if place in due:
            first, count = due[place]
            is_closed = _gates(replica.state, place, now_ms)
            since_ms = min(depth.oldest_ms or now_ms, first.due_at_ms or first.scheduled_s * 1000)
            launch = viewer(first) if place in asked else None
            view = msgspec.structs.replace(
                view,
                held=max(0, count - depth.waiting),
                oldest_ms=since_ms,
                oldest=launch.launch if launch is not None else "",
                why=launch.waiting if launch is not None else "",
                gates=is_closed,
            )
        views.append(view)
    return QueuesReport(queues=views, now_ms=now_ms)


async def _due(state: State) -> dict[Place, tuple[LaunchRow, int]]:
    """Return the launch of each pool, priority and tenant that waits for the longest time, and how
    many wait, of the first DUE_LOOKS launches."""
    found: dict[Place, tuple[LaunchRow, int]] = {}
    async for row in in_turns(list(islice(state.due.values(), DUE_LOOKS))):
        record = state.by_number.get(row.number)
        job = row.job or (record.job if record is not None else None)
        if record is None or job is None:
            continue
        place = (job.pool, job.work.priority, split_job_name(record.name)[0])
        first, count = found.get(place, (row, 0))
        found[place] = (min(first, row, key=_scheduled), count + 1)
    return found


def _gates(state: State, place: Place, now_ms: int) -> list[int]:
    """Return the closed gates that hold launches of a pool, priority and tenant, or some of
    them."""
    pool, priority, tenant = place
    return [
        number
        for number, gate in state.gates.items()
        if gate.holds(now_ms)
        and gate.pool in ("", pool)
        and gate.priority in (-1, priority)
        and gate.tenant in ("", tenant)
        and (not gate.jobs or fnmatchcase(tenant, gate.jobs.partition("/")[0]))
    ]


async def waits(replica: Replica, query: WaitQuery) -> WaitsReport:
    """Return where a launch stands, or each open one of jobs or a collection; oldest first.

    Raises:
        UnknownJob, UnknownLaunch: there is no such thing. NotNow: the launch is over.
    """
    rows, queued, now_ms = _rows(replica.state, query), replica.queued(), replica.clock.wall_ms()
    shown, due = open_viewer(replica), 0
    views = []
    for row in rows[: query.limit]:
        view = shown(row)
        if row.state is LaunchState.DUE:
            due += 1
            ahead = (
                queued.position(row.key) if queued is not None and due <= POSITIONS_MAX else None
            )
            view = msgspec.structs.replace(view, ahead=ahead, executor="")
        views.append(view)
    return WaitsReport(waits=views, total=len(rows), now_ms=now_ms)


def _rows(state: State, query: WaitQuery) -> list[LaunchRow]:
    if query.collection or is_wild(query.job):
        fits = selector(
            JobFilter(query.job, collection=query.collection, within=tuple(query.within))
        )
        numbers = {one.number for one in state.by_number.values() if fits(one)}
        rows = [row for row in state.open_rows() if row.number in numbers]
        return sorted(rows, key=lambda row: (row.scheduled_s, row.number, row.trigger))
    if query.job:
        record = state.record_of(query.job)
        if record is None and query.job in state.tasks:
            text = f"task {short_job_name(query.job)} has no launch that waits"
            raise NotNow(text, "`raftcron task get` tells what became of it")
        if record is None:
            raise unknown_job(query.job)
        found = state.open_of(record)
        return [found[place] for place in sorted(found)]
    name = parse_launch_name(query.launch)
    key = state.key_of(name)
    row = state.row(key) if key is not None else None
    if row is not None:
        return [row]
    if key is None:
        raise UnknownLaunch(f"launch {name} does not exist", "`raftcron history` lists them")
    raise NotNow(f"launch {name} waits for nothing", "`raftcron show` tells what became of it")


def _view(depth: Depth, jobs_behind: int) -> QueueView:
    reached = scope_text(depth.blocked_by) if depth.blocked_by is not None else ""
    return QueueView.of(depth, blocked_by=reached, jobs_behind=jobs_behind)
