"""Crontabs of a machine as one job file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable

import msgspec

from cron.crontab.imported import Imported
from cron.crontab.reader import read_crontab
from cron.crontab.written import job_text


def import_crontabs(tabs: Iterable[tuple[str, bytes, str | None]]) -> Imported:
    """Return the jobs of crontabs, each given by its name, content and user: "" where each line has
    a user, None where nobody says."""
    imported = Imported()
    for name, content, user in tabs:
        reading = read_crontab(content, file=name, system=user == "")
        for problem in reading.problems:
            where = f"{name} line {problem.line}"
            if problem.is_warning and not problem.is_note:
                imported.note(where, f"{problem.message}: {problem.hint}")
            elif not problem.is_warning:
                imported.leave_out(where, f"{problem.message}: {problem.hint}")
        for job in reading.jobs:
            if user and not job.work.user:
                job = msgspec.structs.replace(
                    job, work=msgspec.structs.replace(job.work, user=user)
                )
            (table,) = tomllib.loads(job_text(job))["job"]
            imported.add(f"{name} line {job.line}", table)
    return imported
