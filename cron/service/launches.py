"""Launches: what ran, what is open, and how launches are triggered by hand and killed.

State is asked first and history after it, up to the entry that State stood at: a launch that ends
in between is shown as it stood then, never twice and never not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from heapq import nlargest
from typing import Final

import msgspec

from cron.access import names_within
from cron.api.checks import is_wild, no_such_job, unknown_job
from cron.api.launches import (
    HistoryQuery,
    KillRequest,
    LaunchView,
    ShowRequest,
    TriggerRequest,
)
from cron.errors import (
    Conflict,
    LimitExceeded,
    NotNow,
    UnknownLaunch,
)
from cron.history.order import Place, Query, expand, newest_first, newest_s, place_of
from cron.history.store import RowStore
from cron.history.story import memory_of
from cron.job import Schedule
from cron.launch_state import ACTIVE, OPEN, LaunchState
from cron.limits import HISTORY_ROWS_MAX
from cron.notes import sentence, shortened
from cron.pace import in_turns
from cron.scheduler.gates import shown_deadline_ms
from cron.scheduler.job_filter import JobFilter, newest_tasks, select_jobs
from cron.scheduler.why import Queued, WaitReason, why_waiting
from cron.service.limiting import limits_text
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.alerts import is_own
from cron.state.archive import Stream
from cron.state.context import row_of
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Verdict
from cron.state.rows import RESTORED_BY, Part, Row, RowKind
from cron.state.state import State
from launcher.protocol.names import (
    SCHEDULED_S_MAX,
    LaunchName,
    format_time,
    parse_launch_name,
    short_job_name,
    split_job_name,
)
from launcher.protocol.status import Reason

LISTED_CHARS_MAX: Final = 256
"""Characters of a detail in a list, which may have 20,000 launches; `show` has all of it."""
HISTORY_TASKS_MAX: Final = 1_000
"""Tasks whose launches one question about history with a filter looks through: the newest."""
_KINDS: Final = {
    RowKind.ENDED: "launch",
    RowKind.RANGE: "range",
    RowKind.AMENDMENT: "amendment",
    RowKind.OPEN: "launch",
}


def of_row(row: Row) -> LaunchView:
    """Return a launch as it is shown; what only an open one has, `of_open` adds."""
    tenant, job = split_job_name(row.job)
    due_ms = row.due_at_ms or row.scheduled_s * 1000  # of a manual trigger: when it was asked for
    return LaunchView.of(
        row,
        launch=str(LaunchName(row.job, row.scheduled_s, row.trigger)),
        job=job,
        tenant=tenant,
        state=row.state.label,
        reason=row.reason.label,
        started_at_ms=row.started_ms,
        finished_at_ms=row.finished_ms,
        exit_code=row.exit_code if row.exit_code >= 0 else None,
        term=row.epoch.term,
        lateness_ms=row.started_ms - due_ms if row.started_ms else None,
        epoch=str(row.epoch) if row.epoch.term else "",
        replica=row.epoch.replica,
        local_time=format_time(row.local_min * 60)[:16] if row.local_min >= 0 else "",
        by="" if row.by == RESTORED_BY else row.by,
        detail="; ".join(filter(None, (sentence(row.note, row.detail), memory_of(row)))),
        kind=_KINDS[row.kind],
        parts=[_part(number, part) for number, part in enumerate(row.parts, 1)],
        number=row.number if row.number >= 0 else None,
        amends=_key(row.amends),
        cpu_ms=row.cpu_ms or None,
        memory_peak_bytes=row.memory_peak_bytes or None,
    )


def amended_by(row: Row, amendment: Row) -> LaunchView:
    """Return a lost attempt as it is shown with its newest amendment: begun as the one says, ended
    as the other."""
    known, late = of_row(row), of_row(amendment)
    return msgspec.structs.replace(
        late,
        begun_at_ms=known.begun_at_ms or late.begun_at_ms,
        launched_at_ms=known.launched_at_ms or late.launched_at_ms,
        started_at_ms=late.started_at_ms or known.started_at_ms,
        executor=late.executor or known.executor,
        term=late.term or known.term,
        lateness_ms=late.lateness_ms if known.lateness_ms is None else known.lateness_ms,
        epoch=late.epoch or known.epoch,
        replica=late.replica or known.replica,
        begun_index=known.begun_index or late.begun_index,
        launched_index=known.launched_index or late.launched_index,
        revision=known.revision,
        by=known.by,
        parts=late.parts or known.parts,
        amends=late.amends or _key((row.ended_index, row.number)),
        kind="launch",
        is_amended=True,
    )


def _key(key: tuple[int, int] | None) -> str:
    """Return `ended_index.number` of a row; its index alone where it has no number."""
    if key is None:
        return ""
    return f"{key[0]}.{key[1]}" if key[1] >= 0 else str(key[0])


def _part(number: int, part: Part) -> LaunchView:
    return LaunchView.of(
        part,
        part=number,
        number=None,
        executor=part.name,
        state=part.state.label,
        reason=part.reason.label,
        started_at_ms=part.started_ms,
        finished_at_ms=part.finished_ms,
        exit_code=part.exit_code if part.exit_code >= 0 else None,
        detail=sentence(part.note, part.detail),
        cpu_ms=part.cpu_ms or None,
        memory_peak_bytes=part.memory_peak_bytes or None,
    )


def of_open(
    state: State,
    row: LaunchRow,
    connected: frozenset[int],
    now_ms: int,
    queued: Queued | None = None,
) -> LaunchView:
    """Return an open launch as it is shown. `connected`: executors that are, by number."""
    record, shown = state.by_number[row.number], of_row(row_of(state, row))
    is_active, job = row.state in ACTIVE, row.job or record.job
    why = WaitReason("") if is_active else why_waiting(state, row, connected, now_ms, queued)
    return msgspec.structs.replace(
        shown,
        reason=row.cancel.label,
        by=row.cancel_by or shown.by,
        in_doubt=is_active and any(one.executor not in connected for one in row.starts()),
        waiting=why.text,
        until_ms=why.until_ms,
        deadline_at_ms=shown_deadline_ms(state, row, record, now_ms),
        is_open=True,
        attempt=_shown_attempt(row),
        pool=job.pool if job is not None else "",
        priority=job.work.priority if job is not None else 0,
        due_at_ms=row.due_at_ms or row.scheduled_s * 1000,
    )


def open_viewer(replica: Replica) -> Callable[[LaunchRow], LaunchView]:
    """Return what shows open launches to one request, which asks each thing that is dear once."""
    state, connected = replica.state, replica.connected()
    now_ms, queued = replica.clock.wall_ms(), replica.queued()
    return lambda row: of_open(state, row, connected, now_ms, queued)


async def listed(replica: Replica, query: HistoryQuery) -> list[LaunchView]:
    """Return launches, open ones included, newest ScheduledTime first. Those of the cell itself are
    left out unless the query names a job, a tenant or something else to look for.

    Raises:
        LimitExceeded: too many rows would have to be read for one page.
    """
    state, shown = replica.state, open_viewer(replica)
    states = frozenset(LaunchState[label.upper()] for label in query.states)
    names = _named(state, query)
    after, is_within = _after(query), _scope(query, hides_own=names is None)
    end_ms = query.until_ms or 1000 * SCHEDULED_S_MAX + 1
    fitting = [
        row
        for row in _open_rows(state, names, states)
        if (not states or row.state in states) and query.since_ms <= row.scheduled_s * 1000 < end_ms
        if is_within is None or is_within(state.by_number[row.number].name)
    ]
    if after is not None:
        fitting = [row for row in fitting if _place_of_open(state, row) < after]
    # A hundred thousand may be open: only what can be shown is told why it waits.
    records = state.by_number
    places = [
        (row.scheduled_s, _shown_attempt(row), records[row.number].name, row.trigger, at)
        for at, row in enumerate(fitting)
    ]  # as _place_of_open has it, in half of the time
    newest = [fitting[at] for *_, at in nlargest(query.limit, places)]
    index = state.index  # of which `newest` is true, whatever happens meanwhile
    listed = [(_place_of_open(state, row), shown(row)) async for row in in_turns(newest)]
    until_ms = end_ms - 1
    if after is not None:
        until_ms = min(until_ms, after[0] * 1000)
    jobs = None if names is None else frozenset(names)
    wanted = Query(jobs, states or None, query.since_ms, until_ms, query.limit)
    while True:
        rows, floor = await _rows_for(replica, wanted, is_archive=query.archive)
        if names and not rows and not any(one in state.jobs or one in state.tasks for one in names):
            raise unknown_job(query.job)
        known = [row for row in rows if row.ended_index <= index]
        if is_within is not None:
            known = [row for row in known if is_within(row.job)]
        amended = {} if query.is_all else await _amended(replica.row_store, known)
        ended = await _newest_ended(state, known, amended, query, until_ms, (after, floor))
        # What lies behind so many launches of the cell is asked for by name.
        is_behind = names is None and not query.within and wanted.limit >= HISTORY_ROWS_MAX
        if len(ended) >= query.limit or floor is None or is_behind:
            break
        # Some of what was read is shown elsewhere, or is older than what was not read yet.
        if wanted.limit >= HISTORY_ROWS_MAX:
            raise LimitExceeded(
                f"more than {HISTORY_ROWS_MAX:,} rows would have to be read for this list",
                "ask for one job, or for a shorter period",
            )
        more = min(4 * wanted.limit, HISTORY_ROWS_MAX)
        wanted = msgspec.structs.replace(wanted, limit=more)
    listed += ended
    listed.sort(key=lambda one: one[0], reverse=True)
    return [view for _, view in listed[: query.limit]]


def _scope(query: HistoryQuery, *, hides_own: bool) -> Callable[[str], bool] | None:
    """Return what says whether the launches of a job are shown, None for all. `hides_own`: those of
    the cell are not. These are messages about alerts and heartbeats, and would lead every list."""
    is_within = names_within(query.within)
    if not hides_own:
        return is_within
    return lambda name: not is_own(name) and (is_within is None or is_within(name))


async def _rows_for(
    replica: Replica, wanted: Query, *, is_archive: bool
) -> tuple[list[Row], Place | None]:
    """Return the newest rows of a query, and the place down to which they are all there are; None
    where that is the end."""
    rows = await replica.row_store.newest(wanted)
    floor = min(map(_end_place, rows)) if len(rows) >= wanted.limit else None
    if is_archive and replica.archive is not None and wanted.jobs != frozenset():
        # The catalog after the index: what is in neither has been let go, and what is in both was
        # retired in between, and is told apart.
        rows += await replica.archive.rows(replica.state.history, wanted, rows)
        single = [place_of(row) for row in rows if row.kind is not RowKind.RANGE]
        if len(single) >= wanted.limit:
            last = nlargest(wanted.limit, single)[-1]
            floor = last if floor is None else max(floor, last)
    return rows, floor


async def _amended(row_store: RowStore, rows: list[Row]) -> dict[Place, Row | None]:
    """Return what is shown instead of rows, by their places: a lost attempt that was amended is
    shown once, by its newest amendment. None: nothing."""
    attempts = {
        (row.job, row.scheduled_s, row.attempt): None
        for row in rows
        if row.kind is RowKind.AMENDMENT or _is_lost(row)
    }
    if not attempts:
        return {}
    found = {place_of(row): row for row in await row_store.of_attempts([*attempts])}
    found |= {place_of(row): row for row in rows if row.kind is RowKind.AMENDMENT}
    by_attempt: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in sorted([*found.values()], key=lambda row: (row.ended_index, row.number)):
        if row.kind is RowKind.AMENDMENT or _is_lost(row):
            name = (row.job, row.scheduled_s, row.trigger, row.attempt)
            by_attempt.setdefault(name, []).append(row)
    instead: dict[Place, Row | None] = {}
    for ends in by_attempt.values():
        lost = [row for row in ends if row.kind is RowKind.ENDED]
        if len(ends) > len(lost):
            instead |= {place_of(row): None for row in ends}
            instead[place_of(ends[-1])] = lost[-1] if lost else ends[-1]
    return instead


async def _newest_ended(
    state: State,
    rows: list[Row],
    amended: Mapping[Place, Row | None],
    query: HistoryQuery,
    until_ms: int,
    bounds: tuple[Place | None, Place | None],
) -> list[tuple[Place, LaunchView]]:
    """Return the newest launches that rows speak of, as many as a query asks for, between two
    places: below the first and not below the second."""
    after, floor = bounds
    since_s, until_s = -(-query.since_ms // 1000), until_ms // 1000
    found: list[tuple[Place, LaunchView]] = []
    schedule_of = partial(_schedule_of, state)
    async for row in in_turns(newest_first(rows, schedule_of, since_s, until_s)):
        place = place_of(row)
        if floor is not None and _is_below(place, floor):
            break
        if after is not None and place >= after:
            continue
        instead = amended.get(place, row)
        if instead is not None:
            view = of_row(row) if instead is row else amended_by(instead, row)
            if len(view.detail) > LISTED_CHARS_MAX:
                cut = shortened(view.detail, LISTED_CHARS_MAX)
                view = msgspec.structs.replace(view, detail=cut)
            found.append((place, view))
        if len(found) == query.limit:
            break
    return found


def _shown_attempt(row: LaunchRow) -> int:
    """The attempt that is shown of an open launch: of one that failed and waits, the next one,
    since the last one has a row of its own. 0 before the first."""
    return row.attempt + (row.state is LaunchState.DUE and row.attempt > 0)


def _place_of_open(state: State, row: LaunchRow) -> Place:
    name = state.by_number[row.number].name
    return (row.scheduled_s, _shown_attempt(row), 0, 0, -1, name, row.trigger)


def _named(state: State, query: HistoryQuery) -> list[str] | None:
    """Return the jobs that a query names, and of the tasks the newest that fit; None for all.

    Raises:
        UnknownJob: it names none.
    """
    said = JobFilter(query.job, query.tenant, query.pool, query.collection)
    if said.is_all:
        return None
    is_alone = said == JobFilter(query.job)
    if is_alone and not is_wild(query.job):
        return [query.job]
    wanted = msgspec.structs.replace(said, within=tuple(query.within))
    names = select_jobs(state.jobs.values(), wanted, is_live=False)
    if not query.archive:
        names += newest_tasks(state, wanted, HISTORY_TASKS_MAX)
    if not names and is_alone:
        raise no_such_job(query.job)
    return names


async def show(replica: Replica, request: ShowRequest) -> list[LaunchView]:
    """Return all attempts of a launch, newest last.

    Raises:
        UnknownLaunch: there is no such launch.
    """
    name = parse_launch_name(request.launch)
    key = replica.state.key_of(name)
    row = replica.state.row(key) if key is not None else None
    at_ms = name.scheduled_s * 1000
    ended = await replica.row_store.of_launch(name)
    views = [view for one in ended for view in expanded(replica.state, one, at_ms, at_ms, 1)]
    if row is not None:
        views.append(open_viewer(replica)(row))
    views = [with_limits(replica, name.job, view) for view in views]
    if not views:
        raise UnknownLaunch(
            f"launch {name} does not exist",
            f"`raftcron why {short_job_name(name.job)} TIME` says whether one was due",
        )
    return views


def with_limits(replica: Replica, name: str, view: LaunchView) -> LaunchView:
    """Return a launch with the limits that it has begun with, if its job is still the same."""
    record = replica.state.jobs.get(name)
    if record is None or not view.begun_index or view.revision != record.revision:
        return view
    limits = limits_text(replica, record.job, view.executor)
    return msgspec.structs.replace(view, limits=limits) if limits else view


def expanded(state: State, row: Row, since_ms: int, until_ms: int, limit: int) -> list[LaunchView]:
    """Return one view per instant: people expect a row for each, however they are kept."""
    schedule = _schedule_of(state, row)
    rows = expand(row, schedule, limit, since_s=-(-since_ms // 1000), until_s=until_ms // 1000)
    return [of_row(single) for single in rows]


def _schedule_of(state: State, row: Row) -> Schedule | None:
    """Return the schedule whose instants a range is of, None where it is not known any more."""
    record = state.jobs.get(row.job) if row.kind is RowKind.RANGE else None
    spans = reversed(record.spans) if record is not None else ()
    return next((span.schedule for span in spans if span.revision <= row.revision), None)


def _open_rows(
    state: State, names: list[str] | None, states: frozenset[LaunchState]
) -> list[LaunchRow]:
    """Return the open launches of jobs that may be in these states, in any where there are none."""
    if states and OPEN.isdisjoint(states):  # to make a hundred thousand rows takes 0.1 s
        return []
    if names is None:
        return [*state.active.rows(), *state.due.rows()]
    records = [record for name in names if (record := state.record_of(name)) is not None]
    return [row for record in records for row in state.open_of(record).values()]


def _end_place(row: Row) -> Place:
    """The place of a row; of a range that of its last instant."""
    return (newest_s(row), *place_of(row)[1:])


def _is_below(place: Place, floor: Place) -> bool:
    """Whether rows may lie at a place that were not read down to another: rows without numbers are
    not in the order of their places within an entry."""
    return place < floor if floor[4] >= 0 else place[:4] <= floor[:4]


def _after(query: HistoryQuery) -> Place | None:
    """The place of the last launch of the page before."""
    if query.after is None:
        return None
    cursor, name = query.after, parse_launch_name(query.after.launch)
    stream = Stream.FAILURES if cursor.is_failure else Stream.RUNS
    return (
        cursor.scheduled_s, cursor.attempt, cursor.ended_index, stream, cursor.number, name.job,
        name.trigger,
    )  # fmt: skip


def _is_lost(row: Row) -> bool:
    return row.kind is RowKind.ENDED and row.state is LaunchState.LOST and row.attempt > 0


async def trigger(replica: Replica, request: TriggerRequest) -> LaunchView:
    """Launch a job by hand, once for each request id.

    Raises:
        UnknownJob: there is no such job. LimitExceeded: no more launches of it may wait.
        Conflict: the request id was used for another job.
    """
    job = request.job

    def check_id(state: State) -> None:
        key = state.requests.get(request.request_id)
        if key is not None and state.by_number[key[0]].name != job:
            # Which job it was may be beyond what the caller may see.
            text = f"request_id {request.request_id} was used for another job than {job}"
            raise Conflict(f"{text}; nothing was launched", "draw a new one for each launch")

    def build(state: State, _now_ms: int) -> list[c.Command]:
        check_id(state)
        # A request that was accepted before is answered again, whatever waits by now.
        record = state.jobs.get(job) if request.request_id not in state.requests else None
        if record is not None and record.job is not None:
            replica.leader.indexes.queues.admission.admit(job, record.job)
        return [c.Trigger(job, request.request_id, request.by)]

    _, results = await replica.leader.submit(build)
    result = results[0]
    if result.verdict is Verdict.UNKNOWN_JOB:
        raise unknown_job(job)
    if result.verdict is Verdict.ALREADY:  # of a request that was under way at the same time
        check_id(replica.state)
    name = str(LaunchName(job, result.scheduled_s, result.number))
    return (await show(replica, ShowRequest(launch=name)))[-1]


async def kill(replica: Replica, request: KillRequest) -> LaunchView:
    """Cancel a launch; its kill is sent once that is committed (rule R8).

    Raises:
        UnknownLaunch: there is no such launch. NotNow: it is over.
    """
    name = parse_launch_name(request.launch)
    key = replica.state.key_of(name)
    if key is None:
        raise UnknownLaunch(f"launch {name} does not exist", "`raftcron history` lists them")
    command = c.Cancel((c.CancelItem(key, Reason.KILLED, request.by),))
    _, results = await replica.leader.append(command)
    views = await show(replica, ShowRequest(launch=request.launch))
    if results[0].items[0] == Verdict.NOT_OPEN:
        raise NotNow(f"launch {name} is over: {views[-1].state}", "nothing is left to kill")
    return views[-1]
