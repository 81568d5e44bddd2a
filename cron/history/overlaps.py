"""Audit of one job's launches against each other: those that may not run at the same time.

Pure. Times are the executors', whose clocks differ; so two launches of which the log proves that
one ended before the other was begun never count as overlapping. A lost launch counts as running
until it was given up.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cron.history.audited import AuditedJob, Finding, FindingKind, OpenRow, is_recalled
from cron.job import Overlap
from cron.limits import LIFE_ENTRIES
from cron.state.rows import Row
from launcher.launch import LaunchState
from launcher.names import LaunchName, format_time

_NEVER = 1 << 62


class Run(msgspec.Struct, frozen=True, order=True, gc=False):
    """A stretch in which a launch was running; `ended_index` is `_NEVER` while it still is."""

    started_ms: int
    finished_ms: int
    scheduled_s: int
    trigger: int
    begun_index: int
    ended_index: int
    revision: int
    is_recalled: bool = False


def run_of(row: Row) -> Run | None:
    """Return when an ended attempt was running, None if it is not known to have been."""
    finished_ms = row.finished_ms
    if row.state is LaunchState.LOST and not finished_ms:
        if 0 < row.epoch.lineage <= row.ended_index // LIFE_ENTRIES:
            return None  # given up in a later life of the cell: when it ended nobody knows
        finished_ms = row.ended_at_ms
    if not (row.started_ms and finished_ms):
        return None
    return Run(
        row.started_ms,
        finished_ms,
        row.scheduled_s,
        row.trigger,
        row.begun_index,
        row.ended_index,
        row.revision,
        is_recalled(row),
    )


def open_run_of(row: OpenRow) -> Run | None:
    """Return since when an open launch has been running, None if it is not known to be."""
    if not row.started_ms:
        return None
    return Run(
        row.started_ms,
        _NEVER,
        row.scheduled_s,
        row.trigger,
        row.begun_index,
        _NEVER,
        row.revision,
        is_recalled(row),
    )


def audit_overlaps(job: AuditedJob, runs: list[Run]) -> Iterator[Finding]:
    """Yield each pair of launches of `job` that ran at once though the later one's revision says
    that it must not. Sorts `runs`."""
    runs.sort()
    running: list[Run] = []
    for run in runs:
        running = [other for other in running if other.finished_ms > run.started_ms]
        for other in running:
            first, later = sorted((other, run), key=lambda r: (r.begun_index, r.scheduled_s))
            if _must_not(job, first, later):
                yield _finding(job, first, later)
        running.append(run)


def _must_not(job: AuditedJob, first: Run, later: Run) -> bool:
    if (first.scheduled_s, first.trigger) == (later.scheduled_s, later.trigger):
        return False  # attempts of one launch are audited by their log indexes
    if later.is_recalled:
        return False  # by which revision it began is not known (rule R13)
    if later.begun_index >= first.ended_index:
        return False
    return job.overlap_of(later.revision, later.scheduled_s) is not Overlap.ALLOW


def _finding(job: AuditedJob, first: Run, later: Run) -> Finding:
    first_name = LaunchName(job.name, first.scheduled_s, first.trigger)
    later_name = LaunchName(job.name, later.scheduled_s, later.trigger)
    since = format_time(later.started_ms // 1000)
    return Finding(
        job.name,
        later.scheduled_s,
        FindingKind.OVERLAP,
        f"{later_name}: was started at {since} while {first_name} was running",
    )
