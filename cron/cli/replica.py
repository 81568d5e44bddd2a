"""replica: run one, and replace one whose disk is lost."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from cron import endings
from cron.api import table
from cron.api.members import ReplaceReport, ReplaceRequest, StatusRow
from cron.cli import exits, render
from cron.cli.become import become
from cron.cli.groups import Group
from cron.cli.options import Settings, cell_options, pass_settings, person
from cron.errors import NotNow, OutcomeUnknown, StillAlive, Unavailable
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
    help="Join with an empty data directory, after `replica replace`.",
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
@click.option("--yes", is_flag=True, help="Do not ask, even if the old replica is connected.")
@click.option(
    "--wait", is_flag=True, help="Wait until the new replica votes, and show its progress."
)
@cell_options
@pass_settings
def replace_command(
    settings: Settings, replica: str, raft: str, client: str, yes: bool, wait: bool
) -> None:
    """Allow a new disk to replace the disk of REPLICA, and exclude the old disk for good.

    Without --raft and --client, the new replica has the addresses of the old one. With --wait, the
    command exits with 6 if --timeout expires first.
    """
    request = ReplaceRequest(
        replica=replica, raft=raft, client=client, is_confirmed=yes, by=person()
    )
    with settings.client() as cell:
        report = _replace(cell, request)
        if not settings.is_json:
            _show(report)
        if wait:
            row = _Wait(settings, cell, report).until_it_votes()
            report = msgspec.structs.replace(report, standing=row.standing)
    if settings.is_json:
        render.json_lines([{**msgspec.structs.asdict(report), "command": next_command(report)}])


def _replace(cell: Client, request: ReplaceRequest) -> ReplaceReport:
    """Ask for it; of one that seems to be well, ask the person first."""
    try:
        try:
            return cell.ask(table.REPLACE, request)
        except StillAlive as error:
            if not sys.stdin.isatty():
                raise
            if not click.confirm(f"{error}. Go on?", err=True):
                render.line("nothing was changed", err=True)
                raise click.exceptions.Exit(exits.CONFLICT) from error
        request = msgspec.structs.replace(request, is_confirmed=True)
        return cell.ask(table.REPLACE, request)
    except OutcomeUnknown as error:
        hint = f"`raftcron status` shows whether {request.replica} is open; then it was done"
        raise OutcomeUnknown(str(error), hint) from error


def next_command(report: ReplaceReport) -> str:
    """Return the command that starts the new disk, on its machine."""
    return f"raftcron replica --config {shlex.quote(report.replica)}.toml --join"


def _show(report: ReplaceReport) -> None:
    name, number = report.replica, report.incarnation
    if report.was_open:
        render.line(f"{name} waits for a new disk already (incarnation {number})")
    else:
        render.line(f"{name} is open for a new disk (incarnation {number}); its old one is out")
    render.line("next, on its machine, with an empty data directory:")
    render.line(f"  {next_command(report)}")
    render.line(f"the others expect it at raft {report.raft} and client {report.client}")


class _Wait:
    """Looks at the cell until the new disk votes, and says meanwhile how far it is."""

    def __init__(self, settings: Settings, cell: Client, report: ReplaceReport) -> None:
        self._is_json = settings.is_json
        self._clock = settings.clock
        self._wait_ms = settings.timeout_ms
        self._cell = cell
        self._report = report
        self._said: set[str] = set()
        self._refusal = ""  # at the last look; one that stands for no longer is over

    def until_it_votes(self) -> StatusRow:
        """Return its row then.

        Raises:
            NotNow: it was replaced once more. OutcomeUnknown: not within --timeout.
        """
        name, number = self._report.replica, self._report.incarnation
        end_ms = None if self._wait_ms is None else self._clock.mono_ms() + self._wait_ms
        while True:
            row = self._look()
            if row is not None and row.incarnation > number:
                raise NotNow(f"{name} was replaced once more: incarnation {row.incarnation}")
            if row is not None and (row.incarnation, row.standing) == (number, "votes"):
                self._say(f"{name} votes from now on (incarnation {number})")
                return row
            if row is not None and row.incarnation == number:
                self._tell(row)
            if end_ms is not None and self._clock.mono_ms() >= end_ms:
                within = f"within {(self._wait_ms or 0) / 1000:g} s"
                raise OutcomeUnknown(
                    f"{name} does not vote {within}", "it goes on; `raftcron status` shows it"
                )
            time.sleep(_LOOK_S)

    def _look(self) -> StatusRow | None:
        try:
            rows = self._cell.ask(table.STATUS).rows
        except (Unavailable, OutcomeUnknown):
            return None  # all are away for a moment
        return next((row for row in rows if row.id == self._report.replica), None)

    def _tell(self, row: StatusRow) -> None:
        if row.joining is None:
            self._say(f"{row.id} waits for a new disk")
            return
        before, self._refusal = self._refusal, row.joining.text
        if row.joining.stage != "waiting" or before == self._refusal:
            self._say(f"{row.id} {describe_progress(row.joining)}")

    def _say(self, line: str) -> None:
        """Say it once: peers that refuse a disk take turns."""
        if line not in self._said:
            self._said.add(line)
            render.line(line, err=self._is_json)
