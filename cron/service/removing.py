"""Jobs that are removed by name, whatever file they came from, or some of those of a source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from cron.api.jobs import RemovedJob, RemoveReport, RemoveRequest
from cron.errors import Conflict, CronError, RevisionConflict, UnknownJob
from cron.service import following
from cron.service.catalog import ATTEMPTS, OWN, Diff, after, commit
from cron.service.replica import Replica
from cron.state.state import State
from launcher.protocol.names import short_job_name

_log = structlog.get_logger()

_SHOWN: Final = 5


async def remove(replica: Replica, request: RemoveRequest) -> RemoveReport:
    """Remove jobs by name, those of each source in one entry.

    Raises:
        UnknownJob: one of them does not exist, and no source is named; nothing was removed.
        Conflict: a job that stays follows one of them, or one is the cell's own; nothing was
            removed.
        RevisionConflict: somebody else changed the jobs again and again meanwhile.
        OutcomeUnknown: those of some sources were removed, or may be.
    """
    state, done, tries = replica.state, dict[str, RemovedJob](), ATTEMPTS
    if own := [name for name in request.jobs if name.startswith(OWN) and name in state.jobs]:
        hint = "remove the channel that it is of: docs/alerts.md"
        raise Conflict(f"job {own[0]} is the cell's own; nothing was removed", hint)
    following.check_removal(state, _to_remove(state, request, done))
    try:
        while left := _by_source(state, _to_remove(state, request, done)):
            source, names = following.removed_first(state, left)
            removed: list[str] = []
            try:
                diff = Diff(source, state.catalog, [], names, [])
                await commit(replica, diff, request.by, removed)
            except RevisionConflict:
                tries -= 1
                if not tries:
                    raise
            finally:
                done |= {name: RemovedJob(name, source) for name in removed}
    except CronError as error:
        which = ", ".join(map(short_job_name, [*done][:_SHOWN]))
        so_far = f"removed {len(done)}, such as {which}, but not all" if done else ""
        raise after(so_far, error, "`raftcron jobs` shows what is left") from error
    if request.source is not None:
        _log.info("jobs.removed", source=request.source, jobs=len(done))
    return RemoveReport(jobs=[done[name] for name in sorted(done)], revision=state.catalog)


def _to_remove(state: State, request: RemoveRequest, done: Collection[str]) -> list[str]:
    """Return the jobs that a request names and that are not done; with a source, those that are
    there and of that source."""
    names = [name for name in request.jobs if name not in done]
    if request.source is None:
        return names
    found = ((name, state.jobs.get(name)) for name in names)
    return [
        name
        for name, record in found
        if record is not None and record.job is not None and record.source == request.source
    ]


def _by_source(state: State, names: Sequence[str]) -> dict[str, list[str]]:
    """Return jobs by the source that owns them.

    Raises:
        UnknownJob: some of them do not exist.
    """
    found: dict[str, list[str]] = {}
    unknown = []
    for name in names:
        record = state.jobs.get(name)
        if record is None or record.job is None:
            unknown.append(short_job_name(name))
        else:
            found.setdefault(record.source, []).append(name)
    if unknown:
        which = ", ".join(unknown[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        verb = "does" if len(unknown) == 1 else "do"
        what = "job" if len(unknown) == 1 else "jobs"
        text = f"{what} {which}{more} {verb} not exist; nothing was removed"
        raise UnknownJob(text, "`raftcron jobs` lists them")
    return found
