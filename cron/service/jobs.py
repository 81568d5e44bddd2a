"""Jobs: the list of them, their next times, and how they are paused and resumed."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import structlog

from cron.access import names_within
from cron.alert_rules import JobAlerts
from cron.api.checks import is_wild, no_such_job, unknown_job
from cron.api.jobs import (
    JobNeeds,
    JobsRequest,
    JobView,
    NextRequest,
    NextTimes,
    PauseReport,
    PauseRequest,
    PauseView,
    ResumeRequest,
)
from cron.api.launches import LaunchView
from cron.calendar.duration import format_duration
from cron.calendar.schedule import next_times, unreadable
from cron.clock import Clock
from cron.crontab.bounds import calendar_text
from cron.crontab.conditions import condition_text
from cron.errors import CronError, LimitExceeded, OutcomeUnknown
from cron.job import Bounds, Job
from cron.pace import in_turns
from cron.scheduler.gates import Gates
from cron.scheduler.job_filter import JobFilter, select_jobs
from cron.service.gates import of_gate
from cron.service.launches import of_row
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.letters import count_of
from cron.state.outcome import Verdict
from cron.state.state import JobRecord, Paused

_log = structlog.get_logger()

LAST_SHOWN_MAX = 2_000
"""Lists of jobs up to this long show each job's newest launch; it costs a query each."""
NEXT_SHOWN = 3
"""Times at which a job is launched next, in the list of jobs."""
PAYLOAD_SHOWN_BYTES = 1_000
"""Of each job's payload, in lists of a hundred thousand jobs."""
NEXT_AT_ONCE: Final = 500
"""Jobs of one portion that skip their next instants, which may all differ: an entry for each."""
PAUSED_AT_ONCE: Final = 5_000
"""Jobs that one entry pauses or resumes: at most 1 MB of names, some milliseconds for a replica."""


def of_job(
    record: JobRecord,
    job: Job,
    last: LaunchView | None,
    now_ms: int,
    runs: int = 0,
    *,
    shows_payload: bool = True,
) -> JobView:
    """Return a job as it is shown; `runs`: how many of its launches do."""
    paused = _pause_of(record, now_ms)
    bounds = job.schedule.bounds or Bounds()
    return JobView.of(
        record,
        job,
        job.schedule,
        bounds,
        job.work,
        schedule=job.schedule.text,
        next_s=_next_s(record, job, paused, now_ms),
        calendar=calendar_text(bounds),
        overlap=job.overlap.name.lower(),
        catchup=job.catchup.name.lower(),
        on_lost=job.on_lost.name.lower(),
        paused=paused is not None,
        pause_reason=paused.reason if paused else "",
        paused_by=paused.by if paused else "",
        paused_until_ms=paused.until_ms if paused else 0,
        command=job.work.argv[-1] if job.work.argv else "",
        running=runs,
        last=last,
        needs=_needs(record, job, shows_payload=shows_payload),
        held=unreadable(job.schedule),
        alerts=alert_texts(job.alerts) if job.alerts else [],
    )


def alert_texts(alerts: JobAlerts) -> list[str]:
    """Return the options of alerts of one job as people read them."""
    to = f" to {', '.join(alerts.to)}" if alerts.to else ""
    again = f", again after each {format_duration(alerts.remind_s)}" if alerts.remind_s else ""
    texts = [f"{condition_text(one)}{to}{again}" for one in alerts.conditions]
    return [*texts, *(f"output to {one}" for one in alerts.mail_to)]


def _needs(record: JobRecord, job: Job, *, shows_payload: bool) -> JobNeeds:
    payload = job.work.payload
    return JobNeeds.of(
        job,
        job.work,
        job.retry,
        payload=payload[:PAYLOAD_SHOWN_BYTES].decode(errors="replace") if shows_payload else "",
        payload_hidden=bool(payload) and not shows_payload,
        retry_codes=list(job.retry.retry_codes),
        fatal_codes=list(job.retry.fatal_codes),
        after=list(job.after),
        after_any=list(job.after_any),
        secrets=[":".join(secret) for secret in job.work.secrets],
        dead=count_of(record),
    )


def _next_s(record: JobRecord, job: Job, paused: Paused | None, now_ms: int) -> list[int]:
    """The next times at which the job is launched: none within a pause."""
    after_s = max(now_ms // 1000, record.horizon_s)
    if paused is not None:
        if not paused.until_ms:
            return []
        after_s = max(after_s, -(-paused.until_ms // 1000) - 1)
    return next_times(job.schedule, after_s, NEXT_SHOWN)


async def pause(replica: Replica, request: PauseRequest) -> PauseReport:
    """Pause the jobs that a pattern matches now, a portion in an entry.

    Raises:
        UnknownJob: the pattern matches none. OutcomeUnknown: some of them were paused.
    """
    if request.is_next:
        return await _pause_next(replica, request)
    names, left = await _matching(replica, request)
    command = c.Pause((), request.reason, request.until_ms, request.by)
    return await _change(replica, names, command, left)


async def _pause_next(replica: Replica, request: PauseRequest) -> PauseReport:
    """Pause jobs until just after the next instant of each: those with the same one together. A job
    with a longer pause, or without an instant to come, is left as it is: to ask twice skips one.

    Raises:
        UnknownJob: the pattern matches none. OutcomeUnknown: some of them were paused.
    """
    names, left = await _matching(replica, request, NEXT_AT_ONCE)
    now_ms, known = replica.clock.wall_ms(), replica.state.jobs
    together: dict[int, list[str]] = {}
    async for name in in_turns(names):
        record = known.get(name)
        job = record.job if record is not None else None
        if record is not None and job is not None:
            times_s = _next_s(record, job, None, now_ms)
            together.setdefault(times_s[0] * 1000 + 1 if times_s else 0, []).append(name)
    unchanged, changed = together.pop(0, []), list[str]()
    for until_ms, some in together.items():
        command = c.Pause((), request.reason, until_ms, request.by)
        try:
            report = await _change(replica, some, command, left)
        except CronError as error:
            if not changed:
                raise
            text = f"it is done for {len(changed)} of {len(names)} jobs, and then: {error}"
            raise OutcomeUnknown(text, "repeat it: a job that is paused stays so") from error
        changed += report.changed
        unchanged += report.unchanged
    pauses = _pauses(replica, sorted(changed + unchanged))
    return PauseReport(
        changed=sorted(changed), unchanged=sorted(unchanged), pauses=pauses, left=left
    )


async def resume(replica: Replica, request: ResumeRequest) -> PauseReport:
    """Resume the jobs that a pattern matches now, a portion in an entry.

    Raises:
        UnknownJob: the pattern matches none. OutcomeUnknown: some of them were resumed.
    """
    names, left = await _matching(replica, request)
    now_ms = replica.clock.wall_ms()
    going = {name for name in names if _pause_of(replica.state.jobs.get(name), now_ms) is None}
    report = await _change(replica, names, c.Resume((), request.by), left)
    # A pause whose time is over is removed with the others, but nothing goes on by that.
    changed = [name for name in report.changed if name not in going]
    unchanged = sorted({*report.unchanged, *report.changed} - {*changed})
    return PauseReport(changed=changed, unchanged=unchanged, left=left)


async def _matching(
    replica: Replica, request: PauseRequest | ResumeRequest, most: int | None = None
) -> tuple[list[str], int]:
    """Return the jobs that a request is about, and how many come after this portion of them."""
    records = list(replica.state.jobs.values())
    wanted = JobFilter(request.pattern)
    names = await asyncio.to_thread(select_jobs, records, wanted, is_live=True)
    if not names and not request.after:
        raise no_such_job(request.pattern)
    names = names[bisect_right(names, request.after) :]
    portion = names[: most or PAUSED_AT_ONCE] if request.is_portion else names
    return portion, len(names) - len(portion)


async def _change(
    replica: Replica, names: list[str], command: c.Pause | c.Resume, left: int
) -> PauseReport:
    """Append `command` for the jobs, a portion in an entry; `left` more are asked for later."""
    changed: list[str] = []
    unchanged: list[str] = []
    for first in range(0, len(names), PAUSED_AT_ONCE):
        portion = names[first : first + PAUSED_AT_ONCE]
        try:
            one = msgspec.structs.replace(command, jobs=tuple(portion))
            _, results = await replica.leader.append(one)
        except CronError as error:
            if not first:
                raise
            raise OutcomeUnknown(
                f"it is done for {first} of {len(names)} jobs, and then: {error}",
                "repeat it: what is done stays as it is",
            ) from error
        for name, verdict in zip(portion, results[0].items, strict=True):
            (changed if verdict == Verdict.ACCEPTED else unchanged).append(name)
        if len(portion) < len(names) + left:
            what = "jobs.paused" if isinstance(command, c.Pause) else "jobs.resumed"
            _log.info(
                what, jobs=first + len(portion), left=len(names) - first - len(portion) + left
            )
    pauses = _pauses(replica, unchanged)
    return PauseReport(changed=changed, unchanged=unchanged, pauses=pauses, left=left)


def _pauses(replica: Replica, names: list[str]) -> list[PauseView]:
    """Return the pauses that hold for these jobs."""
    now_ms = replica.clock.wall_ms()
    return [
        PauseView.of(paused, job=name)
        for name in names
        if (paused := _pause_of(replica.state.jobs.get(name), now_ms)) is not None
    ]


async def next_times_of(replica: Replica, request: NextRequest) -> NextTimes:
    """Return the next times of a job, and the pause that holds.

    Raises:
        UnknownJob: there is no such job. LimitExceeded: they take too long to find.
    """
    record = replica.state.jobs.get(request.job)
    if record is None or record.job is None:
        raise unknown_job(request.job)
    job, schedule = record.job, record.job.schedule
    now_ms = replica.clock.wall_ms()
    after_s = now_ms // 1000 if request.after_s is None else request.after_s
    paused = _pause_of(record, now_ms)
    times_s = await replica.aside.run(
        lambda patience: next_times(schedule, after_s, request.count, patience.spend),
        "ask for fewer times, or for those after a later one",
    )
    return NextTimes.of(
        schedule,
        job=request.job,
        schedule=schedule.text,
        times_s=times_s,
        paused=paused is not None,
        pause_reason=paused.reason if paused is not None else "",
        paused_until_ms=paused.until_ms if paused is not None else 0,
        follows=list(job.follows),
    )


async def listed(replica: Replica, request: JobsRequest) -> list[JobView]:
    """Return the jobs that fit, by name, each with its newest launch and the gate that decides over
    the next.

    Raises:
        UnknownJob: a pattern alone is named, and matches none.
    """
    wanted = JobFilter(
        request.pattern,
        request.tenant,
        request.pool,
        request.collection,
        tuple(request.within),
    )
    if request.pattern and not is_wild(request.pattern):  # a name: no look at all jobs
        known = replica.state.jobs.get(request.pattern)
        names = select_jobs([known] if known is not None else [], wanted, is_live=True)
    else:
        names = select_jobs(replica.state.jobs.values(), wanted, is_live=True)
    is_alone = wanted == JobFilter(request.pattern, within=wanted.within)
    if not names and is_alone and request.pattern:
        raise no_such_job(request.pattern)
    gates, is_seen = Gates(replica.state), names_within(request.payloads)
    now_ms = replica.clock.wall_ms()
    lasts = await replica.row_store.last_of_each(names[:LAST_SHOWN_MAX])
    views, running = [], replica.state.count_running()
    async for name in in_turns(names):
        record, last = replica.state.jobs.get(name), lasts.get(name)
        if record is not None and record.job is not None:
            view = of_row(last) if last is not None else None
            shown = of_job(
                record,
                record.job,
                view,
                now_ms,
                running[record.number],
                shows_payload=is_seen is None or is_seen(name),
            )
            gate = gates.of(record, record.job, now_ms)
            if gate is not None:
                shown = msgspec.structs.replace(shown, gate=of_gate(gate))
            views.append(shown)
    return views


def _pause_of(record: JobRecord | None, now_ms: int) -> Paused | None:
    """Return the pause that holds for a job now."""
    paused = record.paused if record is not None else None
    return paused if paused is not None and paused.holds(now_ms) else None


ASIDE_MS_MAX: Final = 2_000
"""How long one request may compute; 10,000 times of a common schedule take some 50 ms."""
AT_ONCE: Final = 2
"""Requests that compute at once: each takes its share of the interpreter from the loop."""
_LOOK_EVERY: Final = 64

T = TypeVar("T")


class Patience:
    """The time that one request may compute. Its work calls `spend` for each row."""

    def __init__(self, clock: Clock, hint: str) -> None:
        self._clock = clock
        self._hint = hint
        self._end_ms = clock.mono_ms() + ASIDE_MS_MAX
        self.rows = 0

    def spend(self) -> None:
        """Count a row.

        Raises:
            LimitExceeded: the time is over.
        """
        self.rows += 1
        if self.rows % _LOOK_EVERY == 1 and self._clock.mono_ms() > self._end_ms:
            raise LimitExceeded(
                f"after {ASIDE_MS_MAX / 1000:g} s only {self.rows - 1:,} were found", self._hint
            )


class Aside:
    """Threads for what requests compute, a few at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self, work: Callable[[Patience], T], hint: str) -> T:
        """Return what the work returns, computed in a thread.

        `hint` says what to ask for instead where the time is not enough.

        Raises:
            LimitExceeded: the time is over; nothing is answered.
        """
        async with self._turns:
            return await asyncio.to_thread(work, Patience(self._clock, hint))
