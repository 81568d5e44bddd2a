"""Answers from State and history: what ran, what is open, what an audit finds, and why.

State is asked first and history after it, up to the entry that State stood at: a launch that ends
in between is shown as it stood then, never twice and never not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import nlargest

import msgspec

from cron import limits
from cron.api.jobs import JobsRequest, JobView
from cron.api.launches import AuditReport, HistoryQuery, LaunchView, StoryLine, Violation, WhyReport
from cron.api.pattern import is_wild, no_such_job, unknown_job
from cron.clock import Clock
from cron.errors import InvalidInput, LimitExceeded, UnknownLaunch
from cron.history.around import tell_dead, tell_manual, tell_newer
from cron.history.audit import audit
from cron.history.audited import AuditedJob, Finding, OpenRow, RevisionSpan
from cron.history.census import Census, count
from cron.history.expand import Place, expand, newest_first, place_of
from cron.history.order import Query
from cron.history.resets import judged
from cron.history.store import RowStore
from cron.history.why import PauseState, explain
from cron.job import Schedule
from cron.leader.applier import StateApplier
from cron.limits import HISTORY_ROWS_MAX
from cron.pace import in_turns
from cron.scheduler.gates import Gates
from cron.scheduler.job_filter import JobFilter, select_jobs
from cron.scheduler.why import Queued
from cron.service.views import amended as of_amended
from cron.service.views import of_gate, of_job, of_open, of_row
from cron.state.archive import Stream
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord, LaunchRow, State
from cron.storage.archived_rows import ArchivedRows
from launcher.launch import LaunchState, Reason
from launcher.names import SCHEDULED_S_MAX, LaunchName, parse_launch_name, short_job_name

HELD = "its instants get rows once a leader can read the schedule"
LAST_SHOWN_MAX = 2_000
"""Lists of jobs up to this long show each job's newest launch; it costs a query each."""
HISTORY_JOBS_MAX = 1_000
"""Jobs that one question about history looks through by name: 0.2 s."""
SILENT_S = 30
"""An instant that is older than this and has no row although a leader ticks is a violation."""


NEWER_LOOKED_AT = 100
"""What replaced a launch is looked for among so many rows before its end."""
CLOCKS_APART_MS = 10_000
"""The end of a launch and the next ScheduledTime may be told by two leaders' clocks (rule R10)."""
WINDOW_MAX = 20_000
"""Instants that an audit looks at in one go: about 0.1 s of a thread."""


class Tally:
    """What an audit has counted and found so far."""

    def __init__(self) -> None:
        self.census = Census()
        self.violations: list[Violation] = []
        self.end_ms = 0  # of the monotonic clock: when it gives up
        self.forgotten_s = 0  # newest time in the period of which schedules are not known

    def found(self, job: str, scheduled_s: int, kind: str, message: str) -> None:
        """Note a violation."""
        self.violations.append(
            Violation(job=job, scheduled_s=scheduled_s, kind=kind, message=message)
        )

    def report(self, jobs: int, since_ms: int, until_ms: int) -> AuditReport:
        """Return all of it."""
        counts = msgspec.structs.asdict(self.census)
        return AuditReport(
            jobs=jobs,
            launches=self.census.ran + self.census.manual,
            since_ms=since_ms,
            until_ms=until_ms,
            violations=self.violations,
            forgotten_until_ms=self.forgotten_s * 1000,
            **counts,
        )


class Questions:
    """Reads on the leader. `connected` gives the numbers of the executors that are, `queued` what
    waits in the queues, `awaits_row(number)` why a job's newest instants have no rows yet."""

    def __init__(
        self,
        applier: StateApplier,
        row_store: RowStore,
        clock: Clock,
        archive: ArchivedRows | None = None,
    ) -> None:
        self._applier = applier
        self._row_store = row_store
        self._clock = clock
        self._archive = archive
        self.connected: frozenset[int] = frozenset()
        self.queued: Queued | None = None
        self.awaits_row: Callable[[int], str] = lambda number: ""

    @property
    def _state(self) -> State:
        return self._applier.state

    # ---- launches

    async def history(self, query: HistoryQuery) -> list[LaunchView]:
        """Return launches, open ones included, newest ScheduledTime first.

        Raises:
            LimitExceeded: too many rows would have to be read for one page.
        """
        states = frozenset(_state_of(label) for label in query.states)
        names = self._named(query)
        after = _after(query)
        fitting = [
            row
            for row in self._open_rows(names)
            if (not states or row.state in states) and _in_period(row, query)
        ]
        if after is not None:
            fitting = [row for row in fitting if self._place_of_open(row) < after]
        # A hundred thousand may be open: only what can be shown is told why it waits.
        newest = nlargest(query.limit, fitting, key=self._place_of_open)
        index = self._state.index  # of which `newest` is true, whatever happens meanwhile
        listed = [(self._place_of_open(row), self._of_open(row)) async for row in in_turns(newest)]
        until_ms = query.until_ms - 1 if query.until_ms else SCHEDULED_S_MAX * 1000
        if after is not None:
            until_ms = min(until_ms, after[0] * 1000)
        wanted = Query(None, states or None, query.since_ms, until_ms, query.limit)
        if names is not None and len(names) == 1:
            wanted = msgspec.structs.replace(wanted, job=names[0])
        while True:
            rows, floor = await self._rows_for(wanted, names, is_archive=query.archive)
            if names and not rows and not any(name in self._state.jobs for name in names):
                raise unknown_job(query.job)
            told = [row for row in rows if row.ended_index <= index]
            amended = {} if query.is_all else await self._amended(told)
            ended = await self._newest_ended(told, amended, query, until_ms, (after, floor))
            if len(ended) >= query.limit or floor is None:
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

    async def _rows_for(
        self, wanted: Query, names: list[str] | None, *, is_archive: bool
    ) -> tuple[list[Row], Place | None]:
        """Return the newest rows of a query, and the place down to which they are all there are;
        None where that is the end."""
        rows = await self._newest(wanted, names)
        ends = sorted((_end_place(row) for row in rows), reverse=True)
        floor = ends[-1] if len(rows) >= wanted.limit else None
        if is_archive and self._archive is not None and names != []:
            # The catalog after the index: what is in neither has been let go, and what is in both
            # was retired in between, and is told apart.
            rows += await self._archive.rows(self._state.history, wanted, rows)
            single = sorted(
                (place_of(row) for row in rows if row.kind is not RowKind.RANGE), reverse=True
            )
            if len(single) >= wanted.limit:
                last = single[wanted.limit - 1]
                floor = last if floor is None else max(floor, last)
        return rows, floor

    async def _amended(self, rows: list[Row]) -> dict[Place, Row | None]:
        """Return what is shown instead of rows, by their places: a lost attempt that was amended is
        shown once, by the newest news of it. None: nothing."""
        attempts = {
            (row.job, row.scheduled_s, row.attempt): None
            for row in rows
            if row.kind is RowKind.AMENDMENT or _is_lost(row)
        }
        if not attempts:
            return {}
        found = {place_of(row): row for row in await self._row_store.of_attempts([*attempts])}
        found |= {place_of(row): row for row in rows if row.kind is RowKind.AMENDMENT}
        by_attempt: dict[tuple[str, int, int, int], list[Row]] = {}
        for row in sorted([*found.values()], key=lambda row: (row.ended_index, row.number)):
            if row.kind is RowKind.AMENDMENT or _is_lost(row):
                name = (row.job, row.scheduled_s, row.trigger, row.attempt)
                by_attempt.setdefault(name, []).append(row)
        instead: dict[Place, Row | None] = {}
        for told in by_attempt.values():
            lost = [row for row in told if row.kind is RowKind.ENDED]
            if len(told) > len(lost):
                instead |= {place_of(row): None for row in told}
                instead[place_of(told[-1])] = lost[-1] if lost else told[-1]
        return instead

    async def _newest_ended(
        self,
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
        async for row in in_turns(newest_first(rows, self._schedule_of, since_s, until_s)):
            place = place_of(row)
            if floor is not None and _is_below(place, floor):
                break
            if after is not None and place >= after:
                continue
            instead = amended.get(place, row)
            if instead is not None:
                view = of_row(row) if instead is row else of_amended(instead, row)
                found.append((place, view))
            if len(found) == query.limit:
                break
        return found

    def _place_of_open(self, row: LaunchRow) -> Place:
        name = self._state.by_number[row.number].name
        return (row.scheduled_s, row.attempt, 0, 0, -1, name, row.trigger)

    def _named(self, query: HistoryQuery) -> list[str] | None:
        """Return the jobs that a query names, None for all.

        Raises:
            UnknownJob: it names none. LimitExceeded: it names too many.
            InvalidInput: the archive is asked for more than one of them.
        """
        wanted = JobFilter(query.job, query.tenant, query.pool, query.collection)
        if wanted.is_all:
            return None
        if wanted == JobFilter(query.job) and not is_wild(query.job):
            return [query.job]
        names = select_jobs(self._state.jobs.values(), wanted, is_live=False)
        if not names and wanted == JobFilter(query.job):
            raise no_such_job(query.job)
        if len(names) > HISTORY_JOBS_MAX:
            raise LimitExceeded(
                f"{len(names):,} jobs fit, of which history looks through {HISTORY_JOBS_MAX:,}",
                "choose a narrower pattern or filter, or ask for all jobs",
            )
        if query.archive and len(names) > 1:
            raise InvalidInput(
                f"the archive is read for one job or for all, and {len(names)} fit",
                "name one job, or leave the filter out",
            )
        return names

    async def _newest(self, wanted: Query, names: list[str] | None) -> list[Row]:
        """Return the newest rows of a query, of these jobs (None: as the query says)."""
        if names is None or len(names) == 1:
            return await self._row_store.newest(wanted)
        rows: list[Row] = []
        for name in names:
            rows += await self._row_store.newest(msgspec.structs.replace(wanted, job=name))
            if len(rows) > 2 * wanted.limit:
                rows = nlargest(wanted.limit, rows, key=_end_place)
        return nlargest(wanted.limit, rows, key=_end_place)

    async def show(self, launch: str) -> list[LaunchView]:
        """Return all attempts of a launch, newest last."""
        name = parse_launch_name(launch)
        key = self._state.key_of(name)
        row = self._state.row(key) if key is not None else None
        views = await self._ended(name)
        if row is not None:
            views.append(self._of_open(row))
        if not views:
            raise UnknownLaunch(
                f"launch {name} does not exist",
                f"`raftcron why {short_job_name(name.job)} TIME` says whether one was due",
            )
        return views

    async def _ended(self, name: LaunchName) -> list[LaunchView]:
        at_ms = name.scheduled_s * 1000
        return [
            view
            for row in await self._rows_of(name)
            for view in self._expanded(row, at_ms, at_ms, 1)
        ]

    async def _rows_of(self, name: LaunchName) -> list[Row]:
        return await self._row_store.of_launch(name)

    def _expanded(self, row: Row, since_ms: int, until_ms: int, limit: int) -> list[LaunchView]:
        """Return one view per instant: people expect a row for each, however they are kept."""
        schedule = self._schedule_of(row)
        rows = expand(row, schedule, limit, since_s=-(-since_ms // 1000), until_s=until_ms // 1000)
        return [of_row(single) for single in rows]

    def _schedule_of(self, row: Row) -> Schedule | None:
        """Return the schedule whose instants a range is of, None where it is not known any more."""
        record = self._state.jobs.get(row.job) if row.kind is RowKind.RANGE else None
        spans = reversed(record.spans) if record is not None else ()
        return next((span.schedule for span in spans if span.revision <= row.revision), None)

    def _open_rows(self, names: list[str] | None) -> Iterable[LaunchRow]:
        if names is None:
            return list(self._state.open_rows())
        jobs = self._state.jobs
        return [
            row
            for name in names
            if name in jobs
            for row in self._state.open_of(jobs[name]).values()
        ]

    def _open_row(self, row: LaunchRow, asked_s: int) -> OpenRow:
        """Return an open launch; one of the second that is asked about says what it waits for."""
        executor = self._state.executors.get(row.executor) if row.begun_index else None
        waiting = self._of_open(row).waiting if row.scheduled_s == asked_s else ""
        return _open_row(row, executor.executor if executor is not None else "", waiting)

    def _of_open(self, row: LaunchRow) -> LaunchView:
        return of_open(self._state, row, self.connected, self._clock.wall_ms(), self.queued)

    # ---- jobs

    async def jobs(self, request: JobsRequest) -> list[JobView]:
        """Return the jobs that fit, by name, each with its newest launch and the gate that decides
        over the next."""
        wanted = JobFilter(request.pattern, request.tenant, request.pool, request.collection)
        names = select_jobs(self._state.jobs.values(), wanted, is_live=True)
        if not names and wanted == JobFilter(request.pattern) and request.pattern:
            raise no_such_job(request.pattern)
        gates = Gates(self._state)
        now_ms = self._clock.wall_ms()
        lasts = await self._row_store.last_of_each(names[:LAST_SHOWN_MAX])
        views = []
        for name in names:
            record, last = self._state.jobs[name], lasts.get(name)
            if record.job is not None:
                view = of_row(last) if last is not None else None
                runs = self._state.running.get(record.number, 0)
                shown = of_job(record, record.job, view, now_ms, runs)
                gate = gates.of(record, record.job, now_ms)
                if gate is not None:
                    shown = msgspec.structs.replace(shown, gate=of_gate(gate, gate.number))
                views.append(shown)
        return views

    # ---- proof and explanation

    async def audit(self, job: str, since_ms: int) -> AuditReport:
        """Return what the ledger proves about a job, or about all, since a time."""
        if job and job not in self._state.jobs:
            raise unknown_job(job)
        names = [job] if job else list(self._state.jobs)
        since_s, until_s = -(-since_ms // 1000) - 1, self._clock.wall_ms() // 1000
        tally = Tally()
        if not job and self._state.forgotten_s > since_s:
            tally.forgotten_s = self._state.forgotten_s
        tally.end_ms = self._clock.mono_ms() + limits.AUDIT_MS_MAX
        for done, name in enumerate(names):
            record = self._state.jobs.get(name)
            if record is None:  # State has forgotten it meanwhile
                continue
            if not await self._audit_job(record, since_s, until_s, tally):
                seconds, left = limits.AUDIT_MS_MAX // 1000, len(names) - done
                message = f"{left:,} of {len(names):,} jobs could not be audited within {seconds} s"
                tally.found("", 0, "unproven", f"{message}; name a job, or a later --since")
                break
        for gap in self._row_store.gaps():
            message = (
                f"history after log index {gap.from_index} up to {gap.to_index} "
                "is not on this replica"
            )
            tally.found("", 0, "unproven", message)
        return tally.report(len(names), since_ms, until_s * 1000)

    async def _audit_job(self, record: JobRecord, since_s: int, until_s: int, tally: Tally) -> bool:
        """Audit one job, window by window: its history may be longer than one look can take. Return
        whether the time of the audit was enough for it."""
        audited, open_rows, index = (
            audited_job(record),
            _open(self._state, record),
            self._state.index,
        )
        if audited.forgotten_s > since_s:
            tally.forgotten_s = max(tally.forgotten_s, audited.forgotten_s)
            since_s = audited.forgotten_s
        if reason := await asyncio.to_thread(audited.unreadable, since_s, until_s):
            tally.found(record.name, 0, "unproven", f"{record.name}: {reason}")
            return True
        begin_s = since_s
        while since_s < until_s:
            if self._clock.mono_ms() >= tally.end_ms:
                return False
            end_s = await asyncio.to_thread(_window_end, audited, since_s, until_s)
            rows = await self._row_store.of_job(record.name, since_s, end_s)
            rows = [row for row in rows if row.ended_index <= index]
            rows, judged_open = judged(audited, rows, open_rows, self._state.resets)
            counted, found = await asyncio.to_thread(
                partial(
                    _look, audited, rows, judged_open, since_s, end_s, is_first=since_s == begin_s
                )
            )
            tally.census.add(counted)
            for finding in found:
                if finding.is_violation:
                    tally.found(
                        record.name, finding.scheduled_s, str(finding.kind), finding.message
                    )
            since_s = end_s
        silent = await asyncio.to_thread(_silent, audited, until_s)
        if record.job is not None and silent is not None and not self.awaits_row(record.number):
            tally.found(record.name, silent, "silent", "it is over and nothing accounted for it")
        return True

    async def why(self, job: str, at_s: int, *, is_nearest: bool = False) -> WhyReport:
        """Return why a job did or did not run at an instant, or, with `is_nearest`, at the newest
        instant that is not after it, if there is one."""
        record = self._state.jobs.get(job)
        if record is None:
            raise unknown_job(job)
        audited, index = audited_job(record), self._state.index
        newest_s = audited.newest_at(at_s) if is_nearest else None
        at_s = at_s if newest_s is None else newest_s
        mine = self._state.open_of(record).values()
        open_rows = [self._open_row(row, at_s) for row in mine]
        open_views = [self._of_open(row) for row in mine if row.scheduled_s == at_s]
        open_row = next(
            (row for row in open_rows if (row.scheduled_s, row.trigger) == (at_s, 0)), None
        )
        pause = _pause_of(record)
        found = await self._rows_at(job, at_s, index)
        rows = [row for row in found if not row.trigger]
        told = explain(
            audited, pause, at_s, rows, open_row, self._clock.wall_ms() // 1000, self._state.reigns
        )
        if not found and (reason := audited.unreadable(at_s - 1, at_s)):
            verdict = f"this replica cannot tell whether it is due: {reason}; {HELD}"
            told = msgspec.structs.replace(told, verdict=verdict)
        is_due = record.horizon_s < at_s <= self._clock.wall_ms() // 1000
        if is_due and not found and (held_up := self.awaits_row(record.number)):
            verdict = f"it waits for its turn and has no row yet: {held_up}"
            told = msgspec.structs.replace(told, verdict=verdict)
        newer = await self._newer(rows[-1], open_rows) if rows and open_row is None else ""
        at_ms = at_s * 1000
        views = [view for row in found for view in self._expanded(row, at_ms, at_ms, 1)]
        return WhyReport(
            job=job,
            at_s=at_s,
            verdict=told.verdict
            + newer
            + tell_dead(record.dead.get((at_s, 0)), job, at_s)
            + tell_manual(found, open_rows, job, at_s),
            story=[StoryLine(line_ms, text) for line_ms, text in told.story],
            launches=views + open_views,
        )

    async def _rows_at(self, job: str, at_s: int, index: int) -> list[Row]:
        """Return what history had at `index` of all launches of one second, in log order."""
        rows = await self._row_store.of_job(job, at_s, at_s)
        return sorted(
            (row for row in rows if row.ended_index <= index), key=lambda row: row.ended_index
        )

    async def _newer(self, row: Row, open_rows: list[OpenRow]) -> str:
        """Say which launch replaced an ended one, if one did: it was due when that one ended."""
        if row.reason is not Reason.REPLACED:
            return ""
        since_ms, until_ms = row.scheduled_s * 1000, row.ended_at_ms + CLOCKS_APART_MS
        newest = Query(row.job, None, since_ms, until_ms, NEWER_LOOKED_AT)
        return tell_newer(row, await self._row_store.newest(newest), open_rows)


def audited_job(record: JobRecord) -> AuditedJob:
    """Return a job's past as audits see it."""
    spans = tuple(
        RevisionSpan(span.revision, span.from_s, span.to_s or None, span.schedule, span.overlap)
        for span in record.spans
    )
    return AuditedJob(record.name, spans, record.horizon_s, record.forgotten_s)


def _open(state: State, record: JobRecord) -> list[OpenRow]:
    return [_open_row(row) for row in state.open_of(record).values()]


def _pause_of(record: JobRecord) -> PauseState | None:
    paused = record.paused
    if paused is None:
        return None
    return PauseState(paused.reason, paused.by, paused.since_ms, paused.until_ms)


def _open_row(row: LaunchRow, executor: str = "", waiting: str = "") -> OpenRow:
    return OpenRow(
        scheduled_s=row.scheduled_s,
        trigger=row.trigger,
        attempt=row.attempt,
        state=row.state,
        begun_index=row.begun_index,
        begun_at_ms=row.begun_at_ms,
        launched_index=row.launched_index,
        started_ms=row.started_ms,
        launched_at_ms=row.launched_at_ms,
        revision=row.revision,
        epoch=row.epoch,
        executor=executor,
        by=row.by,
        detail=row.detail,
        waiting=waiting,
        note=row.note,
        is_redriven=row.is_redriven,
    )


def _look(
    audited: AuditedJob,
    rows: list[Row],
    open_rows: list[OpenRow],
    since_s: int,
    until_s: int,
    *,
    is_first: bool,
) -> tuple[Census, list[Finding]]:
    """Count and audit one window of a job's history."""
    counted = count(audited, rows, open_rows, since_s, until_s, is_first=is_first)
    return counted, list(audit(audited, rows, open_rows, since_s, until_s))


def _window_end(audited: AuditedJob, since_s: int, until_s: int) -> int:
    """Return the end of a window that holds few enough instants for one look."""
    end_s = until_s
    while audited.count(since_s, end_s) > WINDOW_MAX and end_s - since_s > 1:
        end_s = since_s + (end_s - since_s) // 2
    return end_s


def _silent(audited: AuditedJob, until_s: int) -> int | None:
    """Return an instant after the horizon that is old by now: the ticks have passed it over."""
    tick = next(audited.instants(audited.horizon_s, until_s - SILENT_S), None)
    return tick.scheduled_s if tick is not None else None


def _end_place(row: Row) -> Place:
    """The place of a row; of a range that of its last instant."""
    return (max(row.scheduled_s, row.last_s), *place_of(row)[1:])


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


def _in_period(row: LaunchRow, query: HistoryQuery) -> bool:
    scheduled_ms = row.scheduled_s * 1000
    return scheduled_ms >= query.since_ms and (not query.until_ms or scheduled_ms < query.until_ms)


def _state_of(label: str) -> LaunchState:
    try:
        return LaunchState[label.upper()]
    except KeyError as error:
        known = ", ".join(state.label for state in LaunchState)
        raise InvalidInput(f"state {label!r} is none of {known}") from error
