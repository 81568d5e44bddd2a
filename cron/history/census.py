"""Census: how many instants of a job ran, were skipped, lost or are open; the numbers add up.

Pure. What is counted is what `audit` walks through: one job's rows of a period, and its open
launches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from cron.history.audited import AuditedJob
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind


class Census(msgspec.Struct):
    """Counts; of an audit without violations, instants = ran + not_started + skipped +
    skipped_in_runs + lost + open.

    `ran`: an attempt was begun and started, or nobody knows that it was not. `not_started`: each
    one that was begun failed before its start, such as a command that may not run as its user.
    `skipped`: or cancelled before it was begun,
    with a row of its own. `lost`: a restore lost whether it ran; they are in `lost_stretches` rows,
    of one instant or of many. `open`: not over, also one that was reopened. `extra_attempts`: of
    launches that were over before, or that no schedule had. `manual`: launches, not attempts.
    """

    instants: int = 0
    ran: int = 0
    skipped: int = 0
    skipped_in_runs: int = 0
    runs: int = 0
    open: int = 0
    extra_attempts: int = 0
    manual: int = 0
    amendments: int = 0
    lost: int = 0
    lost_stretches: int = 0
    not_started: int = 0

    def add(self, other: Census) -> None:
        """Add the counts of another period or job."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def count(
    job: AuditedJob,
    rows: Iterable[Row],
    after_s: int,
    until_s: int,
    *,
    is_first: bool = True,
) -> Census:
    """Return the counts of (after_s, until_s], which ends at `job.horizon_s` at the latest.

    `rows` are as for `audit`. A run of skipped instants that reaches into the period is
    counted in it if the period `is_first`; it was in the one before otherwise. So is a run of lost
    ones.
    """
    census = Census(instants=job.count(after_s, min(until_s, job.horizon_s)))
    runs: list[Row] = []
    launches: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        if row.kind is RowKind.RANGE:
            runs.append(row)
        elif not after_s < row.scheduled_s <= until_s:
            continue
        elif row.kind is RowKind.AMENDMENT:
            census.amendments += 1
        else:
            launches.setdefault((row.scheduled_s, row.trigger), []).append(row)
    own = _count_launches(census, job, launches, runs)
    for run in runs:
        first_s, last_s = max(run.scheduled_s - 1, after_s), min(run.last_s, until_s)
        inside = bisect_right(own, last_s) - bisect_right(own, first_s)
        instants = job.count(first_s, last_s) - inside
        is_new = is_first or run.scheduled_s > after_s
        if run.state is LaunchState.LOST:
            census.lost += instants
            census.lost_stretches += is_new
        else:
            census.skipped_in_runs += instants
            census.runs += is_new
    return census


def _has_begun(row: Row) -> bool:
    ends_before = row.state in (LaunchState.CANCELLED, LaunchState.LOST) and not row.begun_index
    return row.state is not LaunchState.SKIPPED and not ends_before


def _never_started(row: Row) -> bool:
    """Whether an attempt that was begun is known to have ended before its start."""
    parts = row.parts or (row,)
    return row.state in (LaunchState.FAILED, LaunchState.CANCELLED) and not any(
        part.started_ms for part in parts
    )


def _count_launches(
    census: Census, job: AuditedJob, launches: dict[tuple[int, int], list[Row]], runs: list[Row]
) -> list[int]:
    """Count launches, each given by its attempts, and return the instants that are counted by them,
    in order."""
    runs.sort(key=lambda run: run.scheduled_s)
    starts = [run.scheduled_s for run in runs]
    own: list[int] = []
    for (at_s, trigger), attempts in launches.items():
        if trigger:
            census.manual += 1
            census.extra_attempts += len(attempts) - 1
            continue
        if any(row.by for row in attempts) and job.tick_at(at_s) is None:
            census.extra_attempts += len(attempts)  # a backfill of a time before the job was
            continue
        before = bisect_right(starts, at_s) - 1
        is_in_run = before >= 0 and runs[before].last_s >= at_s
        census.extra_attempts += len(attempts) - (not is_in_run)
        own.append(at_s)
        if any(row.kind is RowKind.OPEN for row in attempts):
            census.open += 1
        elif any(map(_has_begun, attempts)):
            began = [row for row in attempts if _has_begun(row)]
            if all(map(_never_started, began)):
                census.not_started += 1
            else:
                census.ran += 1
        elif any(row.state is LaunchState.LOST for row in attempts):  # nobody knows that it began
            census.lost += 1
            census.lost_stretches += 1
        else:
            census.skipped += 1
    return sorted(own)
