"""status and audit: the cell itself."""

from __future__ import annotations

import click

from cron.api import table
from cron.api.launches import AuditReport, AuditRequest
from cron.api.members import StatusRow
from cron.cli import exits, render
from cron.cli.options import Moment, Settings, cell_options, pass_settings, stale_option
from cron.cli.rows import STATUS_COLUMNS, STATUS_NARROW, job_keys, status_cells, status_row
from cron.cli.snapshots import keeping_pairs
from cron.cli.times import format_ms, format_s, show_ms, show_s
from launcher.names import short_job_name


@click.command("status")
@cell_options
@pass_settings
def status_command(settings: Settings) -> None:
    """Show the replicas and executors, as the replica that answers sees them.

    STANDING "votes #1" means that the replica votes, and that its disk is the first one of its id.
    After `replica replace` it is #2.
    """
    with settings.client() as client:
        views = client.ask(table.STATUS).rows
    if settings.is_json:
        render.json_lines(map(status_row, views))
    else:
        at = next((view.matched for view in views if view.role == "leader"), None)
        cells = (status_cells(view, at) for view in views)
        render.table(STATUS_COLUMNS, cells, narrow=STATUS_NARROW, spill="id")
        _show_kept(views, settings.now_ms())


def _show_kept(views: list[StatusRow], now_ms: int) -> None:
    """What the leader keeps; of the others, what they lack."""
    for view in views:
        if view.role == "leader" and view.keeping is not None:
            render.line()
            render.pairs(f"kept by {view.id}", keeping_pairs(view.keeping, now_ms))
    for view in views:
        kept = view.keeping
        if view.role != "leader" and kept is not None and (kept.filling or kept.failing):
            text = "; ".join(one for one in (kept.failing, kept.filling) if one)
            render.line(f"{view.id}: {text}")


@click.command("audit")
@click.argument("job", default="")
@click.option("--since", type=Moment(), help="Only instants at or after this time.")
@stale_option
@cell_options
@pass_settings
def audit_command(settings: Settings, job: str, since: int | None) -> None:
    """Check that every instant of JOB, or of all jobs, has one row, and every row its log points.

    Launches that are not over are accepted. Exits with 1 if a check fails, or if 15 s are not
    enough for all jobs; then it says how many jobs are left. JOB and --since reduce the work.
    """
    with settings.client() as client:
        report = client.ask(table.AUDIT, AuditRequest(job=job, since_ms=since or 0))
    if settings.is_json:
        render.json_lines([audit_row(report)])
    else:
        _show_audit(report)
    if report.violations:
        raise click.exceptions.Exit(exits.FAILED)


def audit_row(report: AuditReport) -> render.Row:
    """Return an audit as JSON."""
    violations = [
        {
            **job_keys(one.job),
            "scheduled_at": format_s(one.scheduled_s),
            "kind": one.kind,
            "message": one.message,
        }
        for one in report.violations
    ]
    return {
        "ok": not report.violations,
        "jobs": report.jobs,
        "instants": report.instants,
        "launches": report.launches,
        "open": report.open,
        "since": format_ms(report.since_ms),
        "until": format_ms(report.until_ms),
        "violations": violations,
        "ran": report.ran,
        "skipped": report.skipped,
        "skipped_in_runs": report.skipped_in_runs,
        "runs": report.runs,
        "extra_attempts": report.extra_attempts,
        "manual": report.manual,
        "amendments": report.amendments,
        "lost": report.lost,
        "lost_stretches": report.lost_stretches,
        "forgotten_until": format_ms(report.forgotten_until_ms),
    }


def _show_audit(report: AuditReport) -> None:
    since = show_ms(report.since_ms) if report.since_ms else "from the beginning"
    period = f"{since} to {show_ms(report.until_ms)}"
    render.line(f"{period}: {_number(report.jobs, 'job')}")
    render.line(f"{_number(report.instants, 'instant')} = {' + '.join(_parts(report))}")
    besides = [
        _number(report.extra_attempts, "extra attempt") + " (backfills, retries)",
        _number(report.manual, "manual launch", "manual launches"),
        _number(report.amendments, "amendment") + " (late news)",
    ]
    render.line(f"besides: {', '.join(besides)}")
    if report.forgotten_until_ms:
        until = show_ms(report.forgotten_until_ms)
        render.line(f"not proven: schedules up to {until} that went with the history of their time")
    for one in report.violations:
        place = f"{short_job_name(one.job)} at {show_s(one.scheduled_s)}"
        render.line(f"violation: {place}: {one.kind}: {one.message}")
    render.line(
        _number(len(report.violations), "violation") if report.violations else "no violation"
    )


def _parts(report: AuditReport) -> list[str]:
    """What became of the instants."""
    stretches = _number(report.runs, "stretch", "stretches")
    parts = [
        f"{report.ran} ran",
        f"{report.skipped} skipped or cancelled one by one",
        f"{report.skipped_in_runs} skipped in {stretches}",
    ]
    if report.lost:
        stretches = _number(report.lost_stretches, "stretch", "stretches")
        parts.append(f"{report.lost} lost in {stretches}")
    parts.append(f"{report.open} open")
    known = report.ran + report.skipped + report.skipped_in_runs + report.lost + report.open
    if known < report.instants:
        parts.append(f"{report.instants - known} without a row")
    return parts


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
