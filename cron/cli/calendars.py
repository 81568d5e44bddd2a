"""calendar: days on which jobs do not run, or on which alone they run."""

from __future__ import annotations

from typing import Final

import click

from cron.api import table
from cron.api.calendars import (
    ApplyCalendarRequest,
    CalendarsQuery,
    CalendarView,
    RemoveCalendarRequest,
)
from cron.cli import render
from cron.cli.app import Group
from cron.cli.crontabs import read_source
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    first_option,
    not_empty,
    stale_option,
)
from launcher.protocol.names import short_job_name

_SHOWN: Final = 20
_NAME: Final = click.argument("name", callback=not_empty)
_KEYS: Final = "calendar days=day_count first? last? jobs=job_count by? changed_at@at_ms"

CALENDARS: Final = render.Listing[CalendarView](
    lambda view: render.row_of(view, _KEYS),
    "calendar days=day_count first? last? jobs=job_count by? changed_utc@at_ms",
    {},
    nothing="no calendars",
    narrow="by changed_utc",
)


@click.group("calendar", cls=Group)
@cell_options
def calendar_command() -> None:
    """Keep days on which jobs do not run, or on which alone they run.

    A job names a calendar in its options: calendar=NAME:skip or calendar=NAME:only.
    """


@calendar_command.command("apply")
@_NAME
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@asks_cell
def apply_command(settings: Settings, name: str, file: str, *, dry_run: bool) -> None:
    """Make the days of FILE those of the calendar NAME, and of the jobs that use it.

    FILE has a date such as 2026-12-25 on each line, or is in iCalendar (.ics); `-` is the standard
    input. Only days are kept. Events that are repeated each year are followed for ten years.
    """
    source = read_source(file)
    request = ApplyCalendarRequest(
        calendar=name, file=source.name, content=source.content, is_dry_run=dry_run
    )
    report = settings.ask(table.APPLY_CALENDAR, request)
    keys = "calendar action days=day_count added removed jobs is_dry_run"
    if settings.is_json:
        render.json_lines([render.row_of(report, keys)])
        return
    days = render.number(report.day_count, "day")
    would = "would be " if report.is_dry_run else ""
    render.line(f"calendar {report.calendar}, {days}: {would}{report.action}")
    for mark, dates in (("+", report.added), ("-", report.removed)):
        for date in render.first_of(dates, "day"):
            render.line(f"{mark} {date}")
    if report.jobs:
        names = ", ".join(map(short_job_name, report.jobs[:_SHOWN]))
        more = f" and {len(report.jobs) - _SHOWN} more" if len(report.jobs) > _SHOWN else ""
        render.line(f"changes when {names}{more} run")


@calendar_command.command("list")
@first_option
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List the calendars, by name."""
    settings.show(CALENDARS, settings.ask(table.CALENDARS, CalendarsQuery()).calendars)


@calendar_command.command("show")
@_NAME
@stale_option
@asks_cell
def show_command(settings: Settings, name: str) -> None:
    """Show the days of a calendar, and the jobs that use it."""
    (view,) = settings.ask(table.CALENDARS, CalendarsQuery(calendar=name)).calendars
    if settings.is_json:
        row = render.row_of(view, "calendar by? changed_at@at_ms")
        render.json_lines([row | {"days": view.days, "jobs": view.jobs}])
        return
    users = ", ".join(map(short_job_name, view.jobs)) or "no job"
    render.line(f"calendar {view.calendar} is used by {users}")
    for day in view.days:
        render.line(day)


@calendar_command.command("remove")
@_NAME
@asks_cell
def remove_command(settings: Settings, name: str) -> None:
    """Remove a calendar that no job uses."""
    view = settings.ask(table.REMOVE_CALENDAR, RemoveCalendarRequest(calendar=name))
    settings.show_row(render.row_of(view, _KEYS), f"removed calendar {view.calendar}")
