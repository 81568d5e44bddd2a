"""From files to a change of jobs: what is new, what changes, where `?` goes, and the entries.

The leader alone chooses places for `?` and writes its choice into the entry; if the jobs were
changed meanwhile it chooses anew (rule R2).
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec
import structlog

from cron.access import names_within
from cron.alert_rules import Channel, ChannelKind
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    JobChange,
)
from cron.calendar import spread
from cron.calendar.crowding import Crowding, crowding
from cron.calendar.schedule import Ticks, next_times, unreadable
from cron.calendar.schedule import compile as compile_schedule
from cron.crontab.default_name import Unnamed, is_same_work, kept
from cron.crontab.jobs import differences
from cron.crontab.reader import read_together
from cron.crontab.reading import Problems
from cron.errors import (
    Conflict,
    CronError,
    CrontabError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    OutcomeUnknown,
    Problem,
    RevisionConflict,
)
from cron.job import Job
from cron.launch_state import LaunchState
from cron.limits import (
    JOBS_MAX,
    JOBS_MEASURED_MAX,
    JOBS_PER_ENTRY_BYTES_MAX,
    PRUNE_WITHOUT_YES_MAX,
    WORK_BYTES_MAX,
)
from cron.scheduler.plan import REMOVED_MAX
from cron.scheduler.policy import Given, account_for, as_lines
from cron.service import access, arrivals, bounds, following, remarks
from cron.service.replica import Replica
from cron.service.usual import NONE_RUNS_LONG, JobLoad, usual_times
from cron.state import commands as c
from cron.state.alerts import SELF
from cron.state.codec import encode_work
from cron.state.outcome import Verdict
from cron.state.state import JobRecord, State
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec

_log = structlog.get_logger()

ATTEMPTS = 5
REMOVED_AT_ONCE = 1_000
"""Jobs that one entry removes, of many: about 30 ms of the loop, with all that follows from it."""
OWN = f"{SELF}/"
"""How the names of the cell's own jobs and sources begin."""
_DAY_S = 86_400
_NEXT_SHOWN = 3


class Declared(msgspec.Struct):
    """What one source declares: its jobs, not placed yet, and the file of each by its name."""

    source: str
    jobs: list[Job]
    files: dict[str, str] = {}
    unnamed: dict[str, Unnamed] = {}
    """The jobs that have no name in their files, by the name that they got."""
    paused: dict[str, str] = {}
    """The jobs that arrive paused where they are new, each with the reason."""
    is_within: Callable[[str], bool] | None = None
    """Which jobs the caller may change; None for all. Others of the source stay as they are."""


class Diff(msgspec.Struct):
    """A change against catalog revision `base`; the jobs in it are placed."""

    source: str
    base: int
    changed: list[Job]
    removed: list[str]
    changes: list[JobChange]
    left: list[str] = []
    """Jobs of the source that it declares no more, and that are not removed."""
    later: int = 0
    """Jobs that the caller removes afterwards, as the changes say."""
    placed: list[Job] = []
    """All jobs that the source declares."""
    crowding: Crowding | None = None
    """The minute in which most of them are due, if they are too many."""
    paused: dict[str, list[str]] = {}
    """Jobs that are new and arrive paused, by the reason."""


def read_declared(request: ApplyRequest, zone: str) -> tuple[list[Declared], list[Problem]]:
    """Return what the files declare by source, and the warnings.

    Raises:
        CrontabError: with all errors of all files.
        NotAllowed: they declare a job that the caller may not change, or may not have run as its
            user.
    """
    by_source: dict[str, Declared] = {}
    problems: list[Problem] = []
    files = [(file.name, file.content) for file in request.files]
    for name, reading in read_together(
        files, system=request.system, zone=zone, tenant=request.tenant
    ):
        # Notes are for `raftcron lint`: nothing has to be done about them.
        problems += [problem for problem in reading.problems if not problem.is_note]
        source = request.source or name.rsplit("/", 1)[-1]
        declared = by_source.setdefault(source, Declared(source, []))
        declared.jobs += reading.jobs
        declared.unnamed |= reading.unnamed
        declared.paused |= reading.paused
        declared.files.update((job.name, name) for job in reading.jobs)
    if any(not problem.is_warning for problem in problems):
        raise CrontabError(problems)
    is_within = names_within(request.within)
    for one in by_source.values():
        access.check_users(one.jobs, request)
        one.is_within = is_within
        beyond = [job.name for job in one.jobs if is_within is not None and not is_within(job.name)]
        if beyond:
            text = f"job {beyond[0]} is not within {', '.join(request.within)}"
            raise NotAllowed(f"{text}; nothing was changed", "leave it out, or ask an admin")
    return list(by_source.values()), problems


def with_names(declared: Declared, records: Mapping[str, JobRecord]) -> Declared:
    """Return what a source declares, with the names under which the cell has its jobs that have
    none in their file. `records` are the cell's jobs by name."""

    def is_same(work: WorkSpec, name: str) -> bool | None:
        record = records.get(name)
        if record is None or record.job is None:
            return None
        return is_same_work(work, record.job.work)

    names = {
        job.name: new
        for job in declared.jobs
        if (unnamed := declared.unnamed.get(job.name)) is not None
        if (new := kept(unnamed, job.name, partial(is_same, job.work))) != job.name
    }
    if not names:
        return declared
    return msgspec.structs.replace(
        declared,
        jobs=[
            msgspec.structs.replace(job, name=names.get(job.name, job.name))
            for job in declared.jobs
        ],
        files={names.get(name, name): file for name, file in declared.files.items()},
        unnamed={names.get(name, name): one for name, one in declared.unnamed.items()},
        paused={names.get(name, name): reason for name, reason in declared.paused.items()},
    )


def compare(
    declared: Declared,
    records: Sequence[JobRecord],
    base: int,
    *,
    prune: bool,
    now_s: int,
    run_min: Mapping[str, int] = NONE_RUNS_LONG,
) -> Diff:
    """Return what changes, with every `?` placed where the load is least. `run_min`: how many
    minutes launches of jobs usually take, one if left out.

    Raises:
        CrontabError: jobs belong to another source; all of them are in it.
    """
    live = {record.name: record for record in records if record.job is not None}
    clashing = clashes(declared, live)
    if clashing:
        raise CrontabError(clashing)
    jobs = {record.name: record.job for record in live.values() if record.job is not None}
    load = JobLoad(run_min, jobs.values())
    diff = Diff(declared.source, base, [], [], [])
    diff.left = _left_out(declared, live)
    if prune:
        diff.removed, diff.left = diff.left, []
        for name in diff.removed:
            load.remove(jobs[name])
            diff.changes.append(_change("removed", jobs[name], jobs[name], now_s))
    # What has a fixed place comes first, so that the `?` of the same file keep out of its way.
    for job in sorted(declared.jobs, key=lambda job: not job.schedule.is_placed):
        _compare_job(diff, jobs.get(job.name), job, load, now_s)
    diff.paused = arrivals.paused(diff.changes, declared.paused)
    if len(live) + len(diff.changed) - len(diff.removed) > JOBS_MAX:
        raise LimitExceeded(f"more than {JOBS_MAX} jobs in one cell", "use another cell for some")
    _check_measured(diff, jobs)
    diff.changes.sort(key=lambda change: change.job)
    gone = {*diff.removed, *(one.name for one in declared.jobs)}
    diff.crowding = crowding(
        diff.placed,
        (one for one in jobs.values() if one.name not in gone),
        today=now_s // _DAY_S,
    )
    return diff


def _check_measured(diff: Diff, before: Mapping[str, Job]) -> None:
    """Return if few enough jobs have metrics of their own after a change.

    Raises:
        LimitExceeded: there are too many.
    """
    if not any(job.metrics for job in diff.changed):
        return
    measured = {name for name, job in before.items() if job.metrics}
    measured -= {*diff.removed, *(job.name for job in diff.changed)}
    count = len(measured) + sum(job.metrics for job in diff.changed)
    if count > JOBS_MEASURED_MAX:
        text = f"{count} jobs would have metrics=yes, and a cell has room for {JOBS_MEASURED_MAX}"
        raise LimitExceeded(text, "leave it to the jobs that dashboards and alerts ask for")


def clashes(declared: Declared, live: Mapping[str, JobRecord]) -> list[Problem]:
    """Return an error for each job that belongs to another source, where its file declares it.

    `live` are the jobs that there are, by name.
    """
    by_file: dict[str, Problems] = {}
    for job in declared.jobs:
        record = live.get(job.name)
        if record is None or record.source == declared.source:
            continue
        file = declared.files.get(job.name, declared.source)
        name = "another name"
        if job.name in declared.unnamed:
            name = "a name of its own (equal commands without one are one job)"
        hint = f"give it {name}, remove it there, or apply it with --source {record.source}"
        by_file.setdefault(file, Problems(file)).error(
            job.line,
            min(job.line, 1),
            f"job {job.name} belongs to source {record.source}, not to {declared.source}",
            hint,
        )
    return [problem for problems in by_file.values() for problem in problems.listed()]


def check_channels(declared: Sequence[Declared], channels: Mapping[str, Channel]) -> None:
    """Return if every channel that jobs name for their alerts is one of the cell's.

    Raises:
        CrontabError: some are not; all of them are in it, where the job is declared.
    """
    known = [one.name for one in channels.values() if one.kind is not ChannelKind.HEARTBEAT]
    by_file: dict[str, Problems] = {}
    for one in declared:
        for job in one.jobs:
            for name in job.alerts.to if job.alerts is not None else ():
                if name in known:
                    continue
                file = one.files.get(job.name, one.source)
                near = difflib.get_close_matches(name, known, 1)
                hint = "declare it in alerts.toml, and `raftcron alerts apply` that first"
                by_file.setdefault(file, Problems(file)).error(
                    job.line,
                    min(job.line, 1),
                    f"job {job.name} tells channel {name}, which does not exist",
                    f"did you mean {near[0]}?" if near else hint,
                )
    problems = [problem for found in by_file.values() for problem in found.listed()]
    if problems:
        raise CrontabError(problems)


def check_tenant(request: ApplyRequest, declared: Sequence[Declared]) -> None:
    """Return if none of the files is about the cell's own jobs, which come with its channels.

    Raises:
        InvalidInput: the source is the cell's own.
        CrontabError: jobs are of the cell's own tenant; all of them are in it.
    """
    if request.source and request.source.startswith(OWN):
        text = f"source {request.source} is the cell's own; nothing was changed"
        raise InvalidInput(text, "give --source another name")
    by_file: dict[str, Problems] = {}
    for one in declared:
        for job in one.jobs:
            if job.name.startswith(OWN):
                file = one.files.get(job.name, one.source)
                text = f"job {job.name} is of tenant {SELF}, which is the cell's own"
                found = by_file.setdefault(file, Problems(file))
                found.error(job.line, min(job.line, 1), text, "give the job another tenant")
    if by_file:
        raise CrontabError([problem for found in by_file.values() for problem in found.listed()])


def check_sources(
    declared: Sequence[Declared],
    records: Sequence[JobRecord],
    *,
    prune: bool,
    is_confirmed: bool = True,
) -> None:
    """Return if all sources can be put, so that either all are put or none.

    What one source prunes, the next may declare. Pruning needs a confirmation where it removes many
    jobs, or all of a source: a file that was emptied by mistake must not remove its jobs.

    Raises:
        CrontabError: jobs belong to another source; all of them are in it.
        InvalidInput: it needs a confirmation.
    """
    live = {record.name: record for record in records if record.job is not None}
    clashing: list[Problem] = []
    removed, loss = 0, ""
    for one in declared:
        clashing += clashes(one, live)
        left = _left_out(one, live) if prune else []
        removed += len(left)
        if left and not one.jobs and not loss:
            what = "job" if len(left) == 1 else f"all {len(left)} jobs"
            loss = f"source {one.source} declares no job: it would lose its {what}"
        for name in left:
            del live[name]
    if clashing:
        raise CrontabError(clashing)
    if removed > PRUNE_WITHOUT_YES_MAX and not loss:
        loss = f"{removed} jobs would be removed"
    if loss and not is_confirmed:
        hint = "look at it with --dry-run, then repeat it with --yes, or leave --prune out"
        raise InvalidInput(f"{loss}; nothing was changed", hint)


def _left_out(declared: Declared, live: Mapping[str, JobRecord]) -> list[str]:
    """Return the jobs of the source that it declares no more."""
    names = {job.name for job in declared.jobs}
    return [
        record.name
        for record in live.values()
        if record.source == declared.source and record.name not in names
        if declared.is_within is None or declared.is_within(record.name)
    ]


def in_order(
    declared: Sequence[Declared], records: Sequence[JobRecord], request: ApplyRequest
) -> list[Declared]:
    """Return the sources in the order in which they can be put, see `following.in_order`."""
    live = {record.name: record for record in records if record.job is not None}
    puts = [
        following.Put(
            one.source, one.jobs, one.files, _left_out(one, live) if request.prune else ()
        )
        for one in declared
    ]
    follows = {name: one.job.follows for name, one in live.items() if one.job is not None}
    order = following.in_order(puts, follows, names_within(request.reads))
    return [declared[place] for place in order]


def _compare_job(diff: Diff, before: Job | None, job: Job, load: JobLoad, now_s: int) -> None:
    """Add a job to a change, with its `?` placed; one that is there already keeps its place."""
    if len(encode_work(job.work)) > WORK_BYTES_MAX:
        raise LimitExceeded(
            f"line {job.line}: command, environment and input of job {job.name} take more than "
            f"{WORK_BYTES_MAX >> 10} KiB",
            "keep them in a file of their own, and let the command read it",
        )
    schedule = job.schedule
    kept = spread.keep(before.schedule, schedule) if before is not None else None
    if before is not None and kept != before.schedule:
        load.remove(before)
    if not schedule.is_placed:
        schedule = kept if kept is not None else load.place(job)
    placed = msgspec.structs.replace(job, schedule=schedule)
    if before is None or schedule != before.schedule:
        load.add(placed)
    diff.placed.append(placed)
    what = [] if before is None else differences(before, placed)
    action = "added" if before is None else ("changed" if what else "unchanged")
    if action != "unchanged":
        diff.changed.append(placed)
    diff.changes.append(_change(action, before, placed, now_s, what))


def _change(
    action: str, before: Job | None, job: Job, now_s: int, what: Sequence[str] = ()
) -> JobChange:
    """Return what becomes of a job; of one that is removed, `job` is what it was."""
    earlier = next_times(before.schedule, now_s, _NEXT_SHOWN) if before is not None else []
    later = next_times(job.schedule, now_s, _NEXT_SHOWN) if action != "removed" else []
    return JobChange(
        action=action,
        job=job.name,
        schedule=job.schedule.text,
        resolved=job.schedule.resolved,
        zone=job.schedule.zone,
        what=[*what],
        next_before_s=earlier,
        next_after_s=later,
    )


async def put(replica: Replica, request: ApplyRequest, *, is_own: bool = False) -> ApplyReport:
    """Apply files: read, place, commit; or only say what would change. `is_own`: the jobs are the
    cell's own ones.

    Raises:
        CrontabError, InvalidInput: nothing was changed.
        RevisionConflict: somebody else changed the jobs again and again meanwhile.
        OutcomeUnknown: some of several sources were changed, or may be.
    """
    declared, problems = await asyncio.to_thread(read_declared, request, replica.zone)
    declared = [with_names(one, replica.state.jobs) for one in declared]
    if not is_own:
        check_tenant(request, declared)
    return await put_declared(replica, declared, request, problems)


async def put_declared(
    replica: Replica, declared: list[Declared], request: ApplyRequest, problems: list[Problem]
) -> ApplyReport:
    """Put what sources declare, as `put`; `problems` are warnings about it."""
    await asyncio.to_thread(
        check_sources,
        declared,
        list(replica.state.jobs.values()),
        prune=request.prune,
        is_confirmed=request.is_dry_run or request.is_confirmed,
    )
    check_channels(declared, replica.state.alerts.channels)
    bounds.check_calendars(declared, replica.state)
    if replica.state.followers or any(job.follows for one in declared for job in one.jobs):
        records = list(replica.state.jobs.values())
        declared = await asyncio.to_thread(in_order, declared, records, request)
    changes: list[JobChange] = []
    gone: set[str] = set()  # jobs that a dry run would have removed before
    done: list[str] = []
    later = 0
    if len(declared) > 1:  # what one source removes, the next may declare
        request = msgspec.structs.replace(request, removes_later=False)
    for source in declared:
        try:
            diff = await _put_source(replica, source, request, gone)
        except CronError as error:
            so_far = f"applied {', '.join(done)}, but not {source.source}" if done else ""
            raise after(so_far, error) from error
        changes += diff.changes
        later += diff.later
        problems += remarks.warnings(replica, source.source, source.jobs, diff.left, diff.crowding)
        if request.is_dry_run:
            gone.update(diff.removed)
        else:
            done.append(source.source)
    return ApplyReport(
        zone=replica.zone,
        source=", ".join(source.source for source in declared),
        revision=replica.state.catalog,
        changes=changes,
        problems=problems,
        is_dry_run=request.is_dry_run,
        applied=not request.is_dry_run,
        left=later,
    )


async def _put_source(
    replica: Replica, declared: Declared, request: ApplyRequest, gone: set[str]
) -> Diff:
    """Put one source, or say what that would change, as if the jobs in `gone` were removed."""
    state, now_s = replica.state, replica.clock.wall_ms() // 1000
    done: dict[str, JobChange] = {}  # before others changed the jobs, too
    for _ in range(ATTEMPTS):
        base = state.catalog
        declared = bounds.with_days(declared, state)
        records = [record for record in state.jobs.values() if record.name not in gone]
        run_min = await usual_times(replica, declared.jobs, records)
        diff = await asyncio.to_thread(
            compare, declared, records, base, prune=request.prune, now_s=now_s, run_min=run_min
        )
        if request.removes_later and not request.is_dry_run and not done:
            diff = _for_later(diff, state)
        names: list[str] = []
        try:
            if not request.is_dry_run and (diff.changed or diff.removed):
                await commit(replica, diff, request.by, names)
        except RevisionConflict:
            done |= {one.job: one for one in diff.changes if one.job in {*names}}
            continue
        except CronError as error:
            raise after(_so_far(len(done) + len(names), diff), error) from error
        others = [one for one in diff.changes if one.job not in done]
        diff.changes = sorted([*others, *done.values()], key=lambda one: one.job)
        return diff
    text = "the jobs were changed by others again and again meanwhile"
    raise after(_so_far(len(done), diff), RevisionConflict(text, "try again"))


def _for_later(diff: Diff, state: State) -> Diff:
    """Return a change without its removals if they are very many and their order does not matter:
    no job follows any of them."""
    is_free = not any(name in state.followers for name in diff.removed)
    if len(diff.removed) <= REMOVED_AT_ONCE or not is_free:
        return diff
    return msgspec.structs.replace(diff, removed=[], later=len(diff.removed))


async def change_jobs(replica: Replica, by: str, changed: Callable[[], Iterable[Job]]) -> list[str]:
    """Put jobs that are there with other fields than before, those of each source in a change of
    its own, until `changed` yields none; return their names.

    Raises:
        RevisionConflict: somebody else changed the jobs again and again meanwhile.
        OutcomeUnknown: those of some sources were changed, or may be.
    """
    state, done, tries = replica.state, list[str](), ATTEMPTS
    try:
        while jobs := [*changed()]:
            source = state.jobs[jobs[0].name].source
            mine = [job for job in jobs if state.jobs[job.name].source == source]
            try:
                await commit(replica, Diff(source, state.catalog, mine, [], []), by, done)
            except RevisionConflict:
                tries -= 1
                if not tries:
                    raise
    except CronError as error:
        raise after(f"changed {len(done)} jobs, but not all" if done else "", error) from error
    return done


async def commit(replica: Replica, diff: Diff, by: str, done: list[str]) -> None:
    """Append the change: as many parts as the size of its jobs asks for, of which the last one does
    it. Of many removals each portion is a change of its own, after the others.

    `done` gets the names of the jobs of each change that is committed.
    """
    at_once = diff.removed if len(diff.removed) <= REMOVED_AT_ONCE else []
    if diff.changed or at_once:
        await _commit_whole(replica, diff, at_once, by)
        done += [*(job.name for job in diff.changed), *at_once]
        diff = msgspec.structs.replace(diff, base=diff.base + 1, changed=[], paused={})
    later = following.followers_first(replica.state, diff.removed) if not at_once else []
    for first in range(0, len(later), REMOVED_AT_ONCE):
        portion = later[first : first + REMOVED_AT_ONCE]
        diff = msgspec.structs.replace(diff, removed=portion)
        await _commit_whole(replica, diff, portion, by)
        done += portion
        count = first + len(portion)
        _log.info("jobs.removed", source=diff.source, jobs=count, left=len(later) - count)
        diff = msgspec.structs.replace(diff, base=diff.base + 1)


async def _commit_whole(replica: Replica, diff: Diff, removed: Sequence[str], by: str) -> None:
    """Append a change that happens with the last of its entries."""
    parts = split_jobs(diff.changed)
    change = change_id(diff, by)
    for number, jobs in enumerate(parts[:-1], 1):
        part = c.PutJobs(diff.source, diff.base, 0, jobs, (), by, change, number, len(parts))
        _, results = await replica.leader.append(part)  # it changes nothing yet
        _check(results[0].verdict)
    last = c.PutJobs(
        diff.source, diff.base, 0, parts[-1], tuple(removed), by, change, len(parts), len(parts)
    )
    while waiting := waiting_of_removed(replica.state, [job.name for job in diff.changed]):
        await replica.leader.append(c.Cancel(waiting))
    names = [*(job.name for job in diff.changed), *removed]
    follows = dict.fromkeys(name for job in diff.changed for name in job.follows)
    read = await following.read_ends(replica, follows)
    first = read[:1]
    pauses = arrivals.pauses(diff.paused, by)
    _, results = await replica.leader.submit(
        lambda state, now_ms: [*_build(state, now_ms, last, names), *pauses, *first],
        changes_jobs=True,
    )
    _check(results[-1 - len(first) - len(pauses)].verdict)
    is_stale = bool(first) and Verdict.STALE_REVISION in results[-1].items
    await following.note_ends(replica, follows, read[1:], is_stale=is_stale)


def _so_far(done: int, diff: Diff) -> str:
    return f"applied {done} changes of {diff.source}, but not all" if done else ""


def after(done: str, error: CronError, hint: str = "") -> CronError:
    """Return an error, or where something is done already, one that says so: not "nothing
    happened"."""
    if not done:
        return error
    return OutcomeUnknown(
        f"{done}: {error}", hint or "apply again: what is there already stays as it is"
    )


def change_id(diff: Diff, by: str) -> str:
    """Return what holds the parts of a change together: two changes of one source, by one person,
    at one time, must not be taken for one."""
    what = (diff.base, diff.source, by, diff.changed, diff.removed)
    return hashlib.sha256(msgspec.msgpack.encode(what)).hexdigest()[:16]


def split_jobs(jobs: Sequence[Job]) -> list[tuple[Job, ...]]:
    """Return the jobs in parts that fit into an entry each; one empty part for none."""
    parts: list[tuple[Job, ...]] = []
    part: list[Job] = []
    size = 0
    for job in jobs:
        bytes_of_job = len(msgspec.msgpack.encode(job))
        if part and size + bytes_of_job > JOBS_PER_ENTRY_BYTES_MAX:
            parts.append(tuple(part))
            part, size = [], 0
        part.append(job)
        size += bytes_of_job
    return [*parts, tuple(part)]


def _build(state: State, now_ms: int, put: c.PutJobs, names: Sequence[str]) -> list[c.Command]:
    """Account for what is due under the old revision, up to the moment of the change (R2)."""
    if state.catalog != put.base:
        raise RevisionConflict("the jobs were changed meanwhile")
    records = [record for name in names if (record := state.jobs.get(name)) is not None]
    horizon_s = max((record.horizon_s for record in records), default=0)
    effective_s = max(now_ms // 1000, state.at_ms // 1000, horizon_s)
    accounts: dict[c.AccountLine, list[int]] = {}
    for record in records:
        if record.job is None or record.horizon_s == effective_s:
            continue
        ticks = _readable(record, record.job)
        item = account_for(record, ticks, Given(effective_s * 1000))
        if item is None:
            item = c.AccountLine((), 0, record.horizon_s, effective_s)
        accounts.setdefault(item, []).append(record.number)
    commands: list[c.Command] = []
    if accounts:
        commands.append(c.Account(as_lines(state.catalog, accounts.items())))
    return [*commands, msgspec.structs.replace(put, effective_s=effective_s)]


def waiting_of_removed(state: State, names: Iterable[str]) -> tuple[c.CancelItem, ...]:
    """Return what cancels the next launches that wait of removed jobs with these names: a job that
    comes back launches none of them."""
    records = [record for name in names if (record := state.jobs.get(name)) is not None]
    items = (
        c.CancelItem(row.key, Reason.NONE, record.removed_by)
        for record in records
        if record.job is None
        for row in record.open.values()
        if row.state is LaunchState.DUE
    )
    return tuple(islice(items, REMOVED_MAX))


def _readable(record: JobRecord, job: Job) -> Ticks:
    """Return the instants of a job that is there.

    Raises:
        Conflict: they cannot be told, and after the change nobody could give them rows.
    """
    if reason := unreadable(job.schedule):
        raise Conflict(
            f"{record.name} cannot be changed under this leader: {reason}; its instants after"
            f" {format_time(record.horizon_s)} have no rows yet",
            "let a replica with a newer tzdata lead, or update tzdata on this one",
        )
    return compile_schedule(job.schedule)


def _check(verdict: Verdict) -> None:
    if verdict in (Verdict.UNKNOWN_PREDECESSOR, Verdict.CYCLE, Verdict.FOLLOWED):
        text = "a job that is followed was removed, or a job came to follow one, meanwhile"
        raise Conflict(text, "apply again: it says which")
    if verdict is Verdict.UNKNOWN_CHANNEL:
        raise Conflict("a channel that a job tells was removed meanwhile", "apply again")
    if verdict is not Verdict.ACCEPTED:
        raise RevisionConflict(f"the jobs were changed meanwhile: {verdict.label}")
