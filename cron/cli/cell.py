"""status, audit and clock: the cell itself."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from cron.api import table
from cron.api.launches import TASKS_BEGIN, AuditReport, AuditRequest
from cron.api.members import UNREACHABLE, ClockRequest, StatusRow
from cron.api.snapshots import KeepingView
from cron.cli import exits, render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    confirm,
    stale_option,
    time_option,
)
from cron.cli.rows import job_keys
from cron.cli.snapshots import keeping_pairs
from cron.cli.times import show_length, show_ms, show_s
from cron.cli.verdict import verdict_of
from cron.errors import NotNow, OutcomeUnknown
from cron.progress import describe_progress
from launcher.protocol.names import short_job_name

BEHIND_MIN: Final = 100
"""A replica that lacks fewer entries is not behind: they are on their way."""
_STATUS_KEYS: Final = (
    "kind id address? pid? role term applied digest? version? leader? clock_offset_ms tzdata?"
    " since@since_ms slots running ledger? note? incarnation? member_state? matched joining keeping"
    " overload tasks"
)
_KEEPING_KEYS: Final = (
    "snapshot_index? snapshot_at@snapshot_at_ms store? stored_index? stored_at@stored_at_ms"
    " segments segments_waiting segments_missing open_rows failing_since@failing_since_ms failing?"
    " filling? resolving? outputs_waiting"
)
_AUDIT_KEYS: Final = (
    "ok jobs instants launches open since@since_ms until@until_ms violations ran skipped"
    " skipped_in_runs runs extra_attempts manual amendments lost lost_stretches"
    " forgotten_until@forgotten_until_ms tasks tasks_open tasks_ran tasks_dropped tasks_lost"
    " not_started"
)


def keeping_row(view: KeepingView) -> render.JsonRow:
    """Return what a replica keeps as JSON."""
    return render.row_of(view, _KEEPING_KEYS)


def status_row(view: StatusRow) -> render.JsonRow:
    """Return a replica or an executor as JSON; of a silent replica nobody knows where it stands."""
    is_known = view.kind == "replica" and view.role != UNREACHABLE
    overload = view.overload
    return render.row_of(
        view,
        _STATUS_KEYS,
        term=view.term if is_known else None,
        applied=view.applied if is_known else None,
        joining=msgspec.structs.asdict(view.joining) if view.joining else None,
        keeping=keeping_row(view.keeping) if view.keeping else None,
        overload=render.row_of(overload, "since@since_s queue skipped") if overload else None,
        tasks=render.row_of(view.tasks, "waiting due running") if view.tasks else None,
    )


def status_at(leader_at: int | None) -> render.Listing[StatusRow]:
    """Return how replicas and executors are shown. `leader_at` is the leader's own `matched`, where
    there is one."""

    def known(view: StatusRow, number: int) -> str:
        is_blank = view.kind == "executor" or view.role == UNREACHABLE
        return "-" if is_blank else str(number)

    return render.Listing(
        status_row,
        "kind id address? pid? role term applied digest version? member_state note",
        {
            "term": lambda view: known(view, view.term),
            "applied": lambda view: known(view, view.applied),
            "digest": lambda view: view.digest[:12] or "-",
            "member_state": lambda view: (
                f"{view.member_state} #{view.incarnation}" if view.member_state else "-"
            ),
            "note": lambda view: ", ".join(_notes(view, leader_at)),
        },
        nothing="nothing",
        narrow="version digest applied member_state kind term",
        spill="id",
    )


def _notes(view: StatusRow, leader_at: int | None) -> list[str]:
    notes = []
    if view.kind == "executor":
        # Of more launches than slots, some wait there for a slot, or handlers run them.
        counted = " launches," if view.running > view.slots else " of"
        notes = [f"{view.running}{counted} {view.slots} slots"]
    if view.clock_offset_ms and abs(view.clock_offset_ms) >= 1_000:
        notes.append(f"clock {show_length(view.clock_offset_ms)} off")
    if view.joining:
        notes.append(describe_progress(view.joining))
    elif leader_at is not None and view.matched is not None:
        # A new leader knows of no other replica how far it is, 0, until that one has answered it;
        # what it has applied it says itself.
        reached = max(view.matched, view.applied)
        behind = leader_at - reached if reached else 0
        notes += [f"{behind:,} entries behind"] if behind >= BEHIND_MIN else []
    return [*notes, view.note] if view.note else notes


@click.command("status")
@asks_cell
def status_command(settings: Settings) -> None:
    """Show the replicas and executors, as the replica that answers sees them.

    MEMBER STATE "votes #1" means that the replica votes, and that its disk is the first one of its
    id. After `replica replace` it is #2.

    The last line is the verdict about the whole cell. Exits with 1 if the cell has no leader with a
    majority, so that nothing is launched, and with 5 if no replica answers.
    """
    views = settings.ask(table.STATUS).rows
    verdict = verdict_of(views)
    _show_status(settings, views)
    if not settings.is_json:
        render.line(verdict.text)
    if not verdict.works:
        raise click.exceptions.Exit(exits.FAILED)


def _show_status(settings: Settings, views: list[StatusRow]) -> None:
    leader = next((view for view in views if view.role == "leader"), None)
    settings.show(status_at(leader.matched if leader else None), views)
    if settings.is_json:
        return
    if leader is not None and leader.keeping is not None:
        render.line()
        render.pairs(f"kept by {leader.id}", keeping_pairs(leader.keeping, settings.now_ms()))
    if leader is not None and (tasks := leader.tasks) is not None:
        counts = f"{tasks.waiting:,} waiting, {tasks.due:,} due, {tasks.running:,} running"
        render.line(f"tasks: {counts}")
    for view in views:
        kept = view.keeping
        if view.role != "leader" and kept is not None and (kept.filling or kept.failing):
            text = "; ".join(one for one in (kept.failing, kept.filling) if one)
            render.line(f"{view.id}: {text}")


@click.command("audit")
@click.argument("job", default="")
@time_option("--since", "since_ms", help="Only instants at or after this time.")
@stale_option
@asks_cell
def audit_command(settings: Settings, job: str, since_ms: int) -> None:
    """Check that every instant of JOB, or of all jobs, has one row, and every row its log points.
    JOB may be a task; without JOB all tasks that the cell remembers are checked, too.

    Launches that are not over are accepted. Exits with 1 if a check fails, or if 15 s are not
    enough for all jobs; then it says how many jobs are left. JOB and --since reduce the work. Tasks
    are checked in parts of 15 s until all are.
    """
    request = AuditRequest(job=job, since_ms=since_ms, tasks_after="" if job else TASKS_BEGIN)
    report = settings.ask(table.AUDIT, request)
    while report.tasks_next:
        later = msgspec.structs.replace(request, tasks_after=report.tasks_next)
        part = settings.ask(table.AUDIT, later)
        counts = ("tasks", "tasks_open", "tasks_ran", "tasks_dropped", "tasks_lost")
        added = {name: getattr(report, name) + getattr(part, name) for name in counts}
        found = [*report.violations, *part.violations]
        report = msgspec.structs.replace(
            report, **added, violations=found, tasks_next=part.tasks_next
        )
    if settings.is_json:
        violations = [
            job_keys(one.job) | render.row_of(one, "scheduled_at@scheduled_s kind message")
            for one in report.violations
        ]
        row = render.row_of(report, _AUDIT_KEYS, ok=not violations, violations=violations)
        render.json_lines([row])
    else:
        _show_audit(report)
    if report.violations:
        raise click.exceptions.Exit(exits.FAILED)


def _show_audit(report: AuditReport) -> None:
    since = show_ms(report.since_ms) if report.since_ms else "from the beginning"
    period = f"{since} to {show_ms(report.until_ms)}"
    render.line(f"{period}: {render.number(report.jobs, 'job')}")
    render.line(f"{render.number(report.instants, 'instant')} = {' + '.join(_parts(report))}")
    besides = [
        render.number(report.extra_attempts, "extra attempt") + " (backfills, retries)",
        render.number(report.manual, "manual launch", "manual launches"),
        render.number(report.amendments, "amendment") + " (late report)",
    ]
    render.line(f"besides: {', '.join(besides)}")
    if report.tasks:
        parts = [
            f"{report.tasks_ran:,} ran",
            f"{report.tasks_dropped:,} cancelled or skipped",
            f"{report.tasks_lost:,} lost",
            f"{report.tasks_open:,} open",
        ]
        render.line(f"{render.number(report.tasks, 'task')} = {' + '.join(parts)}")
    if report.forgotten_until_ms:
        until = show_ms(report.forgotten_until_ms)
        render.line(f"not proven: schedules up to {until} that went with the history of their time")
    for one in report.violations:
        place = f"{short_job_name(one.job)} at {show_s(one.scheduled_s)}"
        render.line(f"violation: {place}: {one.kind}: {one.message}")
    render.line(
        render.number(len(report.violations), "violation") if report.violations else "no violation"
    )


def _parts(report: AuditReport) -> list[str]:
    """Return what became of the instants."""
    stretches = render.number(report.runs, "stretch", "stretches")
    parts = [
        f"{report.ran} ran",
        *([f"{report.not_started} not started"] if report.not_started else []),
        f"{report.skipped} skipped or cancelled one by one",
        f"{report.skipped_in_runs} skipped in {stretches}",
    ]
    if report.lost:
        stretches = render.number(report.lost_stretches, "stretch", "stretches")
        parts.append(f"{report.lost} lost in {stretches}")
    parts.append(f"{report.open} open")
    known = report.ran + report.not_started + report.skipped + report.skipped_in_runs
    known += report.lost + report.open
    if known < report.instants:
        parts.append(f"{report.instants - known} without a row")
    return parts


@click.group("clock", cls=Group)
@cell_options
def clock_command() -> None:
    """Manage the cell's time."""


@clock_command.command("reset", short_help="Set the cell's time back to the leader's clock.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_cell
def reset_command(settings: Settings, yes: bool) -> None:
    """Set the cell's time back after a wrong clock moved it ahead.

    Shows the plan and asks for confirmation. Jobs continue from now. Launches that began too early
    are not repeated; instants that were skipped too early are due again. History keeps all rows and
    records who reset the clock.
    """
    request = ClockRequest(is_dry_run=True)
    with settings.client() as cell:
        plan = cell.ask(table.RESET_CLOCK, request)
        if not yes:
            ahead = show_length(max(0, plan.cell_ms - plan.clock_ms))
            for line in (
                f"the cell's time      {show_ms(plan.cell_ms)}, {ahead} ahead",
                f"the leader's clock   {show_ms(plan.clock_ms)}",
                f"jobs to be set back  {plan.jobs}",
                "compare the clock with a watch: `raftcron status` shows all replicas",
            ):
                render.line(line, err=True)
            alone = NotNow("nothing was changed: nobody can be asked", "--yes does it")
            confirm("Set the time back?", alone, code=exits.CONFLICT)
        try:
            request = msgspec.structs.replace(request, is_dry_run=False)
            report = cell.ask(table.RESET_CLOCK, request)
        except OutcomeUnknown as error:
            hint = "run `raftcron clock reset` again: it finishes what is left"
            raise OutcomeUnknown(str(error), hint) from error
    settings.show_row(
        msgspec.structs.asdict(report),
        f"the cell's time is {show_ms(report.clock_ms)} again: {report.jobs} jobs go on from"
        f" there; {report.spent} launches that began ahead of their time are not repeated",
    )
