"""jobs, pause and resume."""

from __future__ import annotations

import click

from cron.api import table
from cron.api.jobs import JobsRequest, PauseReport, PauseRequest, PauseView, ResumeRequest
from cron.cli import render
from cron.cli.needs import job_pairs
from cron.cli.options import Settings, cell_options, pass_settings, person, stale_option
from cron.cli.rows import JOB_COLUMNS, JOB_NARROW, job_cells, job_keys, job_row
from cron.cli.scopes import collection_option, jobs_option, pool_of, pool_options, word_option
from cron.cli.times import show_ms
from cron.cli.until import until_ms, until_options
from cron.cli.values import not_empty
from launcher.names import short_job_name


@click.command("jobs")
@click.argument("pattern", default="", callback=not_empty)
@jobs_option("pattern")
@word_option("--tenant", metavar="T", help="Only jobs of this tenant.")
@pool_options
@collection_option
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="Show all fields of each job, one per line."
)
@stale_option
@cell_options
@pass_settings
def jobs_command(settings: Settings, /, pattern: str, is_long: bool, **said: str) -> None:
    """List all jobs, or those that PATTERN (such as 'billing*' or 'acme/*') matches.

    HELD shows why a job is not launched: a pause, or the number of a gate.
    """
    wanted = JobsRequest(
        pattern=pattern,
        tenant=said["tenant"],
        pool=pool_of(said["handler"], said["pool"]),
        collection=said["collection"],
    )
    with settings.client() as client:
        views = client.ask(table.JOBS, wanted)
    if settings.is_json:
        render.json_lines(map(job_row, views))
    elif is_long and views:
        for view in views:
            render.pairs(short_job_name(view.name), job_pairs(view))
    else:
        cells = map(job_cells, views)
        render.table(JOB_COLUMNS, cells, nothing="no jobs", narrow=JOB_NARROW, spill="job")


@click.command("pause")
@click.argument("pattern", default="", metavar="PATTERN", callback=not_empty)
@jobs_option("pattern", is_needed=True)
@click.option("--reason", default="", help="Shown with the job.")
@until_options
@cell_options
@pass_settings
def pause_command(
    settings: Settings, pattern: str, reason: str, until: int | None, for_: str | None
) -> None:
    """Pause the jobs that PATTERN matches; instants that fall due meanwhile are skipped."""
    end_ms = until_ms(settings.now_ms(), until, for_)
    request = PauseRequest(pattern=pattern, reason=reason, until_ms=end_ms, by=person())
    with settings.client() as client:
        report = client.ask(table.PAUSE, request)
    until_text = f" until {show_ms(end_ms)}" if end_ms else ""
    _show(settings, report, "paused", f"paused{until_text}", "was paused already")


@click.command("resume")
@click.argument("pattern", default="", metavar="PATTERN", callback=not_empty)
@jobs_option("pattern", is_needed=True)
@cell_options
@pass_settings
def resume_command(settings: Settings, pattern: str) -> None:
    """Resume the jobs that PATTERN matches."""
    with settings.client() as client:
        report = client.ask(table.RESUME, ResumeRequest(pattern=pattern, by=person()))
    _show(settings, report, "resumed", "resumed", "was not paused")


def _show(
    settings: Settings, report: PauseReport, action: str, text: str, unchanged_text: str
) -> None:
    if settings.is_json:
        names = [(name, True) for name in report.changed]
        names += [(name, False) for name in report.unchanged]
        render.json_lines(
            {**job_keys(name), "action": action, "changed": changed} for name, changed in names
        )
        return
    pauses = {pause.job: pause for pause in report.pauses}
    lines = [f"{short_job_name(name)} {text}" for name in report.changed]
    for name in report.unchanged:
        known = _held(pauses[name]) if name in pauses else ""
        lines.append(f"{short_job_name(name)} {unchanged_text}{known}")
    for line in render.first_of(lines, "job"):
        render.line(line)
    if len(lines) > render.ALL_MAX:
        render.line(f"{len(report.changed):,} in all {text}")


def _held(pause: PauseView) -> str:
    """By whom, until when and why a job is paused."""
    by = f" by {pause.by}" if pause.by else ""
    until = f"until {show_ms(pause.until_ms)}" if pause.until_ms else "until it is resumed"
    return f"{by}, {until}{f': {pause.reason}' if pause.reason else ''}"
