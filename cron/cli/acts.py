"""trigger, backfill and kill: launches that a person asks for, or ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from cron import limits
from cron.api.views import BackfillReport, BackfillRequest, LaunchView
from cron.cli import exits, render
from cron.cli.logs import split_attempt
from cron.cli.options import (
    Moment,
    Settings,
    cell_options,
    new_request_id,
    pass_settings,
    person,
)
from cron.cli.rows import launch_row
from cron.errors import InvalidInput

if TYPE_CHECKING:
    from cron.api.client import Client

_POLL_S: Final = 0.1
_POLL_S_MAX: Final = 1.0


@click.command("trigger")
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait for the launch's end; exit with 1 if it failed.")
@cell_options
@pass_settings
def trigger_command(settings: Settings, job: str, wait: bool) -> None:
    """Launch JOB now, besides its schedule."""
    with settings.client() as client:
        view = client.trigger(job, new_request_id(), person())
        if not settings.is_json:
            click.echo(f"triggered {view.launch}")
        if wait:
            view = _wait(client, view)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif wait:
        click.echo(f"{view.launch} {_ending(view)}")
    if wait and view.state != "succeeded":
        raise click.exceptions.Exit(exits.FAILED)


def _wait(client: Client, view: LaunchView) -> LaunchView:
    """The launch once it is over. A change of leader meanwhile is waited for, too."""
    pause_s = _POLL_S
    view = client.show(view.launch)[-1]
    while view.is_open:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S_MAX)
        view = client.show(view.launch)[-1]
    return view


def _ending(view: LaunchView) -> str:
    code = f", exit code {view.exit_code}" if view.exit_code else ""
    reason = f" ({view.reason})" if view.reason else ""
    return f"{view.state}{reason}{code}"


@click.command("backfill")
@click.argument("job")
@click.option("--from", "from_", type=Moment(), required=True, help="First instant, inclusive.")
@click.option("--to", type=Moment(), help="End, exclusive; default now.")
@click.option("--yes", is_flag=True, help="Do it, even for more than 10 launches.")
@click.option("--dry-run", is_flag=True, help="Only show which launches it would be.")
@cell_options
@pass_settings
def backfill_command(
    settings: Settings, job: str, from_: int, to: int | None, yes: bool, dry_run: bool
) -> None:
    """Launch again what JOB skipped, lost, failed or never had in a period.

    Prints which launches that is; more than 10 need --yes.
    """
    to_ms = settings.now_ms() if to is None else to
    from_s, to_s = -(-from_ // 1000), -(-to_ms // 1000)  # both rounded up: [from, to) of seconds
    with settings.client() as client:
        plan = client.backfill(
            BackfillRequest(job=job, from_s=from_s, to_s=to_s, is_dry_run=True, by=person())
        )
        needs_yes = len(plan.launches) > limits.BACKFILL_WITHOUT_YES_MAX and not yes
        if dry_run or needs_yes or not plan.launches:
            _show_backfill(settings, plan, "would launch")
        if needs_yes and not dry_run:
            raise InvalidInput(
                f"backfill of {len(plan.launches)} launches needs --yes, nothing was launched",
                "repeat it with --yes, or choose a shorter period",
            )
        if dry_run or not plan.launches:
            return
        if not settings.is_json:
            click.echo(f"launching {len(plan.launches)}:")
        report = client.backfill(BackfillRequest(job=job, from_s=from_s, to_s=to_s, by=person()))
    _show_backfill(settings, report, "due again")


def _show_backfill(settings: Settings, report: BackfillReport, what: str) -> None:
    if settings.is_json:
        render.json_lines(
            {"launch": launch, "is_dry_run": report.is_dry_run} for launch in report.launches
        )
        return
    for launch in report.launches:
        click.echo(f"{what}: {launch}")
    if not report.launches:
        click.echo("nothing to launch in this period")


@click.command("kill")
@click.argument("launch")
@cell_options
@pass_settings
def kill_command(settings: Settings, launch: str) -> None:
    """Cancel LAUNCH: committed first, then its processes are ended (TERM, later KILL)."""
    name, attempt = split_attempt(launch)
    if attempt:
        raise InvalidInput(
            f"{launch!r} names an attempt", f"a launch is killed as a whole: raftcron kill {name}"
        )
    with settings.client() as client:
        view = client.kill(name, person())
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif view.is_open:
        click.echo(f"{view.launch} is being killed; `raftcron show` says when it is over")
    else:
        click.echo(f"{view.launch} {_ending(view)}")
