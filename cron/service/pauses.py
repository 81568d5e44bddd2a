"""Pauses of jobs: how jobs are paused and resumed, and the next times of one, paused or not."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from cron.api.jobs import (
    NextRequest,
    NextTimes,
    PauseReport,
    PauseRequest,
    PauseView,
    ResumeRequest,
)
from cron.api.pattern import no_such_job, select, unknown_job
from cron.calendar.schedule import next_times
from cron.clock import Clock
from cron.errors import CronError, OutcomeUnknown
from cron.leader.applier import StateApplier
from cron.leader.leader import Leader
from cron.service.aside import Aside
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import Paused

PAUSED_AT_ONCE: Final = 5_000
"""Jobs that one entry pauses or resumes: at most 1 MB of names, some milliseconds for a replica."""


class Pauses:
    """The pauses of jobs, on the leader; the next times of a job, on any replica."""

    def __init__(self, leader: Leader, applier: StateApplier, clock: Clock) -> None:
        self._leader = leader
        self._applier = applier
        self._clock = clock
        self._aside = Aside(clock)

    async def pause(self, request: PauseRequest) -> PauseReport:
        """Pause the jobs that a pattern matches now, a portion in an entry.

        Raises:
            UnknownJob: the pattern matches none. OutcomeUnknown: some of them were paused.
        """
        names = await self._select(request.pattern)
        return await self._change(names, c.Pause((), request.reason, request.until_ms, request.by))

    async def resume(self, request: ResumeRequest) -> PauseReport:
        """Resume the jobs that a pattern matches now, a portion in an entry.

        Raises:
            UnknownJob: the pattern matches none. OutcomeUnknown: some of them were resumed.
        """
        names = await self._select(request.pattern)
        now_ms = self._clock.wall_ms()
        going = {name for name in names if self._pause_of(name, now_ms) is None}
        report = await self._change(names, c.Resume((), request.by))
        # A pause whose time is over is removed with the others, but nothing goes on by that.
        changed = [name for name in report.changed if name not in going]
        unchanged = sorted({*report.unchanged, *report.changed} - {*changed})
        return PauseReport(changed=changed, unchanged=unchanged)

    async def next_times(self, request: NextRequest) -> NextTimes:
        """Return the next times of a job, and the pause that holds.

        Raises:
            UnknownJob: there is no such job. LimitExceeded: they take too long to find.
        """
        record = self._applier.state.jobs.get(request.job)
        if record is None or record.job is None:
            raise unknown_job(request.job)
        schedule = record.job.schedule
        now_ms = self._clock.wall_ms()
        after_s = now_ms // 1000 if request.after_s is None else request.after_s
        paused = self._pause_of(request.job, now_ms)
        times_s = await self._aside.run(
            lambda patience: next_times(schedule, after_s, request.count, patience.spend),
            "ask for fewer times, or for those after a later one",
        )
        return NextTimes(
            job=request.job,
            schedule=schedule.text,
            resolved=schedule.resolved,
            zone=schedule.zone,
            times_s=times_s,
            paused=paused is not None,
            pause_reason=paused.reason if paused is not None else "",
            paused_until_ms=paused.until_ms if paused is not None else 0,
        )

    def _pause_of(self, name: str, now_ms: int) -> Paused | None:
        """Return the pause that holds for a job now."""
        record = self._applier.state.jobs.get(name)
        paused = record.paused if record is not None else None
        return paused if paused is not None and paused.holds(now_ms) else None

    async def _change(self, names: list[str], command: c.Pause | c.Resume) -> PauseReport:
        changed: list[str] = []
        unchanged: list[str] = []
        for first in range(0, len(names), PAUSED_AT_ONCE):
            portion = names[first : first + PAUSED_AT_ONCE]
            try:
                one = msgspec.structs.replace(command, jobs=tuple(portion))
                _, results = await self._leader.append(one)
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
        jobs = self._applier.state.jobs.values()
        live = [record.name for record in jobs if record.job is not None]
        names = await asyncio.to_thread(select, pattern, live)
        if names:
            return names
        raise no_such_job(pattern)
