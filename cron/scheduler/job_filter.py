"""Which jobs a person means: those that fit all that is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from itertools import islice
from typing import Final

import msgspec

from cron.access import names_within
from cron.state.state import JobRecord, State
from cron.state.tasking import handler_of
from launcher.protocol.names import split_job_name

TASKS_LOOKED_AT: Final = 20_000
"""Tasks, the newest of a cell, among which one question looks for those that fit."""


class JobFilter(msgspec.Struct, frozen=True):
    """What is named; "" is any. `pattern` is of full names, `pool` a handler or command. `within`
    are scopes of which one has to have the job; none is any."""

    pattern: str = ""
    tenant: str = ""
    pool: str = ""
    collection: str = ""
    within: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether nothing is named."""
        return not (self.pattern or self.tenant or self.pool or self.collection or self.within)


def selector(wanted: JobFilter) -> Callable[[JobRecord], bool]:
    """Return what says whether a job fits; one that was removed has neither pool nor collection."""
    match = re.compile(translate(wanted.pattern)).match if wanted.pattern else None
    is_within = names_within(wanted.within)

    def fits(record: JobRecord) -> bool:
        if match is not None and match(record.name) is None:
            return False
        if is_within is not None and not is_within(record.name):
            return False
        if wanted.tenant and wanted.tenant != split_job_name(record.name)[0]:
            return False
        job = record.job
        if wanted.pool and (job is None or job.pool != wanted.pool):
            return False
        return not wanted.collection or (job is not None and job.collection == wanted.collection)

    return fits


def select_jobs(records: Iterable[JobRecord], wanted: JobFilter, *, is_live: bool) -> list[str]:
    """Return the names of the jobs that fit, sorted; with `is_live` only of those that exist."""
    fits = selector(wanted)
    return sorted(
        record.name
        for record in records
        if (record.job is not None or not is_live) and fits(record)
    )


def newest_tasks(state: State, wanted: JobFilter, most: int) -> list[str]:
    """Return the names of the tasks that fit, newest first, among the newest TASKS_LOOKED_AT."""
    match = re.compile(translate(wanted.pattern)).match if wanted.pattern else None
    is_within = names_within(wanted.within)
    tenant, found = f"{wanted.tenant}/", list[str]()
    for task in islice(reversed(state.tasks_by_number.values()), TASKS_LOOKED_AT):
        queue = state.queues[task.queue]
        collection = task.options.collection or queue.defaults.collection
        if (
            (not wanted.tenant or task.queue.startswith(tenant))
            and wanted.pool in ("", handler_of(task, queue))
            and wanted.collection in ("", collection)
            and (match is None or match(task.name) is not None)
            and (is_within is None or is_within(task.name))
        ):
            found.append(task.name)
            if len(found) == most:
                break
    return found
