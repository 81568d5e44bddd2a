"""Pages of jobs with how their newest launches ended, and what the whole cell does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

import msgspec

from cron.access import names_within
from cron.api.overview import (
    ActivityQuery,
    ActivityReport,
    JobEntry,
    JobPage,
    JobPageQuery,
    MinuteView,
    TermView,
)
from cron.calendar.schedule import unreadable
from cron.launch_state import LaunchState
from cron.scheduler.gates import Gates
from cron.service.activity import MINUTE_MS
from cron.service.crowd import HOUR
from cron.service.gates import of_gate
from cron.service.jobs import of_job
from cron.service.launches import of_row
from cron.service.replica import Replica
from cron.state.alerts import is_own
from cron.state.own import users_counts
from cron.state.state import JobRecord

NAMES_SHOWN: Final = 100
_LABELS: Final = {int(state): state.label for state in LaunchState}
TERMS_SHOWN: Final = 50


async def job_page(replica: Replica, query: JobPageQuery) -> JobPage:
    """Return a page of the jobs that fit, by name."""
    state, now_ms = replica.state, replica.clock.wall_ms()
    running = state.count_running()
    fits = _fits(query, now_ms, lambda record: running[record.number] > 0)
    records = list(state.jobs.values())
    names, total, tenants, sources = await asyncio.to_thread(_choose, records, query, fits)
    shown = names[: query.limit]
    strips, is_whole = await replica.outcomes.of(shown)
    # History would be looked through whole for a job that never ran.
    ran = [name for name in shown if strips[name]] if is_whole else shown
    newest = await replica.row_store.last_of_each(ran)
    gates, is_seen = Gates(state), names_within(query.payloads)
    entries = []
    for name in shown:
        record, row = state.jobs.get(name), newest.get(name)
        if record is None or record.job is None:
            continue
        last = of_row(row) if row is not None else None
        view = of_job(
            record,
            record.job,
            last,
            now_ms,
            running[record.number],
            shows_payload=is_seen is None or is_seen(name),
        )
        gate = gates.of(record, record.job, now_ms)
        if gate is not None:
            view = msgspec.structs.replace(view, gate=of_gate(gate))
        entries.append(JobEntry(job=view, outcomes=[_LABELS[one] for one in strips[name]]))
    return JobPage(
        jobs=entries,
        total=total,
        next=shown[-1] if len(names) > query.limit else "",
        tenants=tenants,
        sources=sources,
        is_reading=not is_whole,
    )


def _choose(
    records: Sequence[JobRecord], query: JobPageQuery, fits: Callable[[JobRecord], bool]
) -> tuple[list[str], int, list[str], list[str]]:
    """Return the names of a page and one more, how many jobs fit, and what there is to choose from.
    It looks at every job, and is called in a thread."""
    is_within = names_within(query.within)
    live = [one for one in records if one.job is not None]
    if is_within is not None:
        live = [one for one in live if is_within(one.name)]
    tenants = {one.name.partition("/")[0] for one in live}
    sources = {one.source for one in live}
    if query.text or query.tenant or query.source or query.state:
        live = [one for one in live if fits(one)]
    total, following = len(live), [one.name for one in live if one.name > query.after]
    names = nsmallest(query.limit + 1, following)
    known = [list(islice(sorted(one), NAMES_SHOWN)) for one in (tenants, sources)]
    return names, total, known[0], known[1]


def _fits(
    query: JobPageQuery, now_ms: int, runs: Callable[[JobRecord], bool]
) -> Callable[[JobRecord], bool]:
    """Return what says whether a job is asked for."""
    text, tenant = query.text.casefold().strip(), f"{query.tenant}/"

    def is_in_state(record: JobRecord) -> bool:
        if query.state == "paused":
            return record.paused is not None and record.paused.holds(now_ms)
        if query.state == "running":
            return runs(record)
        if query.state == "dead":
            return bool(record.dead)
        return record.job is not None and bool(unreadable(record.job.schedule))

    def fits(record: JobRecord) -> bool:
        if text and text not in record.name.casefold():
            return False
        if query.tenant and not record.name.startswith(tenant):
            return False
        if query.source and query.source != record.source:
            return False
        return not query.state or is_in_state(record)

    return fits


async def activity(replica: Replica, query: ActivityQuery) -> ActivityReport:
    """Return how many launches ended in each of the last minutes, and what is open now, those of
    the cell itself left out."""
    state, now_ms = replica.state, replica.clock.wall_ms()
    await replica.activity.read(now_ms)
    crowd = await replica.activity.crowd.next_day(now_ms)
    users = users_counts(state)
    counts = replica.activity.minutes(now_ms - (query.minutes - 1) * MINUTE_MS)
    return ActivityReport(
        minutes=[
            MinuteView(minute * 60, **{one.label: many for one, many in by_state.items()})
            for minute, by_state in counts.items()
        ],
        since_ms=replica.activity.since_ms,
        now_ms=now_ms,
        due=users.due,
        running=users.active,
        jobs=sum([one.job is not None and not is_own(one.name) for one in state.jobs.values()]),
        dead=users.dead,
        terms=[
            TermView(one.epoch.term, one.epoch.replica, one.at_ms)
            for one in state.leader_terms[-TERMS_SHOWN:]
        ],
        crowd=crowd[:HOUR],
        crowd_day=crowd,
    )
