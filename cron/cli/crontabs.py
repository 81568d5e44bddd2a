"""apply and lint: files of jobs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cron import limits
from cron.api import table
from cron.api.jobs import (
    ApplyReport,
    ApplyRequest,
    JobChange,
    RemoveRequest,
    SourceFile,
)
from cron.cli import exits, render
from cron.cli.options import Settings, asks_cell, confirm, output_option, pass_settings
from cron.cli.rows import job_keys
from cron.cli.times import format_s, show_s
from cron.errors import CronError, InvalidInput, LimitExceeded, OutcomeUnknown, Problem
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client
    from cron.job import Job


_PROGRESS_EVERY: Final = 5_000
"""Jobs that are removed between two words about how many are; as of a pause."""
_MARKS = {"added": "+", "changed": "~", "removed": "-", "unchanged": "="}


@click.command("apply")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--system", is_flag=True, help="The crontabs have a user column, like /etc/crontab.")
@click.option(
    "--source", metavar="NAME", help="Source that the jobs belong to (default the file's name)."
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--prune", is_flag=True, help="Also remove jobs of the source that are not in the file."
)
@click.option("--yes", is_flag=True, help="Remove them without confirmation.")
@asks_cell
def apply_command(
    settings: Settings,
    files: tuple[str, ...],
    system: bool,
    source: str | None,
    dry_run: bool,
    prune: bool,
    yes: bool,
) -> None:
    """Apply crontabs and job files (*.toml): all of them, or none if one has an error.

    Prints the changes, and the next times before and after. `-` is the standard input.

    --prune asks for confirmation before it removes more than 10 jobs, or all jobs of a source. If
    standard input is not a terminal, it needs --yes. `raftcron jobs remove JOB` removes single
    jobs.
    """
    if STDIN in files and source is None:
        raise click.UsageError("the standard input has no name: say --source NAME")
    request = ApplyRequest(
        files=[read_source(name) for name in files],
        source=source,
        system=system,
        prune=prune,
        is_dry_run=dry_run,
        is_confirmed=yes,
        removes_later=prune,
    )
    with settings.client() as client:
        if prune and not yes and not dry_run and _is_agreed(settings, client, request):
            request = msgspec.structs.replace(request, is_confirmed=True)
        report = client.ask(table.PUT_JOBS, request)
        if report.left:
            report = _remove_left(settings, client, report)
    show_applied(settings, report)


def _is_agreed(settings: Settings, client: Client, request: ApplyRequest) -> bool:
    """Return whether a person agreed to what is removed; False where nobody needs to be asked.

    Raises:
        InvalidInput: nobody can be asked. click.exceptions.Exit: the answer was no.
    """
    plan = client.ask(table.PUT_JOBS, msgspec.structs.replace(request, is_dry_run=True))
    removed = [change for change in plan.changes if change.action == "removed"]
    is_all = bool(removed) and len(removed) == len(plan.changes)
    if not is_all and len(removed) <= limits.PRUNE_WITHOUT_YES_MAX:
        return False
    show_changes(removed, err=True)
    what = render.number(len(removed), "job")
    if is_all:
        what = "the only job" if len(removed) == 1 else f"all {what}"
    refusal = InvalidInput(
        f"apply --prune would remove {what} of {plan.source}; nothing was changed",
        "repeat it with --yes, or leave --prune out",
    )
    if settings.is_json or STDIN in [file.name for file in request.files]:
        raise refusal
    confirm(f"Remove {what} of {render.visible(plan.source)}?", refusal, code=exits.FAILED)
    return True


def _remove_left(settings: Settings, client: Client, report: ApplyReport) -> ApplyReport:
    """Remove the jobs that an apply left to its caller, a portion after the other, and say on
    stderr how far it is; return the report about all of it.

    Raises:
        OutcomeUnknown: the file is applied, and some of the jobs may be removed.
    """
    names = [change.job for change in report.changes if change.action == "removed"]
    gone, revision = set[str](), report.revision
    for first in range(0, len(names), limits.REMOVED_AT_ONCE_MAX):
        if first and not first % _PROGRESS_EVERY:
            settings.show_progress(f"removed {first:,} of {len(names):,} jobs")
        portion = names[first : first + limits.REMOVED_AT_ONCE_MAX]
        try:
            asked = RemoveRequest(jobs=portion, source=report.source)
            removed = client.ask(table.REMOVE_JOBS, asked)
        except CronError as error:
            text = f"removed {first:,} of {len(names):,} jobs, and then: {error}"
            hint = "apply again: what is done stays as it is"
            raise OutcomeUnknown(text, hint) from error
        gone.update(one.job for one in removed.jobs)
        revision = removed.revision or revision
    # Others may have removed a job meanwhile, or given it to another source.
    changes = [one for one in report.changes if one.action != "removed" or one.job in gone]
    return msgspec.structs.replace(report, changes=changes, revision=revision, left=0)


def change_row(change: JobChange, report: ApplyReport) -> render.JsonRow:
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


def show_applied(settings: Settings, report: ApplyReport) -> None:
    """Print what an apply warns of, and what it changed."""
    for problem in report.problems:
        render.problem(problem, to_stderr=True)
    if settings.is_json:
        render.json_lines(change_row(change, report) for change in report.changes)
    else:
        show_report(report)


def show_report(report: ApplyReport) -> None:
    """Print what an apply changed, or would change."""
    render.line(f"zone {report.zone} unless CRON_TZ says otherwise; source {report.source}")
    actions = [change.action for change in report.changes]
    counts = {action: actions.count(action) for action in _MARKS}
    show_changes([change for change in report.changes if change.action != "unchanged"])
    summary = ", ".join(f"{number} {action}" for action, number in counts.items())
    if report.is_dry_run:
        render.line(f"dry run, nothing changed: {summary}")
    elif report.applied and counts["unchanged"] < len(report.changes):
        render.line(f"applied as revision {report.revision}: {summary}")
    else:
        render.line(f"nothing to change: {summary}")


def show_changes(changes: list[JobChange], *, err: bool = False) -> None:
    """Print changes of jobs, of very many the first."""
    for change in render.first_of(changes, "change", err=err):
        _show_change(change, err=err)


def _show_change(change: JobChange, *, err: bool) -> None:
    placed = f" = {change.resolved}" if change.resolved and "?" in change.schedule else ""
    what = f" ({', '.join(change.what)})" if change.what else ""
    mark = _MARKS.get(change.action, "?")
    schedule = f": {change.schedule}{placed} {change.zone}" if change.schedule else ""
    render.line(f"{mark} {short_job_name(change.job)}{schedule}{what}", err=err)
    if change.action == "changed" and change.next_before_s == change.next_after_s:
        return  # when it is due did not change: there is nothing to compare
    if change.next_before_s:
        render.line(f"    before: {', '.join(map(show_s, change.next_before_s))}", err=err)
    if change.next_after_s:
        render.line(f"    next:   {', '.join(map(show_s, change.next_after_s))}", err=err)


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--system", is_flag=True, help="The crontabs have a user column, like /etc/crontab.")
@output_option
@pass_settings
def lint_command(settings: Settings, files: tuple[str, ...], system: bool) -> None:
    """Check crontabs and job files without a cell, as `apply` would.

    Prints every error, warning and note with its position. A note marks syntax that other cron
    implementations reject, or says what the cell has to have for it. Exits with 2 if there is an
    error, otherwise with 0.
    """
    from cron.calendar.crowding import crowding
    from cron.crontab.reader import read_together

    sources = [read_source(name) for name in files]
    contents = ((source.name, source.content) for source in sources)
    problems: list[Problem] = []
    declared: list[Job] = []
    errors = warnings = 0
    for _, reading in read_together(contents, system=system, zone="UTC", tenant="default"):
        problems += reading.problems
        declared += reading.jobs
        errors += reading.error_count
        warnings += reading.warning_count
    if (found := crowding(declared, today=settings.now_ms() // 86_400_000)) is not None:
        name = sources[0].name if len(sources) == 1 else f"{len(sources)} files"
        problems.append(Problem(name, 0, 0, found.text(), found.hint(), is_warning=True))
        warnings += 1
    if settings.is_json:
        keys = "file line? column? severity message hint?"
        render.json_lines(
            render.row_of(one, keys, severity=one.mark.removesuffix(": ") or "error")
            for one in problems
        )
    else:
        for problem in problems:
            render.problem(problem, to_stderr=False)
        notes = sum(problem.is_note for problem in problems)
        counted = [(len(declared), "job"), (errors, "error"), (warnings, "warning")]
        counted += [(notes, "note")] * bool(notes)
        render.line(", ".join(render.number(count, what) for count, what in counted))
    if errors:
        raise click.exceptions.Exit(exits.USAGE)


STDIN: Final = "-"
STDIN_NAME: Final = "<stdin>"


def read_source(name: str) -> SourceFile:
    """Return a file's name and bytes; `-` is the standard input.

    Raises:
        InvalidInput: it cannot be read. LimitExceeded: it is too large.
    """
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(limits.CRONTAB_BYTES_MAX + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(limits.CRONTAB_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{printable(name)} cannot be read: {reason.lower()}") from error
    if len(content) > limits.CRONTAB_BYTES_MAX:
        raise LimitExceeded(
            f"{printable(name)} has more than {limits.CRONTAB_BYTES_MAX} bytes",
            "split it into several files",
        )
    return SourceFile(STDIN_NAME if name == STDIN else printable(name), content)


def printable(name: str) -> str:
    """Return a file's name as text that can be sent and printed, whatever bytes it has."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )
