"""Making past instants due again: which of a period may be, and the entry that does it (R1)."""

from __future__ import annotations

import asyncio

from cron.api.checks import unknown_job
from cron.api.launches import BackfillReport, BackfillRequest
from cron.calendar.schedule import compile as compile_schedule
from cron.calendar.schedule import unreadable
from cron.errors import Conflict, TooManyTimes
from cron.history.audited import AuditedJob
from cron.job import Schedule
from cron.launch_state import REOPENABLE, LaunchState
from cron.limits import BACKFILL_MAX
from cron.service.proofs import audited_job
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.rows import Row, RowKind
from cron.state.state import State
from launcher.protocol.names import LaunchName, format_time

ATTEMPTS = 5


async def backfill(replica: Replica, request: BackfillRequest) -> BackfillReport:
    """Reopen what did not succeed in [from_s, to_s), or say what would be.

    Raises:
        UnknownJob, TooManyTimes: nothing happened.
        Conflict: launches of the job kept ending meanwhile; nothing happened.
    """
    for _ in range(ATTEMPTS):
        items, read_at = await _items(replica, request)
        applied_s = audited_job(replica.state.jobs[request.job]).revisions[0].from_s
        report = _report(request, [item.key[1] for item in items], applied_s)
        if request.is_dry_run or not items:
            return report
        command = c.Reopen(tuple(items), read_at, request.by or "somebody")

        def build(state: State, _now_ms: int, command: c.Reopen = command) -> list[c.Command]:
            job = state.jobs[request.job].job if request.job in state.jobs else None
            # Applying refuses what is open meanwhile, and all of it if a launch of the job ended.
            count = sum(1 for item in command.items if state.row(item.key) is None)
            if job is not None and count:
                replica.leader.indexes.queues.admission.admit(request.job, job, count)
            return [command]

        _, results = await replica.leader.submit(build)
        verdicts = results[0].items
        if any(verdict == Verdict.STALE_REVISION for verdict in verdicts):
            continue  # a launch of the job ended since history was read: read it again
        pairs = zip(items, verdicts, strict=True)
        reopened = [item.key[1] for item, verdict in pairs if verdict == Verdict.ACCEPTED]
        return _report(request, reopened, applied_s)
    raise Conflict(
        f"launches of job {request.job} keep ending while its history is read", "try again"
    )


def _report(request: BackfillRequest, at_s: list[int], applied_s: int) -> BackfillReport:
    """Return the report about the launches of a job, oldest first, that was first applied at
    `applied_s`."""
    before = sum(one_s <= applied_s for one_s in at_s)
    return BackfillReport(
        launches=[str(LaunchName(request.job, one_s)) for one_s in at_s],
        is_dry_run=request.is_dry_run,
        before=before,
        applied_s=applied_s if before else 0,
    )


async def _items(replica: Replica, request: BackfillRequest) -> tuple[list[c.ReopenItem], int]:
    """Return what may be reopened, and the log index at which that is true."""
    state = replica.state
    record = state.jobs.get(request.job)
    if record is None or record.job is None:
        raise unknown_job(request.job)
    read_at = state.index
    until_s = min(request.to_s - 1, record.horizon_s)
    job = audited_job(record)
    is_open = {at_s for at_s, trigger in state.open_of(record) if not trigger}
    # Up to BACKFILL_MAX instants of any schedule: a third of a second, beside the loop.
    instants = await asyncio.to_thread(
        _instants, job, record.job.schedule, request.from_s - 1, until_s
    )
    newest: dict[int, Row] = {}
    for row in await replica.row_store.of_job(request.job, request.from_s - 1, until_s):
        _note(newest, row, instants, read_at)
    if len(instants) > BACKFILL_MAX:
        raise TooManyTimes(f"more than {BACKFILL_MAX} launches", "choose a shorter period")
    missing = {scheduled_s for scheduled_s in instants if scheduled_s not in is_open}
    _check_history(job, sorted(missing - set(newest)), state.forgotten_s)
    items = [
        _item(record.number, scheduled_s, local_min, newest.get(scheduled_s))
        for scheduled_s, local_min in sorted(instants.items())
        if scheduled_s not in is_open
    ]
    return [item for item in items if item is not None], read_at


def _instants(job: AuditedJob, schedule: Schedule, after_s: int, until_s: int) -> dict[int, int]:
    """Return the instants in (after, until] with their local times: those of the schedules of
    their time, and before the job was first applied those of the present one.

    Raises:
        TooManyTimes: more than BACKFILL_MAX.
    """
    if reason := unreadable(schedule) or job.unreadable(after_s, until_s):
        raise Conflict(
            f"{job.name} cannot be backfilled under this leader: {reason}",
            "let a replica with a newer tzdata lead, or update tzdata on this one",
        )
    first_s = job.revisions[0].from_s
    before = compile_schedule(schedule).between(
        after_s, max(after_s, min(until_s, first_s)), limit=BACKFILL_MAX
    )
    if len(before) + job.count(after_s, max(after_s, until_s)) > BACKFILL_MAX:
        raise TooManyTimes(f"more than {BACKFILL_MAX} launches", "choose a shorter period")
    ticks = [*before, *job.instants(after_s, until_s)]
    return {tick.scheduled_s: tick.local_min for tick in ticks}


def _check_history(job: AuditedJob, without_row: list[int], forgotten_s: int) -> None:
    """Refuse where an instant must have a row (rule R1) and this replica's history has none.

    It may have succeeded; what cannot be known is not repeated (promise 2). So too where the job's
    own schedules are forgotten, and before the job, where one of its name may be (`forgotten_s`).
    """
    for scheduled_s in without_row:
        is_before = scheduled_s <= job.revisions[0].from_s
        if scheduled_s <= job.forgotten_s or (is_before and scheduled_s <= forgotten_s):
            raise Conflict(
                f"what ran at {format_time(scheduled_s)} under the name {job.name} is forgotten: "
                "it cannot be known whether the launch ran",
                "choose a later period, or run it under another name",
            )
        if scheduled_s <= job.horizon_s and job.tick_at(scheduled_s) is not None:
            raise Conflict(
                f"history of {job.name} at {format_time(scheduled_s)} is not on this replica: it "
                "cannot be known whether it ran",
                "choose a later period, or let another replica lead",
            )


def _note(newest: dict[int, Row], row: Row, instants: dict[int, int], read_at: int) -> None:
    """Keep the newest attempt of each instant; a range stands for each of its instants.

    A late report takes the place of what was lost: it may tell of a success (rule R9).
    """
    if row.trigger or row.ended_index > read_at:
        return
    if row.kind is RowKind.RANGE:
        for scheduled_s in instants:
            if row.scheduled_s <= scheduled_s <= row.last_s:
                newest.setdefault(scheduled_s, row)
        return
    instants.setdefault(row.scheduled_s, row.local_min)
    known = newest.get(row.scheduled_s)
    if known is None or known.attempt <= row.attempt:
        newest[row.scheduled_s] = row


def _item(number: int, scheduled_s: int, local_min: int, row: Row | None) -> c.ReopenItem | None:
    """Return what reopens an instant; None where it ran well or is not over."""
    state = row.state if row is not None else None
    if state is not None and state not in REOPENABLE:
        return None
    attempt = row.attempt if row is not None else 0
    was = LaunchState(state) if state is not None else 0
    return c.ReopenItem((number, scheduled_s, 0), local_min, int(was), attempt)
