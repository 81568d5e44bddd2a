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
from cron.errors import InvalidInput, OutcomeUnknown

if TYPE_CHECKING:
    from cron.api.client import Client

_POLL_S: Final = 0.1
_POLL_S_MAX: Final = 1.0
_MOMENT_MS: Final = 500
"""What a leader knows of a launch, it knows this soon: that it is skipped, or what it waits for."""


@click.command("trigger")
@click.argument("job")
@click.option("--wait", is_flag=True, help="Wait for the launch's end; exit with 1 if it failed.")
@cell_options
@pass_settings
def trigger_command(settings: Settings, job: str, wait: bool) -> None:
    """Launch JOB now, besides its schedule.

    With --wait, --timeout bounds the wait as well, where it is given: it ends with 6 then, and the
    launch goes on. Without --wait, 1 says that the launch was over at once and did not succeed.
    """
    with settings.client() as client:
        view = client.trigger(job, new_request_id(), person())
        if not settings.is_json:
            click.echo(f"triggered {view.launch}")
        view = _Watch(settings, client).until(view, is_end=wait)
    if settings.is_json:
        render.json_lines([launch_row(view)])
    elif not view.is_open and (wait or view.state != "succeeded"):
        click.echo(f"{view.launch} {_ending(view)}")
    if view.is_open and wait:
        within = f"within {(settings.timeout_ms or 0) / 1000:g} s"
        raise OutcomeUnknown(
            f"{view.launch} is not over {within}: {view.state}",
            "it goes on; `raftcron show` says what became of it",
        )
    if not view.is_open and view.state != "succeeded":
        raise click.exceptions.Exit(exits.FAILED)


class _Watch:
    """Looks at a launch until there is enough to tell, and says meanwhile what it waits for."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._clock = settings.clock
        self._client = client
        self._wait_ms = settings.timeout_ms
        self._said = ""

    def until(self, view: LaunchView, *, is_end: bool) -> LaunchView:
        """Return the launch once it is over (`is_end`), or once it has begun or a moment is over.

        A change of leader meanwhile is waited for, too.
        """
        patience_ms = self._wait_ms if is_end else _MOMENT_MS
        end_ms = None if patience_ms is None else self._clock.mono_ms() + patience_ms
        pause_s = _POLL_S if is_end else _POLL_S / 2
        while view.is_open and (is_end or not view.attempt):
            left_ms = None if end_ms is None else end_ms - self._clock.mono_ms()
            if left_ms is not None and left_ms <= 0:
                break
            time.sleep(pause_s if left_ms is None else min(pause_s, left_ms / 1000))
            pause_s = min(2 * pause_s, _POLL_S_MAX)
            view = self._client.show(view.launch)[-1]
            if is_end:
                self._say(view)
        if not is_end:
            self._say(view)
        return view

    def _say(self, view: LaunchView) -> None:
        """Say on stderr what the launch waits for, when that is news."""
        news = view.waiting if view.is_open else ""
        if news and news != self._said:
            click.echo(f"raftcron: {view.launch} waits: {news}", err=True)
        self._said = news


def _ending(view: LaunchView) -> str:
    code = f", exit code {view.exit_code}" if view.exit_code else ""
    reason = f" ({view.reason})" if view.reason else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.state}{reason}{code}{detail}"


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
