"""Revisions of jobs: jobs as files, earlier revisions, and the way back to one of them."""

from __future__ import annotations

import asyncio

from cron.access import names_within
from cron.api.access import FieldView
from cron.api.checks import unknown_job
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    ExportedJob,
    ExportRequest,
    RevisionsQuery,
    RevisionsReport,
    RevisionView,
    RollBackRequest,
)
from cron.crontab.written import job_text
from cron.errors import NotFound
from cron.job import Job
from cron.scheduler.job_filter import JobFilter, select_jobs
from cron.service import access, catalog
from cron.service.replica import Replica
from cron.state.definitions import compared, definition, without_payloads
from cron.state.state import JobRecord
from launcher.protocol.names import short_job_name

_FIELDS_ROOM = 200_000
"""Characters of all fields that differ: two whole jobs."""


async def export(replica: Replica, request: ExportRequest) -> list[ExportedJob]:
    """Return the jobs that fit, by source and name, each as text of a job file.

    Raises:
        UnknownJob: a pattern alone is named, and matches none.
    """
    wanted = JobFilter(request.pattern, request.tenant)
    records, is_within = list(replica.state.jobs.values()), names_within(request.within)

    def written() -> list[ExportedJob]:
        found = [replica.state.jobs[name] for name in select_jobs(records, wanted, is_live=True)]
        return [
            ExportedJob(job=record.name, source=record.source, text=job_text(record.job))
            for record in sorted(found, key=lambda record: (record.source, record.name))
            if record.job is not None
            and request.source in (None, record.source)
            and (is_within is None or is_within(record.name))
        ]

    return await asyncio.to_thread(written)


async def revisions(replica: Replica, query: RevisionsQuery) -> RevisionsReport:
    """Return the revisions of a job, newest first, and how one of them differs from the newest.

    Raises:
        UnknownJob: there is no such job, and none is remembered. NotFound: the revision is not
            kept.
    """
    record = _record(replica, query.job)
    views = [
        RevisionView.of(
            one,
            schedule=one.job.schedule.text,
            zone=one.job.schedule.zone,
            command=_command(one.job),
        )
        for one in reversed(record.earlier)
    ]
    if (job := record.job) is not None:
        now = RevisionView(
            revision=record.revision,
            schedule=job.schedule.text,
            zone=job.schedule.zone,
            command=_command(job),
            by=record.changed_by,
            at_ms=record.changed_ms,
            current=True,
        )
        views.insert(0, now)
    revision, fields = 0, list[FieldView]()
    if query.revision or record.earlier:
        revision = query.revision or record.earlier[-1].revision
        before, after = definition(_job_of(record, revision)), definition(job)
        is_seen = names_within(query.payloads)
        found = compared(before, after, _FIELDS_ROOM)
        if is_seen is not None and not is_seen(record.name):
            found = without_payloads(found)
        fields = [FieldView(*field) for field in found]
    return RevisionsReport(job=record.name, revision=revision, revisions=views, fields=fields)


async def roll_back(replica: Replica, request: RollBackRequest) -> ApplyReport:
    """Make a job what it was in a revision; or only say what that would change.

    A calendar's days are those that it has now. What the job names has to exist: channels,
    calendars, jobs that it follows.

    Raises:
        UnknownJob, NotFound: there is no such job or revision. NotAllowed: the caller may not have
            it run as its user. CrontabError: it names what does not exist. The rest as for
            `catalog.put`.
    """
    record = _record(replica, request.job)
    job = _job_of(record, request.revision)
    access.check_users([job], request)
    declared = catalog.Declared(record.source, [job])
    asked = ApplyRequest(files=[], is_dry_run=request.is_dry_run, by=request.by)
    report = await catalog.put_declared(replica, [declared], asked, [])
    # That the source has more jobs is no news: its file was not applied.
    report.problems.clear()
    return report


def _record(replica: Replica, name: str) -> JobRecord:
    record = replica.state.jobs.get(name)
    if record is None or (record.job is None and not record.earlier):
        raise unknown_job(name)
    return record


def _job_of(record: JobRecord, revision: int) -> Job:
    """Return what a job was in a revision.

    Raises:
        NotFound: it is not kept.
    """
    if record.job is not None and revision == record.revision:
        return record.job
    found = next((one.job for one in record.earlier if one.revision == revision), None)
    if found is None:
        name = short_job_name(record.name)
        text = f"revision {revision} of {name} is not kept, or never was"
        raise NotFound(text, f"`raftcron jobs show {name}` lists the revisions")
    return found


def _command(job: Job) -> str:
    work = job.work
    if work.handler:
        return f"{work.handler}()"
    return work.argv[-1] if work.argv else ""
