"""replica and cell: run a replica, replace one whose disk is lost, and add one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from cron import endings
from cron.api import table
from cron.api.members import GrowReport, GrowRequest, ReplaceReport, ReplaceRequest, StatusRow
from cron.cli import exits, render
from cron.cli.app import Group, become
from cron.cli.options import Settings, asks_cell, cell_options, confirm
from cron.cli.waiting import Wait
from cron.errors import NotNow, OutcomeUnknown, StillAlive
from cron.progress import describe_progress

if TYPE_CHECKING:
    from cron.api.client import Client

_LOOK_S: Final = 0.5


@click.group(
    "replica",
    cls=Group,
    short_help="Run a replica, or replace one whose disk is lost.",
    invoke_without_command=True,
    subcommand_metavar="[replace REPLICA]",
    epilog=endings.epilog(),
)
@click.option(
    "--config", metavar="FILE", type=click.Path(), help="Configuration file of the replica."
)
@click.option("--data", metavar="DIR", help="Data directory, instead of the one in FILE.")
@click.option(
    "--bootstrap",
    is_flag=True,
    help="Found a new cell if the data directory is empty; otherwise ignored.",
)
@click.option(
    "--join",
    is_flag=True,
    help="Join with an empty data directory, after `replica replace` or `cell grow`.",
)
@click.option("--die-with-parent", is_flag=True, hidden=True)
@click.pass_context
def replica_command(
    ctx: click.Context,
    config: str | None,
    data: str | None,
    bootstrap: bool,
    join: bool,
    die_with_parent: bool,
) -> None:
    """Run a replica with the configuration in FILE.

    A replica with an empty data directory starts only with --bootstrap or --join: a replica that
    forgot its votes could undo committed entries.
    """
    if ctx.invoked_subcommand is not None:
        if config is not None:
            raise click.UsageError(f"--config is of no use to {ctx.invoked_subcommand}", ctx)
        return
    if config is None:
        raise click.UsageError("Missing option '--config'.", ctx)
    if bootstrap and join:
        raise click.UsageError("--bootstrap and --join: it is one or the other", ctx)
    flags = {"--bootstrap": bootstrap, "--join": join, "--die-with-parent": die_with_parent}
    given = [flag for flag, is_given in flags.items() if is_given]
    place = ["--data", data] if data is not None else []
    become("cron.daemon", "--config", config, *place, *given)


@replica_command.command("replace", short_help="Allow a new disk to replace a replica's disk.")
@click.argument("replica")
@click.option("--raft", metavar="HOST:PORT", default="", help="Raft address of the new replica.")
@click.option(
    "--client", metavar="HOST:PORT", default="", help="Client address of the new replica."
)
@click.option(
    "--yes",
    "is_confirmed",
    is_flag=True,
    help="Do not ask, even if the old replica is connected.",
)
@click.option(
    "--wait", is_flag=True, help="Wait until the new replica votes, and show its progress."
)
@asks_cell
def replace_command(settings: Settings, /, wait: bool, **said: Any) -> None:
    """Allow a new disk to replace the disk of REPLICA, and exclude the old disk for good.

    Without --raft and --client, the new replica has the addresses of the old one. With --wait, the
    command exits with 6 if --timeout expires first.
    """
    with settings.client() as cell:
        report = _replace(cell, ReplaceRequest(**said))
        name, number = report.replica, report.incarnation
        command = f"raftcron replica --config {shlex.quote(name)}.toml --join"
        if not settings.is_json:
            first = f"{name} is open for a new disk (incarnation {number}); its old one is out"
            if report.was_open:
                first = f"{name} waits for a new disk already (incarnation {number})"
            render.line(first)
            _say_next(command)
            render.line(f"the others expect it at raft {report.raft} and client {report.client}")
        if wait:
            row = _until_it_votes(settings, cell, report)
            report = msgspec.structs.replace(report, member_state=row.member_state)
    if settings.is_json:
        render.json_lines([{**msgspec.structs.asdict(report), "command": command}])


def _replace(cell: Client, request: ReplaceRequest) -> ReplaceReport:
    """Ask for it; of one that seems to be well, ask the person first."""
    try:
        try:
            return cell.ask(table.REPLACE, request)
        except StillAlive as error:
            confirm(f"{error}. Go on?", error, code=exits.CONFLICT)
        return cell.ask(table.REPLACE, msgspec.structs.replace(request, is_confirmed=True))
    except OutcomeUnknown as error:
        hint = f"`raftcron status` shows whether {request.replica} is open; then it was done"
        raise OutcomeUnknown(str(error), hint) from error


@click.group("cell", cls=Group, short_help="Add a replica to the cell.")
@cell_options
def cell_command() -> None:
    """Make the cell larger.

    docs/cell.md describes how a cell of one replica becomes a cell of three.
    """


@cell_command.command("grow", short_help="Add a replica to the cell.")
@click.argument("replica")
@click.option(
    "--wait", is_flag=True, help="Wait until the new replica votes, and show its progress."
)
@asks_cell
def grow_command(settings: Settings, /, wait: bool, **said: Any) -> None:
    """Add REPLICA to the cell. It votes once it has the state and the log.

    `peers` of all replicas must name REPLICA. Replicas are added one by one, and never removed.
    From the moment at which the second replica votes until the third one does, the cell needs both.
    With --wait, the command exits with 6 if --timeout expires first.
    """
    with settings.client() as cell:
        report = cell.ask(table.GROW, GrowRequest(**said))
        name = report.replica
        command = f"raftcron replica --config {shlex.quote(name)}.toml --join"
        if not settings.is_json:
            _say_grown(report, command)
        if wait and report.member_state != "votes":
            row = _until_it_votes(settings, cell, report)
            report = msgspec.structs.replace(report, member_state=row.member_state)
    if settings.is_json:
        render.json_lines([{**msgspec.structs.asdict(report), "command": command}])


def _say_grown(report: GrowReport, command: str) -> None:
    name = report.replica
    if report.member_state == "votes":
        render.line(f"{name} is a replica of the cell already, and votes")
        return
    render.line(f"{name} was added before" if report.was_there else f"{name} is added to the cell")
    _say_next(command)
    render.line(f"the others expect it at raft {report.raft} and client {report.client}")


def _say_next(command: str) -> None:
    render.line("next, on its machine, with an empty data directory:")
    render.line("  raftcron join          (as root, where the package's unit runs it)")
    render.line(f"  {command}")


def _until_it_votes(
    settings: Settings, cell: Client, report: ReplaceReport | GrowReport
) -> StatusRow:
    """Return the row of a new disk once it votes; say meanwhile how far it is.

    Raises:
        NotNow: it was replaced once more. OutcomeUnknown: not within --timeout.
    """
    name, number = report.replica, report.incarnation
    wait = Wait(settings, settings.timeout_ms, _LOOK_S, is_err=settings.is_json)

    def ask() -> StatusRow | None:
        return next((row for row in cell.ask(table.STATUS).rows if row.id == name), None)

    refusal = ""  # at the last look; one that stands for no longer is over
    for row in wait.looks(ask):
        if row is not None and row.incarnation > number:
            raise NotNow(f"{name} was replaced once more: incarnation {row.incarnation}")
        if row is None or row.incarnation != number:
            continue
        if row.member_state == "votes":
            wait.say(f"{name} votes from now on (incarnation {number})")
            return row
        if row.joining is None:
            wait.say(f"{name} waits for a new disk")
            continue
        before, refusal = refusal, row.joining.text
        if row.joining.stage != "waiting" or before == refusal:
            wait.say(f"{name} {describe_progress(row.joining)}")
    hint = "it goes on; `raftcron status` shows it"
    raise OutcomeUnknown(f"{name} does not vote {settings.within}", hint)
