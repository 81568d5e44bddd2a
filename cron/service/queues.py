"""Queues as people see them: how much waits where, and where one launch stands."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import msgspec

from cron.access import names_within, tenants_within
from cron.api.checks import is_wild, unknown_job
from cron.api.launches import LaunchView
from cron.api.queues import QueueQuery, QueuesReport, QueueView, WaitQuery, WaitsReport
from cron.errors import NotNow, Unavailable, UnknownLaunch
from cron.launch_state import LaunchState
from cron.pace import in_turns
from cron.scheduler.gates import Gates
from cron.scheduler.job_filter import JobFilter, selector
from cron.scheduler.views import Depth
from cron.scopes import scope_text
from cron.service.launches import open_viewer
from cron.service.replica import Replica
from cron.state.alerts import SELF
from cron.state.launch_row import LaunchRow
from cron.state.own import users_counts
from cron.state.state import State
from launcher.protocol.names import parse_launch_name, short_job_name, split_job_name

Place = tuple[str, int, str]
"""A pool, a priority and a tenant."""

DUE_LOOKS: Final = 20_000
"""Launches that one question about all queues looks at: some hundredths of a second."""
WHY_MAX: Final = 200
"""Queues of which one answer says why their oldest launch waits."""
POSITIONS_MAX: Final = 5
"""Each costs a look at all that waits; a job's launches of one queue follow each other."""


async def depths(replica: Replica, query: QueueQuery) -> QueuesReport:
    """Return the waiting and running launches, by pool, priority and tenant. Those of the cell
    itself are left out unless the query names a tenant or a pool.

    Raises:
        Unavailable: the queues are not made yet.
    """
    queues, is_within = replica.leader.queues, tenants_within(query.within)
    if queues is None:
        raise Unavailable("the leader has no queues yet", "try again shortly")
    behind, is_named = replica.leader.behind(), bool(query.tenant or query.pool)
    depths = {(one.pool, one.priority, one.tenant): one for one in queues.depths()}
    for place in behind:
        depths.setdefault(place, Depth(*place, 0, 0, 0, None))
    shown = [
        depth
        for _, depth in sorted(depths.items(), key=lambda item: item[0])
        if query.tenant in ("", depth.tenant) and query.pool in ("", depth.pool)
        if is_named or depth.tenant != SELF
        if is_within is None or is_within(depth.tenant)
    ]
    now_ms, viewer = replica.clock.wall_ms(), open_viewer(replica)
    due = await _due(replica.state, now_ms)
    waiting = sorted((one for one in shown if one.waiting), key=attrgetter("oldest_ms"))
    asked = {(one.pool, one.priority, one.tenant) for one in waiting[:WHY_MAX]}
    views = []
    for depth in shown:
        place = (depth.pool, depth.priority, depth.tenant)
        reached = scope_text(depth.blocked_by) if depth.blocked_by is not None else ""
        view = QueueView.of(depth, blocked_by=reached, jobs_behind=behind.get(place, 0))
        if place in due and depth.waiting:
            first, gates = due[place]
            launch = viewer(first) if place in asked else LaunchView()
            view = msgspec.structs.replace(
                view, oldest=launch.launch, why=launch.waiting, gates=sorted(gates)
            )
        views.append(view)
    return QueuesReport(queues=views, now_ms=now_ms)


async def _due(state: State, now_ms: int) -> dict[Place, tuple[LaunchRow, set[int]]]:
    """Return the launch of each pool, priority and tenant that waits for the longest time, and the
    gates that hold launches there; of the first DUE_LOOKS launches that wait."""
    found: dict[Place, tuple[LaunchRow, set[int]]] = {}
    gates = Gates(state)
    async for key in in_turns(state.due.oldest(DUE_LOOKS)):
        record, detailed = state.by_number.get(key[0]), state.due.detailed.get(key)
        job = detailed.job if detailed is not None else None
        job = job or (record.job if record is not None else None)
        if record is None or job is None:
            continue
        place = (job.pool, job.work.priority, split_job_name(record.name)[0])
        if place not in found:
            row = detailed or state.due.get(key)
            if row is None:
                continue  # it began meanwhile
            found[place] = (row, set())
        gate = gates.of(record, job, now_ms)
        if gate is not None:
            found[place][1].add(gate.number)
    return found


async def waits(replica: Replica, query: WaitQuery) -> WaitsReport:
    """Return where a launch stands, or each open one of jobs or a collection; oldest first.

    Raises:
        UnknownJob, UnknownLaunch: there is no such thing. NotNow: the launch is over.
    """
    if query.is_due:
        return _oldest(replica, query)
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


def _oldest(replica: Replica, query: WaitQuery) -> WaitsReport:
    """Return the launches of users that have not begun, the oldest first; where not all may be
    seen, of the first DUE_LOOKS."""
    state, is_within = replica.state, names_within(query.within)
    total = users_counts(state).due
    looks = DUE_LOOKS if is_within is not None else query.limit + len(state.due) - total
    keys = [key for key in state.due.oldest(min(looks, DUE_LOOKS)) if key[0] not in state.own]
    if is_within is not None:
        keys = [key for key in keys if is_within(state.by_number[key[0]].name)]
        total = len(keys)
    shown = open_viewer(replica)
    rows = [row for key in keys[: query.limit] if (row := state.due.get(key)) is not None]
    return WaitsReport(
        waits=[shown(row) for row in rows], total=total, now_ms=replica.clock.wall_ms()
    )


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
