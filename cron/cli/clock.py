"""raftcron clock: the cell's time, when a wrong clock has moved it."""

from __future__ import annotations

import sys

import click
import msgspec

from cron.api import table
from cron.api.members import ClockReport, ClockRequest
from cron.cli import exits, render
from cron.cli.groups import Group
from cron.cli.options import Settings, cell_options, pass_settings, person
from cron.cli.times import show_length, show_ms
from cron.errors import NotNow, OutcomeUnknown


@click.group("clock", cls=Group)
@cell_options
def clock_command() -> None:
    """Manage the cell's time."""


@clock_command.command("reset", short_help="Set the cell's time back to the leader's clock.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@cell_options
@pass_settings
def reset_command(settings: Settings, yes: bool) -> None:
    """Set the cell's time back after a wrong clock moved it ahead.

    Shows the plan and asks for confirmation. Jobs continue from now. Launches that began too early
    are not repeated; instants that were skipped too early are due again. History keeps all rows and
    records who reset the clock.
    """
    request = ClockRequest(is_dry_run=True, by=person())
    with settings.client() as cell:
        plan = cell.ask(table.RESET_CLOCK, request)
        if not yes:
            _show_plan(plan)
            if not sys.stdin.isatty():
                raise NotNow("nothing was changed: nobody can be asked", "--yes does it")
            if not click.confirm("Set the time back?", err=True):
                render.line("nothing was changed", err=True)
                raise click.exceptions.Exit(exits.CONFLICT)
        try:
            request = msgspec.structs.replace(request, is_dry_run=False)
            report = cell.ask(table.RESET_CLOCK, request)
        except OutcomeUnknown as error:
            hint = "run `raftcron clock reset` again: it finishes what is left"
            raise OutcomeUnknown(str(error), hint) from error
    if settings.is_json:
        render.json_lines([msgspec.structs.asdict(report)])
    else:
        render.line(
            f"the cell's time is {show_ms(report.clock_ms)} again: {report.jobs} jobs go on from"
            f" there; {report.spent} launches that began ahead of their time are not repeated"
        )


def _show_plan(plan: ClockReport) -> None:
    ahead = show_length(max(0, plan.cell_ms - plan.clock_ms))
    render.line(f"the cell's time      {show_ms(plan.cell_ms)}, {ahead} ahead", err=True)
    render.line(f"the leader's clock   {show_ms(plan.clock_ms)}", err=True)
    render.line(f"jobs to be set back  {plan.jobs}", err=True)
    render.line("compare the clock with a watch: `raftcron status` shows all replicas", err=True)
