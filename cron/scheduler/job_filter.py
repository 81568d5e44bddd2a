"""Which jobs a person means: those that fit all that is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

import msgspec

from cron.access import names_within
from cron.state.state import JobRecord
from launcher.protocol.names import split_job_name


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
