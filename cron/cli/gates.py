"""gate: hold launches back, or drop them, whatever their jobs say."""

from __future__ import annotations

from typing import Any, Final

import click

from cron.api import table
from cron.api.gates import GateOpening, GateRequest, GateView
from cron.cli import render
from cron.cli.app import Group
from cron.cli.options import (
    Count,
    Settings,
    asks_cell,
    cell_options,
    collection_option,
    person,
    pool_of,
    pool_options,
    priority_option,
    stale_option,
    until_ms,
    until_options,
    word_option,
)
from cron.cli.rows import gate_row
from cron.cli.times import show_ms, show_utc
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
    {
        "gate": lambda view: str(view.number),
        "action": lambda view: view.action,
        "holds": describe_gate,
        "since utc": lambda view: show_utc(view.since_ms),
        "until utc": lambda view: show_utc(view.until_ms),
        "by": lambda view: view.by or "-",
        render.NOTE: lambda view: view.reason,
    },
    nothing="no gate is closed",
    narrow=("by", "since utc"),
    spill="gate",
)


@click.group("gate", cls=Group)
@cell_options
def gate_command() -> None:
    """Hold back or skip launches by handler, collection, tenant, job or priority."""


@gate_command.command("close")
@pool_options
@collection_option
@word_option("--tenant", metavar="T", help="Match this tenant.")
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
    request = _request(settings.now_ms(), said)
    view = settings.ask(table.CLOSE_GATE, request)
    if settings.is_json:
        render.json_lines([gate_row(view) | {"notes": view.notes}])
        return
    until_text = f" until {show_ms(view.until_ms)}" if view.until_ms else ""
    status = "are skipped" if view.action == "drop" else "wait"
    render.line(
        f"gate {view.number} is closed{until_text}: launches of {describe_gate(view)} {status}"
    )
    render.line(f"open it with: raftcron gate open {view.number}")
    render.notes(view.notes)


def _request(now_ms: int, said: dict[str, Any]) -> GateRequest:
    """Return what the options of `gate close` say."""
    end_ms = until_ms(now_ms, said.pop("until"), said.pop("for_"))
    pool, priority = pool_of(said.pop("handler"), said.pop("pool")), said.pop("priority")
    named = (pool, said["collection"], said["tenant"], said["jobs"], priority is not None)
    if said["is_everything"] is any(named):
        raise click.UsageError("say what the gate holds: something, or --all and nothing else")
    return GateRequest(
        until_ms=end_ms,
        pool=pool,
        priority=-1 if priority is None else priority,
        by=person(),
        **said,
    )


@gate_command.command("open")
@click.argument("numbers", nargs=-1, required=True, type=Count(1, NUMBER_MAX), metavar="N...")
@asks_cell
def open_command(settings: Settings, numbers: tuple[int, ...]) -> None:
    """Open gates by their numbers."""
    report = settings.ask(table.OPEN_GATES, GateOpening(numbers=list(numbers), by=person()))
    if settings.is_json:
        render.json_lines(map(gate_row, report.gates))
    else:
        for view in report.gates:
            render.line(f"gate {view.number} is open: {describe_gate(view)}")
    if report.unknown:
        which = ", ".join(map(str, report.unknown))
        text = f"{'gate' if len(report.unknown) == 1 else 'gates'} {which}: not closed"
        raise NotFound(text, "`raftcron gate list` shows those that are")


@gate_command.command("list")
@stale_option
@asks_cell
def list_command(settings: Settings) -> None:
    """List the gates that are closed."""
    views = settings.ask(table.GATES).gates
    GATES.show(views, is_json=settings.is_json)
