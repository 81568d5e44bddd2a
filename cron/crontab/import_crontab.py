"""Crontabs as one job file: a file, or those of a machine as its cron reads them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from cron.crontab import debian_cron
from cron.crontab.environment import split_assignment
from cron.crontab.imported import Imported, Place
from cron.crontab.options import OPTION_MARK
from cron.crontab.reader import read_crontab
from cron.crontab.reading import Reading
from cron.crontab.written import job_text
from cron.job import Job

_ZONE: bytes = b"CRON_TZ"


class Tab(NamedTuple):
    """A crontab: its user, "" where each line has one, None where nobody says; the zone of its
    schedules; whether Debian's cron reads it, and so decides which lines hold; and whether its
    machine has a user, None where nobody knows."""

    name: str
    content: bytes
    user: str | None
    zone: str | None = None
    is_of_host: bool = False
    is_user: Callable[[str], bool] | None = None


def import_crontabs(tabs: Iterable[Tab]) -> Imported:
    """Return the jobs of crontabs."""
    imported = Imported()
    for tab in tabs:
        content = _as_cron_reads(tab, imported) if tab.is_of_host else tab.content
        if content is None:
            continue
        is_system = tab.user == ""
        zone = tab.zone or "UTC"
        reading = read_crontab(content, file=tab.name, system=is_system, zone=zone)
        _note(reading, tab, imported)
        unsure = _unsure(content, reading)
        is_zoned = tab.zone is not None or _ZONE in content
        for job in reading.jobs:
            line = unsure.get(job.line)
            if line is not None:
                what = f"line {line} is a part of it, and has an error"
                imported.leave_out(job.name, what, Place(tab.name, job.line))
            else:
                is_named = job.name not in reading.unnamed
                _add(job, tab, imported, is_named=is_named, is_zoned=is_zoned)
    return imported


def _as_cron_reads(tab: Tab, imported: Imported) -> bytes | None:
    """Return a crontab with what cron reads of it and we understand, None if it is left out."""
    is_user = tab.is_user if tab.user == "" else None
    fault, strange = debian_cron.lines_of(tab.content, is_user)
    if fault is not None:
        imported.leave_out(tab.name, fault[1], Place(tab.name, fault[0]))
        return None
    for number, what in strange.items():
        imported.leave_out(tab.name, what, Place(tab.name, number))
    return debian_cron.without_options(debian_cron.without_lines(tab.content, strange))


def _note(reading: Reading, tab: Tab, imported: Imported) -> None:
    for problem in reading.problems:
        what, place = f"{problem.message}: {problem.hint}", Place(tab.name, problem.line)
        if not problem.is_warning:
            imported.leave_out(tab.name, what, place)
        elif not problem.is_note:
            imported.note(tab.name, what, place)


def _unsure(content: bytes, reading: Reading) -> dict[int, int]:
    """Return the lines of jobs whose options or variables have an error, and the lines of those:
    an option is of the next job, a variable of all jobs that follow."""
    lines = content.decode("utf-8", "replace").split("\n")
    found: dict[int, int] = {}
    for error in reading.errors:
        text = lines[error.line - 1] if 0 < error.line <= len(lines) else ""
        after = [job.line for job in reading.jobs if job.line >= error.line]
        if text.lstrip(" \t").startswith(OPTION_MARK):
            after = after[:1]
        elif error.line and split_assignment(text) is None:
            after = []
        found |= dict.fromkeys(after, error.line or 1)
    return found


def _add(job: Job, tab: Tab, imported: Imported, *, is_named: bool, is_zoned: bool) -> None:
    if tab.user and not job.work.user:
        job = msgspec.structs.replace(job, work=msgspec.structs.replace(job.work, user=tab.user))
    table: dict[str, Any]
    (table,) = tomllib.loads(job_text(job))["job"]
    place = Place(tab.name, job.line)
    if not is_zoned:
        del table["zone"]
        imported.note_zone(table["name"], table["schedule"], None, place)
    number = 2
    while not is_named and table["name"] in imported.names:
        table["name"] = f"{job.name}-{number}"
        number += 1
    imported.add(table["name"], table, place)
