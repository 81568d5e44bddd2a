"""jobs show, export, remove, diff and rollback: single jobs, as text and as they were."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cron.api import table
from cron.api.access import FieldView
from cron.api.jobs import (
    ExportedJob,
    ExportRequest,
    JobsRequest,
    RemoveRequest,
    RevisionsQuery,
    RevisionsReport,
    RevisionView,
    RollBackRequest,
)
from cron.cli import exits, render
from cron.cli.crontabs import change_row, show_report
from cron.cli.jobs import job_pairs, job_row
from cron.cli.options import (
    Settings,
    asks_cell,
    confirm,
    jobs_option,
    not_empty,
    stale_option,
    word_option,
)
from cron.cli.rows import job_keys
from cron.errors import InvalidInput, NotFound
from launcher.protocol.names import parse_job_name, short_job_name

_JOB: Final = click.argument("job", callback=not_empty)
_SHOWN: Final = 20
_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_REVISION_KEYS: Final = "revision current at@at_ms by? schedule zone command"
REVISIONS: Final = render.Listing[RevisionView](
    lambda view: render.row_of(view, _REVISION_KEYS),
    "revision at_utc@at_ms by? schedule zone command",
    {"revision": lambda view: f"{view.revision}{' now' if view.current else ''}"},
    nothing="no earlier revisions",
    narrow="zone at_utc",
    spill="command",
)


@click.command("show")
@_JOB
@stale_option
@asks_cell
def show_command(settings: Settings, job: str) -> None:
    """Show everything about a job, with its revisions.

    The newest 20 revisions of a job are kept, as far as there is room.
    """
    full = parse_job_name(job)
    report = settings.ask(table.JOB_REVISIONS, RevisionsQuery(job=full))
    is_there = any(one.current for one in report.revisions)
    views = settings.ask(table.JOBS, JobsRequest(pattern=full)) if is_there else []
    if settings.is_json:
        rows = [render.row_of(one, _REVISION_KEYS) for one in report.revisions]
        named = job_row(views[0]) if views else job_keys(full)
        render.json_lines([named | {"revisions": rows}])
        return
    for view in views:
        render.pairs(short_job_name(view.name), job_pairs(view))
    if not views:
        render.line(f"{short_job_name(full)} was removed: `raftcron jobs rollback` brings it back")
    settings.show(REVISIONS, report.revisions)


@click.command("diff")
@_JOB
@click.argument("revision", type=click.IntRange(1), required=False)
@stale_option
@asks_cell
def diff_command(settings: Settings, job: str, revision: int | None) -> None:
    """Show in which fields a REVISION of a job differs from what it is now.

    Without REVISION it is the one before. The values of environment variables are not shown.
    """
    query = RevisionsQuery(job=parse_job_name(job), revision=revision or 0)
    report = settings.ask(table.JOB_REVISIONS, query)
    if settings.is_json:
        names = {**job_keys(report.job), "revision": report.revision or None}
        render.json_lines(
            names | render.row_of(one, "field=name before? after?") for one in report.fields
        )
        return
    _show_diff(report)


def _show_diff(report: RevisionsReport) -> None:
    name = short_job_name(report.job)
    if not report.revision:
        render.line(f"{name} has no earlier revision")
    elif not report.fields:
        render.line(f"{name} is as it was in revision {report.revision}")
    else:
        render.line(f"{name}: revision {report.revision}, and now")
        for one in report.fields:
            _show_field(one)


def _show_field(field: FieldView) -> None:
    for mark, text in (("-", field.before), ("+", field.after)):
        for line in text.splitlines():
            render.line(f"{mark} {field.name}: {line}")


@click.command("rollback")
@_JOB
@click.argument("revision", type=click.IntRange(1))
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_cell
def rollback_command(
    settings: Settings, job: str, revision: int, *, dry_run: bool, yes: bool
) -> None:
    """Make a job what it was in REVISION: this is a new revision. A removed job comes back.

    The next `apply` of the job's file changes it again: change the file too.
    """
    request = RollBackRequest(job=parse_job_name(job), revision=revision, is_dry_run=True)
    report = settings.ask(table.ROLL_BACK, request)
    if not dry_run:
        if not settings.is_json and not yes:
            show_report(report)
        if not yes:
            refusal = InvalidInput(
                f"{job} would become what it was in revision {revision}; nothing was changed",
                "look at it with --dry-run, then repeat it with --yes",
            )
            confirm(f"Roll {render.visible(job)} back?", refusal, code=exits.FAILED)
        final = msgspec.structs.replace(request, is_dry_run=False)
        report = settings.ask(table.ROLL_BACK, final)
    if settings.is_json:
        render.json_lines(change_row(change, report) for change in report.changes)
        return
    show_report(report)
    if not dry_run:
        render.line(f"{report.source} changes it again when it is applied: change it there, too")


@click.command("remove")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_cell
def remove_command(settings: Settings, jobs: tuple[str, ...], *, yes: bool) -> None:
    """Remove single jobs: all that are named, or none if one does not exist.

    Running launches continue, waiting launches are cancelled, and history is kept. The next
    `apply` of a job's file adds the job again, unless it is removed from the file too.
    """
    if not yes:
        _confirm_removal(settings, jobs)
    report = settings.ask(table.REMOVE_JOBS, RemoveRequest(jobs=list(jobs)))
    if settings.is_json:
        render.json_lines(
            {**job_keys(one.job), "action": "removed", "source": one.source, "full_name": one.job}
            for one in report.jobs
        )
        return
    for source in dict.fromkeys(one.source for one in report.jobs):
        names = [one.job for one in report.jobs if one.source == source]
        for name in names:
            render.line(f"removed {short_job_name(name)}")
        them = "it" if len(names) == 1 else "them"
        render.line(
            f"{source} brings {them} back when it is applied again: take {them} out there, too"
        )


def _confirm_removal(settings: Settings, jobs: tuple[str, ...]) -> None:
    """Show what would be removed, and return once a person agreed."""
    what = "it" if len(jobs) == 1 else f"these {len(jobs)} jobs"
    for name in jobs[:_SHOWN]:
        query = RevisionsQuery(job=parse_job_name(name))
        for view in settings.ask(table.JOB_REVISIONS, query).revisions:
            if view.current:
                runs = f"{view.schedule} {view.zone} {view.command}"
                render.line(f"- {short_job_name(query.job)}: {runs}", err=True)
    refusal = InvalidInput(
        f"{render.number(len(jobs), 'job')} would be removed; nothing was changed",
        "repeat it with --yes",
    )
    confirm(f"Remove {what}?", refusal, code=exits.FAILED)


@click.command("export")
@click.argument("pattern", default="", callback=not_empty)
@jobs_option("pattern")
@word_option("--tenant", metavar="T", help="Only jobs of this tenant.")
@click.option("--source", metavar="NAME", help="Only jobs of this source.")
@click.option(
    "-d", "--dir", "folder", type=click.Path(), help="Write a file for each source into a folder."
)
@stale_option
@asks_cell
def export_command(settings: Settings, /, folder: str | None, **wanted: Any) -> None:
    """Print jobs as job files (TOML) that declare the same jobs again.

    To move or back up jobs, use --dir: it writes one file for each source, for `raftcron apply
    --source NAME FILE`. Environment variables are in it, so keep the files where only you can read
    them.
    """
    found = settings.ask(table.EXPORT_JOBS, ExportRequest(**wanted))
    if not found:
        raise NotFound("no job fits", "`raftcron jobs` lists all of them")
    if folder is not None:
        _write(settings, folder, found)
    elif settings.is_json:
        render.json_lines(
            {**job_keys(one.job), "source": one.source, "text": one.text} for one in found
        )
    else:
        for source in dict.fromkeys(one.source for one in found):
            render.lines(_file_text(source, found))


def _file_text(source: str, found: list[ExportedJob]) -> str:
    """Return the job file of a source."""
    tables = [one.text for one in found if one.source == source]
    return "\n".join([f"# raftcron apply --source {source!r} THIS-FILE\n", *tables])


def _write(settings: Settings, folder: str, found: list[ExportedJob]) -> None:
    sources = list(dict.fromkeys(one.source for one in found))
    files = {source: _file_name(source, number) for number, source in enumerate(sources, 1)}
    if len(set(files.values())) < len(files):
        files = {source: f"{number}-{files[source]}" for number, source in enumerate(sources, 1)}
    rows: list[render.JsonRow] = []
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        for source, name in files.items():
            path = os.path.join(folder, name)
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(opened, "w", encoding="utf-8") as file:
                file.write(_file_text(source, found))
            count = sum(one.source == source for one in found)
            rows.append({"file": path, "source": source, "jobs": count})
    except OSError as error:
        raise InvalidInput(f"{folder}: {(error.strerror or str(error)).lower()}") from error
    if settings.is_json:
        render.json_lines(rows)
        return
    for row in rows:
        jobs = sum(one.source == row["source"] for one in found)
        render.line(f"{row['file']}: {render.number(jobs, 'job')} of source {row['source']}")


def _file_name(source: str, number: int) -> str:
    plain = source if _PLAIN.fullmatch(source) else f"source-{number}"
    return plain if plain.endswith(".toml") else f"{plain}.toml"
