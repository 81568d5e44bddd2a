"""trigger, backfill and kill: launches that a person asks for, or ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from cron import limits
from cron.api import table
from cron.api.launches import (
    BackfillReport,
    BackfillRequest,
    KillRequest,
    LaunchView,
    ShowRequest,
    TriggerRequest,
)
from cron.cli import exits, render
from cron.cli.logs import split_attempt
from cron.cli.options import Settings, asks_cell, new_request_id
from cron.cli.rows import launch_row
from cron.cli.times import show_s
from cron.cli.values import TIME
from cron.cli.waiting import (
    ending,
    is_lost,
    until_known,
    until_over,
    wait_for_all,
    wait_option,
)
from cron.errors import InvalidInput, NotNow, OutcomeUnknown
from launcher.protocol.names import short_job_name

if TYPE_CHECKING:
    from cron.api.client import Client


@click.command("trigger")
@click.argument("job")
@click.option(
    "--wait", is_flag=True, help="Wait until the launch is over; exit with 1 if it failed."
)
@asks_cell
def trigger_command(settings: Settings, job: str, wait: bool) -> None:
    """Launch JOB now, in addition to its schedule.

    With --wait, the command exits with 6 if --timeout expires first; the launch continues. Without
    --wait, exit code 1 means that the launch ended at once and did not succeed.
    """
    with settings.client() as client:
        view = client.ask(table.TRIGGER, TriggerRequest(job=job, request_id=new_request_id()))
        if not settings.is_json:
            render.line(f"triggered {short_job_name(view.launch)}")
        view = (until_over if wait else until_known)(settings, client, view)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif not view.is_open and (wait or view.state != "succeeded"):
        render.line(f"{short_job_name(view.launch)} {ending(view)}")
    if view.is_open and wait:
        raise _not_over(settings, view)
    if not view.is_open and view.state != "succeeded":
        raise click.exceptions.Exit(exits.FAILED)


@click.command("backfill")
@click.argument("job")
@click.option("--from", "from_ms", type=TIME, required=True, help="Start of the period, inclusive.")
@click.option("--to", "to_ms", type=TIME, help="End of the period, exclusive (default now).")
@click.option("--yes", is_flag=True, help="Do not refuse more than 10 launches.")
@click.option("--dry-run", is_flag=True, help="Only list the launches; change nothing.")
@wait_option
@asks_cell
def backfill_command(
    settings: Settings,
    job: str,
    from_ms: int,
    to_ms: int | None,
    yes: bool,
    dry_run: bool,
    wait: bool,
) -> None:
    """Launch JOB for its instants in a period that were skipped, lost, failed or have no row.

    Lists the launches first; more than 10 need --yes. Instants from before JOB was first applied
    have no row, so they are launched, too; a note says how many there are. With --wait, the command
    exits with 6 if --timeout expires first; the launches continue.
    """
    to_ms = settings.now_ms() if to_ms is None else to_ms
    from_s, to_s = -(-from_ms // 1000), -(-to_ms // 1000)  # both rounded up: [from, to) of seconds
    request = BackfillRequest(job=job, from_s=from_s, to_s=to_s, is_dry_run=True)
    with settings.client() as client:
        plan = client.ask(table.BACKFILL, request)
        needs_yes = len(plan.launches) > limits.BACKFILL_WITHOUT_YES_MAX and not yes
        if dry_run or needs_yes or not plan.launches:
            _show_backfill(settings, plan, "would launch")
        if plan.before:  # of launches that are older than the job nothing was skipped
            verb = "is" if plan.before == 1 else "are"
            count = f"{plan.before:,} of {render.number(len(plan.launches), 'launch', 'launches')}"
            when = f"{show_s(plan.applied_s)}, when the job was first applied"
            note = f"{count} {verb} from before {when}; a later --from leaves them out"
            settings.show_notes([note])
        if needs_yes and not dry_run:
            raise InvalidInput(
                f"backfill of {len(plan.launches)} launches needs --yes, nothing was launched",
                "repeat it with --yes, or choose a shorter period",
            )
        if dry_run or not plan.launches:
            return
        if not settings.is_json:
            render.line(f"launching {len(plan.launches)}:")
        request = msgspec.structs.replace(request, is_dry_run=False)
        report = client.ask(table.BACKFILL, request)
        if not (wait and settings.is_json):
            _show_backfill(settings, report, "due again")
        if wait:
            wait_for_all(settings, client, report.launches)


def _show_backfill(settings: Settings, report: BackfillReport, what: str) -> None:
    for launch in report.launches:
        row = {"launch": launch, "is_dry_run": report.is_dry_run}
        settings.show_row(row, f"{what}: {short_job_name(launch)}")
    if not report.launches and not settings.is_json:
        render.line("nothing to launch in this period")


@click.command("kill")
@click.argument("launch")
@click.option(
    "--wait", is_flag=True, help="Wait until all attempts and parts of the launch are over."
)
@asks_cell
def kill_command(settings: Settings, launch: str, wait: bool) -> None:
    """Cancel LAUNCH. The cell commits the cancel, then ends the processes (TERM, later KILL).

    With --wait, the command exits with 0 once the launch is over, in whatever state it ended. It
    exits with 6 if the launch is lost, because its processes may still run, or if --timeout expires
    first; the kill continues.
    """
    name, attempt = split_attempt(launch)
    if attempt:
        raise InvalidInput(
            f"{launch!r} names an attempt", f"a launch is killed as a whole: raftcron kill {name}"
        )
    short = short_job_name(name)
    with settings.client() as client:
        view = _killed(client, name, is_over_fine=wait)
        if wait:
            if view.is_open and not settings.is_json:
                render.line(f"{short} is being killed")
            view = until_over(settings, client, view)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif not view.is_open:
        render.line(f"{short} {ending(view)}")
    elif not wait:
        render.line(f"{short} is being killed; `raftcron show` says when it is over")
    if wait and view.is_open:
        raise _not_over(settings, view)
    if wait and is_lost(view):
        raise OutcomeUnknown(
            f"{short} is lost: nobody saw all its processes end",
            "what must not overlap is dead by now (guarded); look at the executor for the rest",
        )


def _killed(client: Client, name: str, *, is_over_fine: bool) -> LaunchView:
    """Kill a launch. With `is_over_fine` also one that is over already: then all is as wanted."""
    try:
        return client.ask(table.KILL, KillRequest(launch=name))
    except NotNow:
        view = client.ask(table.SHOW, ShowRequest(launch=name))[-1] if is_over_fine else None
        if view is None or view.is_open:
            raise
        return view


def _not_over(settings: Settings, view: LaunchView) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{short_job_name(view.launch)} is not over {settings.within}: {view.state}",
        "it goes on; `raftcron show` says what became of it",
    )
