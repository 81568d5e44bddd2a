"""next: when an expression, a file's jobs or a job of the cell are due. The first two offline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from cron.api import table
from cron.api.jobs import NextRequest, NextTimes
from cron.calendar import schedule as calendar
from cron.calendar import zones
from cron.calendar.expression import parse
from cron.calendar.load import Load
from cron.calendar.spread import place_all
from cron.cli import render
from cron.cli.crontabs import STDIN, printable, read_source
from cron.cli.options import Settings, asks_cell, limit_option, stale_option
from cron.cli.rows import job_keys
from cron.cli.times import format_s, local_time, show_ms, show_s
from cron.cli.values import TIME
from cron.errors import InvalidInput, Problem, ScheduleError, Unavailable
from cron.job import Schedule
from launcher.protocol.names import short_job_name

COUNT_MAX: Final = 10_000
_FILE_ENDINGS: Final = (".crontab", ".cron", ".tab", ".toml", ".txt")


class Coming(NextTimes, frozen=True, kw_only=True):
    """A schedule and its next times; `job` is "" for an expression. `line` is that of a file,
    where the job may have no name."""

    line: int = 0
    is_unnamed: bool = False

    @property
    def label(self) -> str:
        """Return the job's name, or its line and schedule if it has none."""
        if self.is_unnamed:
            return f"line {self.line}: {self.schedule}"
        return short_job_name(self.job)


class _WithExpression(click.Command):
    """A command whose argument may begin with `-`, as a wrong schedule does: it is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments."""
        words = [f" {one}" if one.startswith("-") and " " in one else one for one in args]
        return super().parse_args(ctx, words)


@click.command("next", cls=_WithExpression)
@click.argument("what", metavar="EXPR|FILE|JOB")
@click.option("--tz", "zone", metavar="ZONE", help="Time zone of the schedule (default UTC).")
@click.option("--after", "after_ms", type=TIME, help="Only times after this one (default now).")
@limit_option(COUNT_MAX, 5, "count")
@click.option("--system", is_flag=True, help="The file has a user column.")
@stale_option
@asks_cell
def next_command(
    settings: Settings, what: str, zone: str | None, after_ms: int | None, count: int, system: bool
) -> None:
    """Show when an expression, the jobs of a file, or a job are due next.

    The argument is an expression if it has five fields or begins with @. Otherwise it is a file
    if a file of that name exists, or else a job. Only a job needs a cell. Without a cell, `?`
    gets the value that it would get in a cell without other jobs.
    """
    zones.pin()
    if zone is not None:
        zones.zone(zone)
    what = what.strip(" ") or what
    after_s = (settings.now_ms() if after_ms is None else after_ms) // 1000
    if is_expression(what):
        found = [_of_expression(what, zone or "UTC", after_s, count)]
    elif what == STDIN or os.path.exists(what):
        found = list(_of_file(what, zone or "UTC", after_s, count, system=system))
    else:
        after_or_now_s = None if after_ms is None else after_s
        found = [_of_job(settings, what, zone, after_or_now_s, count)]
    if settings.is_json:
        render.json_lines(_row(one, at_s) for one in found for at_s in one.times_s)
    else:
        _show(found)


def is_expression(text: str) -> bool:
    """Return whether a text is a schedule: five fields, an @, or several words that are no file."""
    fields = text.split()
    if len(fields) == 5 or text.lstrip().startswith("@"):
        return True
    # No job's name has blanks: the parser says best what is wrong with four or six fields.
    return len(fields) != 1 and not os.path.exists(text)


def _of_expression(text: str, zone: str, after_s: int, count: int) -> Coming:
    try:
        (schedule,) = place_all([parse(text).schedule(zone)], Load())
        return _coming("", schedule, after_s, count)
    except ScheduleError as error:
        where = f", column {error.column}" if error.column else ""
        raise InvalidInput(f"expression {text!r}{where}: {error}", error.hint) from error


def _of_file(name: str, zone: str, after_s: int, count: int, *, system: bool) -> Iterator[Coming]:
    """Yield the jobs of a file; `?` is placed as in a cell without other jobs."""
    from cron.crontab.reader import read_file

    file = read_source(name)
    reading = read_file(file.name, file.content, system=system, zone=zone, tenant="default")
    reading.raise_for_errors()
    for problem in reading.warnings:
        render.problem(problem, to_stderr=True)
    parts = [max(1, job.parts) for job in reading.jobs]
    schedules = place_all([job.schedule for job in reading.jobs], Load(), parts)
    for job, schedule in zip(reading.jobs, schedules, strict=True):
        coming = _coming(job.name, schedule, after_s, count)
        if (bounds := job.schedule.bounds) is not None and bounds.calendar:
            name = short_job_name(job.name)
            message = f"{name}: the days of calendar {bounds.calendar} are those of a cell"
            hint = f"for a job of the cell: raftcron next {name}"
            noted = Problem(file.name, job.line, 1, message, hint, is_warning=True)
            render.problem(noted, to_stderr=True)
        is_unnamed = job.name in reading.unnamed
        yield msgspec.structs.replace(
            coming, line=job.line, is_unnamed=is_unnamed, follows=list(job.follows)
        )


def _of_job(
    settings: Settings, name: str, zone: str | None, after_s: int | None, count: int
) -> Coming:
    """Ask the cell for the times of a job; `zone` only changes the wall clock that is shown."""
    if name.lower().endswith(_FILE_ENDINGS) or name.startswith(("/", ".", "~")):
        hint = "name a file that exists, an expression in quotes, or a job: see `raftcron jobs`"
        raise InvalidInput(f"{printable(name)}: no such file", hint)
    try:
        answer = settings.ask(table.NEXT, NextRequest(job=name, after_s=after_s, count=count))
    except Unavailable as error:
        error.hint = f"there is no file {printable(name)}, so a job was asked for; {error.hint}"
        raise
    return Coming(**msgspec.structs.asdict(answer) | {"zone": zone or answer.zone})


def _coming(job: str, schedule: Schedule, after_s: int, count: int) -> Coming:
    calendar.compile(schedule)  # refuses what cannot be read, of which there are no next times
    return Coming(
        job=job,
        schedule=schedule.text,
        resolved=schedule.resolved,
        zone=schedule.zone,
        times_s=calendar.next_times(schedule, after_s, count),
    )


def _row(one: Coming, at_s: int) -> render.JsonRow:
    names = job_keys(one.job) if one.job else {"job": None, "tenant": None}
    ends_ms = one.paused_until_ms
    return {
        "scheduled_at": format_s(at_s),
        **names,
        **({"line": one.line} if one.line else {}),
        "local_time": _local(one, at_s),
        "zone": one.zone,
        "schedule": one.schedule,
        "resolved": one.resolved or None,
        # Whether it would be skipped because the job is paused now.
        "paused": one.paused and (not ends_ms or at_s * 1000 < ends_ms),
        "follows": one.follows,
    }


def _local(one: Coming, at_s: int) -> str:
    return local_time(at_s, zones.zone(one.zone).offset(at_s // 60))


def _show(found: list[Coming]) -> None:
    for one in found:
        if "?" in one.schedule:
            name = f"{one.label}: " if one.job else ""
            if name.endswith(f": {one.schedule}: "):
                name = name.removesuffix(f"{one.schedule}: ")
            render.line(f"{name}{one.schedule} = {one.resolved}")
        if one.paused:
            reason = f" ({one.pause_reason})" if one.pause_reason else ""
            until = f" until {show_ms(one.paused_until_ms)}" if one.paused_until_ms else ""
            name = short_job_name(one.job)
            render.line(f"{name} is paused{until}{reason}: what is due meanwhile is skipped")
        if one.follows:
            names = ", ".join(map(short_job_name, one.follows))
            render.line(f"{one.label} follows {names}: it waits until their launches are over")
    is_local = any(one.zone != "UTC" for one in found)
    has_jobs = any(one.job for one in found)
    columns = ["job"] * has_jobs + ["scheduled utc"] + ["local time", "zone"] * is_local
    rows = [
        [one.label] * has_jobs
        + [show_s(at_s).removesuffix(" UTC")]
        + [_local(one, at_s).replace("T", " "), one.zone] * is_local
        for one in found
        for at_s in one.times_s
    ]
    render.table(columns, rows, nothing="no times", narrow=["zone"] * is_local)
