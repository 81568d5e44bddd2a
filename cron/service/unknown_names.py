"""Notes on names that no job and no worker has. A limit or a gate for such a name is accepted,
because people set limits before they add jobs. But a misspelt name limits nothing, so the answer
says that it is unknown."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from cron.api.checks import is_wild
from cron.job import COMMAND
from cron.scheduler.job_filter import JobFilter, selector
from cron.scopes import EACH_TENANT
from cron.service.replica import Replica
from cron.state.state import JobRecord
from launcher.protocol.names import short_job_name, split_job_name

GUESSED_MAX: Final = 100_000
"""Letters of all names that a misspelt one is compared with, at most 0.2 s of a thread; where there
are more there is no guess."""
_EVERYBODY: Final = ("", EACH_TENANT, COMMAND)


async def unknown_names(replica: Replica, named: JobFilter, priority: int = -1) -> list[str]:
    """Return a note for each name that neither a job nor a connected worker has, or one note if no
    job has all of them together. -1 is any priority. A million jobs are looked through beside the
    loop that ticks."""
    # A thousand sessions are listed only where a handler is named that some worker may serve.
    sessions = replica.leader.pool.sessions() if named.pool not in _EVERYBODY else []
    offers = [offer for session in sessions for offer in session.offers]
    handlers = [handler for offer in offers for handler in offer.handlers]
    records = list(replica.state.jobs.values())
    return await asyncio.to_thread(_notes, records, handlers, named, priority)


def _notes(
    records: Iterable[JobRecord], handlers: Sequence[str], named: JobFilter, priority: int
) -> list[str]:
    live = [(record, record.job) for record in records if record.job is not None]
    tenants = [split_job_name(record.name)[0] for record, _ in live]
    collections = [job.collection for _, job in live]
    notes = []
    for name, known, text in (
        (named.tenant, tenants, "no job is of tenant {}"),
        (
            named.pool,
            [*(job.pool for _, job in live), *handlers],
            "no job names handler {}, and no worker serves it",
        ),
        (named.collection, collections, "no job has collection {}"),
    ):
        if name not in _EVERYBODY and name not in known:
            notes.append(text.format(name) + _guess(name, known))
    matches = selector(JobFilter(named.pattern))
    if not any(matches(record) for record, _ in live) and named.pattern:
        full_names = () if is_wild(named.pattern) else (record.name for record, _ in live)
        guess = _guess(named.pattern, full_names)
        notes.append(f"no job matches {short_job_name(named.pattern)}{guess}")
    if priority >= 0 and not any(job.work.priority == priority for _, job in live):
        notes.append(f"no job has priority {priority}")
    tenant = "" if named.tenant == EACH_TENANT else named.tenant
    parts = (tenant, named.pool, named.collection, named.pattern)
    if not notes and sum(map(bool, parts)) + (priority >= 0) > 1:
        fits = selector(JobFilter(named.pattern, tenant, named.pool, named.collection))
        if not any(fits(one) and priority in (-1, job.work.priority) for one, job in live):
            notes.append("no job has all of what is named")
    return notes


def _guess(name: str, known: Iterable[str]) -> str:
    """Return which of the known names may be meant, as the end of a note; "" if none is close."""
    different = dict.fromkeys(known)
    is_few = sum(map(len, different)) <= GUESSED_MAX
    near = difflib.get_close_matches(name, different, 1) if is_few else []
    return f"; did you mean {short_job_name(near[0])}?" if near else ""
