"""The daemon behind the API: every question and every change that a user may ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from cron.api.pattern import no_such_job, select, unknown_job
from cron.api.snapshot_views import SaveReport, SnapshotsReport, SnapshotView
from cron.api.views import (
    ApplyReport,
    ApplyRequest,
    AuditReport,
    BackfillReport,
    BackfillRequest,
    ClockReport,
    ClockRequest,
    HistoryQuery,
    JobsRequest,
    JobView,
    LaunchView,
    NextTimes,
    OutputQuery,
    OutputView,
    PauseReport,
    PauseRequest,
    PauseView,
    RemoveReport,
    RemoveRequest,
    ReplaceReport,
    ReplaceRequest,
    StatusRow,
    WhyReport,
)
from cron.calendar.schedule import next_times
from cron.clock import Clock
from cron.errors import CronError, NotNow, OutcomeUnknown, UnknownLaunch
from cron.history.store import RowStore
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.leader.requests import appending
from cron.scheduler.why import AskQueued, asked
from cron.service.aside import Aside
from cron.service.backfill import Backfills
from cron.service.catalog import Catalog
from cron.service.logs import Logs
from cron.service.pool_service import PoolService
from cron.service.questions import Questions
from cron.service.replacing import Replacing
from cron.service.resetting import Resetting
from cron.service.roster import Roster
from cron.service.saving import Saving
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import Paused, State
from launcher.launch import Reason
from launcher.names import LaunchName, parse_launch_name

PAUSED_AT_ONCE: Final = 5_000
"""Jobs that one entry pauses or resumes: at most 1 MB of names, some milliseconds for a replica."""


def _no_queues() -> None:
    """Say that there are no queues here."""


class Operations(msgspec.Struct, frozen=True):
    """What operators do to a cell beside its jobs, and see of it: `queued` gives the queues while
    the replica leads."""

    replacing: Replacing
    resetting: Resetting
    saving: Saving
    queued: AskQueued = _no_queues


class CellService(PoolService):
    """The Backend of one replica (see `cron.api.backend`)."""

    def __init__(
        self,
        *,
        leader: Leader,
        applier: StateApplier,
        row_store: RowStore,
        roster: Roster,
        clock: Clock,
        zone: str,
        operations: Operations,
    ) -> None:
        super().__init__(leader, applier, clock, operations.queued)
        self._row_store = row_store
        self._roster = roster
        self._queued = operations.queued
        self._replacing = operations.replacing
        self._resetting = operations.resetting
        self._saving = operations.saving
        self._catalog = Catalog(leader, zone)
        self._questions = Questions(applier, row_store, clock, operations.saving.archive)
        self._logs = Logs(leader.pool, self._questions, operations.saving.outputs)
        self._backfills = Backfills(leader, applier, row_store)
        self._aside = Aside(clock)

    @property
    def _state(self) -> State:
        return self._applier.state

    def _lead(self) -> None:
        super()._lead()
        self._questions.connected = self._leader.executors.connected()
        self._questions.queued = asked(self._queued())
        self._questions.awaits_row = self._leader.awaits_row

    async def _read(self, *, may_be_stale: bool = False) -> None:
        await super()._read(may_be_stale=may_be_stale)
        self._questions.connected = self._leader.executors.connected()
        self._questions.queued = asked(self._queued())
        self._questions.awaits_row = self._leader.awaits_row
        if self._leader.epoch is None:
            # Only a leader has connections: whether an executor has one is not what is asked here.
            self._questions.connected = frozenset(self._state.executors)

    # ---- changes

    async def put_jobs(self, request: ApplyRequest) -> ApplyReport:
        """Apply files."""
        self._lead()
        return await self._catalog.put(request, self._state, self._clock.wall_ms() // 1000)

    async def remove_jobs(self, request: RemoveRequest) -> RemoveReport:
        """Remove jobs by name."""
        self._lead()
        return await self._catalog.remove(request, self._state)

    async def trigger(self, job: str, request_id: str, by: str) -> LaunchView:
        """Launch a job by hand."""
        self._lead()

        def build(state: State, _now_ms: int) -> list[c.Command]:
            # A request that was accepted before is answered again, whatever waits by now.
            record = state.jobs.get(job) if request_id not in state.requests else None
            if record is not None and record.job is not None:
                self._leader.indexes.queues.admission.admit(job, record.job)
            return [c.Trigger(job, request_id, by)]

        _, results = await self._leader.submit(build)
        result = results[0]
        if result.verdict is Verdict.UNKNOWN_JOB:
            raise unknown_job(job)
        name = str(LaunchName(job, result.scheduled_s, result.number))
        return (await self._questions.show(name))[-1]

    async def pause(self, request: PauseRequest) -> PauseReport:
        """Pause the jobs that a pattern matches now, a portion in an entry.

        Raises:
            OutcomeUnknown: some of them were paused.
        """
        names = await self._select(request.pattern)
        return await self._pause(names, c.Pause((), request.reason, request.until_ms, request.by))

    async def resume(self, pattern: str, by: str) -> PauseReport:
        """Resume the jobs that a pattern matches now, a portion in an entry.

        Raises:
            OutcomeUnknown: some of them were resumed.
        """
        names = await self._select(pattern)
        now_ms = self._clock.wall_ms()
        going = {name for name in names if self._pause_of(name, now_ms) is None}
        report = await self._pause(names, c.Resume((), by))
        # A pause whose time is over is removed with the others, but nothing goes on by that.
        changed = [name for name in report.changed if name not in going]
        unchanged = sorted({*report.unchanged, *report.changed} - {*changed})
        return PauseReport(changed=changed, unchanged=unchanged)

    def _pause_of(self, name: str, now_ms: int) -> Paused | None:
        """Return the pause that holds for a job now."""
        record = self._state.jobs.get(name)
        paused = record.paused if record is not None else None
        return paused if paused is not None and paused.holds(now_ms) else None

    async def _pause(self, names: list[str], command: c.Pause | c.Resume) -> PauseReport:
        changed: list[str] = []
        unchanged: list[str] = []
        for first in range(0, len(names), PAUSED_AT_ONCE):
            portion = names[first : first + PAUSED_AT_ONCE]
            try:
                build = appending(msgspec.structs.replace(command, jobs=tuple(portion)))
                _, results = await self._leader.submit(build)
            except CronError as error:
                if not first:
                    raise
                raise OutcomeUnknown(
                    f"it is done for {first} of {len(names)} jobs, and then: {error}",
                    "repeat it: what is done stays as it is",
                ) from error
            for name, verdict in zip(portion, results[0].items, strict=True):
                (changed if verdict == Verdict.ACCEPTED else unchanged).append(name)
        now_ms = self._clock.wall_ms()
        pauses = [
            PauseView(job=name, until_ms=pause.until_ms, by=pause.by, reason=pause.reason)
            for name in unchanged
            if (pause := self._pause_of(name, now_ms)) is not None
        ]
        return PauseReport(changed=changed, unchanged=unchanged, pauses=pauses)

    async def _select(self, pattern: str) -> list[str]:
        self._lead()
        live = [record.name for record in self._state.jobs.values() if record.job is not None]
        names = await asyncio.to_thread(select, pattern, live)
        if names:
            return names
        raise no_such_job(pattern)

    async def backfill(self, request: BackfillRequest) -> BackfillReport:
        """Make past instants due again."""
        self._lead()
        return await self._backfills.run(request)

    async def kill(self, launch: str, by: str) -> LaunchView:
        """Cancel a launch; its kill is sent once that is committed (rule R8)."""
        self._lead()
        name = parse_launch_name(launch)
        key = self._state.key_of(name)
        if key is None:
            raise UnknownLaunch(f"launch {name} does not exist", "`raftcron history` lists them")
        command = c.Cancel((c.CancelItem(key, Reason.KILLED, by),))
        _, results = await self._leader.submit(appending(command))
        views = await self._questions.show(launch)
        if results[0].items[0] == Verdict.NOT_OPEN:
            raise NotNow(f"launch {name} is over: {views[-1].state}", "nothing is left to kill")
        return views[-1]

    async def replace(self, request: ReplaceRequest) -> ReplaceReport:
        """Open an id of the cell for a new disk."""
        self._lead()
        return await self._replacing.replace(request)

    async def reset_clock(self, request: ClockRequest) -> ClockReport:
        """Set the cell's time back to this leader's clock."""
        self._lead()
        await self._roster.poll()  # a clock that was set right a moment ago counts
        return await self._resetting.reset(request)

    async def save_snapshot(self, by: str) -> SaveReport:
        """Have a snapshot taken."""
        self._lead()
        return await self._saving.save()

    # ---- reads

    async def snapshots(self, *, is_remote: bool) -> SnapshotsReport:
        """List snapshots."""
        await self._read()
        return await self._saving.list(is_remote=is_remote)

    async def verify_snapshots(self, name: str, *, is_remote: bool) -> AsyncIterator[SnapshotView]:
        """Read snapshots back."""
        await self._read()
        async for view in self._saving.verify(name, is_remote=is_remote):
            yield view

    async def segment(self, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return a piece of a segment on this disk."""
        return await self._saving.segment(name, offset, limit)

    async def jobs(self, wanted: JobsRequest) -> list[JobView]:
        """List jobs."""
        await self._read(may_be_stale=True)
        return await self._questions.jobs(wanted)

    async def next_times(self, job: str, after_s: int | None, count: int) -> NextTimes:
        """List a job's next times."""
        await self._read(may_be_stale=True)
        record = self._state.jobs.get(job)
        if record is None or record.job is None:
            raise unknown_job(job)
        schedule = record.job.schedule
        now_ms = self._clock.wall_ms()
        begin_s = now_ms // 1000 if after_s is None else after_s
        paused = self._pause_of(job, now_ms)
        times_s = await self._aside.run(
            lambda patience: next_times(schedule, begin_s, count, patience.spend),
            "ask for fewer times, or for those after a later one",
        )
        return NextTimes(
            job=job,
            schedule=schedule.text,
            resolved=schedule.resolved,
            zone=schedule.zone,
            times_s=times_s,
            paused=paused is not None,
            pause_reason=paused.reason if paused is not None else "",
            paused_until_ms=paused.until_ms if paused is not None else 0,
        )

    async def history(self, query: HistoryQuery) -> list[LaunchView]:
        """List launches, newest first."""
        await self._read(may_be_stale=True)
        return await self._questions.history(query)

    async def show(self, launch: str) -> list[LaunchView]:
        """Return all attempts of a launch."""
        await self._read(may_be_stale=True)
        return await self._questions.show(launch)

    async def output(self, query: OutputQuery) -> OutputView:
        """Return a part of what a launch wrote."""
        await self._read()
        return await self._logs.read(query)

    async def why(self, job: str, at_s: int, is_nearest: bool) -> WhyReport:
        """Explain an instant."""
        await self._read(may_be_stale=True)
        return await self._questions.why(job, at_s, is_nearest=is_nearest)

    async def audit(self, job: str, since_ms: int) -> AuditReport:
        """Prove a period."""
        await self._read(may_be_stale=True)
        return await self._questions.audit(job, since_ms)

    async def status(self) -> list[StatusRow]:
        """Return all replicas and executors."""
        return await self._roster.status()

    async def peer_status(self) -> StatusRow:
        """Return this replica alone."""
        return self._roster.own()
