"""gate: hold launches back, or drop them, whatever their jobs say."""

from __future__ import annotations

from typing import Any, Final

import click

from cron.api import table
from cron.api.gates import GateOpening, GateRequest, GateView
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Settings,
    asks_cell,
    cell_options,
    filter_options,
    first_option,
    priority_option,
    stale_option,
    until_options,
    word_option,
)
from cron.cli.rows import gate_row
from cron.cli.times import show_ms
from cron.cli.values import count
from cron.errors import NotFound

NUMBER_MAX: Final = 1 << 62


def describe_gate(view: GateView) -> str:
    """Return what a gate holds, in one line."""
    named = (
        ("pool", view.pool),
        ("collection", view.collection),
        ("tenant", view.tenant),
        ("jobs", view.jobs),
        ("priority", str(view.priority) if view.priority >= 0 else ""),
    )
    return ", ".join(f"{what} {name}" for what, name in named if name) or "everything"


GATES: Final = render.Listing[GateView](
    gate_row,
    "gate=number action holds since_utc@since_ms until_utc@until_ms by? note=reason",
    {"holds": describe_gate},
    nothing="no gate is closed",
    narrow="by since_utc",
    spill="gate",
)


@click.group("gate", cls=Group)
@cell_options
def gate_command() -> None:
    """Hold back or skip launches by handler, collection, tenant, job or priority."""


@gate_command.command("close")
@filter_options
@word_option("--job", "jobs", metavar="PATTERN", help="Match jobs, such as 'billing/*'.")
@priority_option
@click.option("--all", "is_everything", is_flag=True, help="All launches of the cell.")
@click.option(
    "--action",
    type=click.Choice(["pause", "drop"]),
    default="pause",
    show_default=True,
    help="Let the launches wait and extend their deadlines, or skip them.",
)
@click.option("--reason", default="", help="Shown with each launch that is held back.")
@until_options
@asks_cell
def close_command(settings: Settings, /, **said: Any) -> None:
    """Close a gate: launches that match all options do not begin; running launches continue."""
    is_named = any(said[one] for one in ("pool", "collection", "tenant", "jobs"))
    if said["is_everything"] is (is_named or said["priority"] >= 0):
        raise click.UsageError("say what the gate holds: something, or --all and nothing else")
    view = settings.ask(table.CLOSE_GATE, GateRequest(**said))
    until_text = f" until {show_ms(view.until_ms)}" if view.until_ms else ""
    status = "are skipped" if view.action == "drop" else "wait"
    settings.show_row(
        gate_row(view) | {"notes": view.notes},
        f"gate {view.number} is closed{until_text}: launches of {describe_gate(view)} {status}",
        f"open it with: raftcron gate open {view.number}",
    )
    settings.show_notes(view.notes)


@gate_command.command("open")
@click.argument("numbers", nargs=-1, required=True, type=count(1, NUMBER_MAX), metavar="N...")
@asks_cell
def open_command(settings: Settings, numbers: tuple[int, ...]) -> None:
    """Open gates by their numbers."""
    report = settings.ask(table.OPEN_GATES, GateOpening(numbers=list(numbers)))
    for view in report.gates:
        settings.show_row(gate_row(view), f"gate {view.number} is open: {describe_gate(view)}")
    if report.unknown:
        which = ", ".join(map(str, report.unknown))
        text = f"{'gate' if len(report.unknown) == 1 else 'gates'} {which}: not closed"
        raise NotFound(text, "`raftcron gate list` shows those that are")


@gate_command.command("list")
@first_option
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List the gates that are closed."""
    settings.show(GATES, settings.ask(table.GATES).gates)
