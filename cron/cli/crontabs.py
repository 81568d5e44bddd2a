"""apply and lint: files of jobs."""

from __future__ import annotations

import click

from cron.api.views import ApplyReport, ApplyRequest, JobChange
from cron.cli import exits, render
from cron.cli.options import Settings, cell_options, output_option, pass_settings, person
from cron.cli.rows import job_keys
from cron.cli.sources import STDIN, read_source
from cron.cli.times import format_s, show_s
from cron.errors import Problem
from launcher.names import short_job_name

_MARKS = {"added": "+", "changed": "~", "removed": "-", "unchanged": "="}


@click.command("apply")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--system", is_flag=True, help="The crontabs have a user column, as /etc/crontab.")
@click.option("--source", metavar="NAME", help="Who owns the jobs; default the file's name.")
@click.option("--dry-run", is_flag=True, help="Show what would change and change nothing.")
@click.option("--prune", is_flag=True, help="Remove jobs of the source that it has no more.")
@cell_options
@pass_settings
def apply_command(
    settings: Settings,
    files: tuple[str, ...],
    system: bool,
    source: str | None,
    dry_run: bool,
    prune: bool,
) -> None:
    """Apply crontabs and job files (*.toml): all of them, or none if one has an error.

    Prints what changes, and the next times before and after. `-` is the standard input.
    """
    if STDIN in files and source is None:
        raise click.UsageError("the standard input has no name: say --source NAME")
    request = ApplyRequest(
        files=[read_source(name) for name in files],
        source=source,
        system=system,
        prune=prune,
        is_dry_run=dry_run,
        by=person(),
    )
    with settings.client() as client:
        report = client.put_jobs(request)
    for problem in report.problems:
        render.problem(problem, to_stderr=True)
    if settings.is_json:
        render.json_lines(change_row(change, report) for change in report.changes)
    else:
        _show_report(report)


def change_row(change: JobChange, report: ApplyReport) -> render.Row:
    """Return one change as JSON."""
    return {
        "action": change.action,
        **job_keys(change.job),
        "schedule": change.schedule,
        "resolved": change.resolved or None,
        "zone": change.zone,
        "what": change.what,
        "next_before": [format_s(at_s) for at_s in change.next_before_s],
        "next_after": [format_s(at_s) for at_s in change.next_after_s],
        "source": report.source,
        "revision": report.revision,
        "default_zone": report.zone,
        "applied": report.applied,
    }


def _show_report(report: ApplyReport) -> None:
    render.line(f"zone {report.zone} unless CRON_TZ says otherwise; source {report.source}")
    counts = dict.fromkeys(_MARKS, 0)
    for change in report.changes:
        counts[change.action] = counts.get(change.action, 0) + 1
        if change.action != "unchanged":
            _show_change(change)
    summary = ", ".join(f"{number} {action}" for action, number in counts.items())
    if report.is_dry_run:
        render.line(f"dry run, nothing changed: {summary}")
    elif report.applied and counts["unchanged"] < len(report.changes):
        render.line(f"applied as revision {report.revision}: {summary}")
    else:
        render.line(f"nothing to change: {summary}")


def _show_change(change: JobChange) -> None:
    placed = f" = {change.resolved}" if change.resolved and "?" in change.schedule else ""
    what = f" ({', '.join(change.what)})" if change.what else ""
    mark = _MARKS.get(change.action, "?")
    schedule = f": {change.schedule}{placed} {change.zone}" if change.schedule else ""
    render.line(f"{mark} {short_job_name(change.job)}{schedule}{what}")
    if change.action == "changed" and change.next_before_s == change.next_after_s:
        return  # when it is due did not change: there is nothing to compare
    if change.next_before_s:
        render.line(f"    before: {', '.join(map(show_s, change.next_before_s))}")
    if change.next_after_s:
        render.line(f"    next:   {', '.join(map(show_s, change.next_after_s))}")


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--system", is_flag=True, help="The crontabs have a user column, as /etc/crontab.")
@output_option
@pass_settings
def lint_command(settings: Settings, files: tuple[str, ...], system: bool) -> None:
    """Check crontabs and job files without a cluster, together as `apply` takes them.

    Prints every error and warning with its place. Exits with 0 on warnings, with 2 on errors.
    """
    from cron.crontab.together import read_together

    sources = map(read_source, files)
    contents = ((source.name, source.content) for source in sources)
    problems: list[Problem] = []
    jobs = 0
    for _, reading in read_together(contents, system=system, zone="UTC", tenant="default"):
        problems += reading.problems
        jobs += len(reading.jobs)
    errors = sum(not problem.is_warning for problem in problems)
    if settings.is_json:
        render.json_lines(problem_row(problem) for problem in problems)
    else:
        for problem in problems:
            render.problem(problem, to_stderr=False)
        render.line(f"{jobs} jobs, {errors} errors, {len(problems) - errors} warnings")
    if errors:
        raise click.exceptions.Exit(exits.USAGE)


def problem_row(problem: Problem) -> render.Row:
    """Return an error or warning as JSON."""
    return {
        "file": problem.file,
        "line": problem.line or None,
        "column": problem.column or None,
        "severity": "warning" if problem.is_warning else "error",
        "message": problem.message,
        "hint": problem.hint or None,
    }
