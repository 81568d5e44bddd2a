"""executors: who runs launches, how full, and what may go where."""

from __future__ import annotations

from typing import Any, Final

import click
from msgspec.structs import asdict

from cron.api import table
from cron.api.executors import ExecutorQuery, ExecutorReport, ExecutorView, TwinView
from cron.cli import render
from cron.cli.needs import show_about, show_cpu
from cron.cli.one_executor import (
    RUN_COLUMNS,
    TWIN_MARK,
    detail_pairs,
    run_cells,
    run_row,
    tell_twin,
    twin_row,
)
from cron.cli.options import Settings, cell_options, pass_settings
from cron.cli.scopes import limit_option
from cron.cli.times import format_ms, show_length
from cron.cli.values import not_empty

EXECUTOR_COLUMNS: Final = (
    "id", "host", "version", "role", "used", "groups", "labels", "cpu", "memory", "heard",
    render.NOTE,
)  # fmt: skip
EXECUTOR_NARROW: Final = ("version", "host", "cpu", "memory", "heard", "labels")
HANDLERS_SHOWN: Final = 3


@click.command("executors")
@click.argument("executor", default="", metavar="[ID]", callback=not_empty)
@limit_option(1_000, 20)
@cell_options
@pass_settings
def executors_command(settings: Settings, executor: str, limit: int) -> None:
    """List the executors: slots, running launches, labels, handlers, last heartbeat.

    With an ID, show all details of that executor, and up to --limit launches that run there.
    `raftcron executor drain ID` lets an executor finish its launches and leave.
    """
    with settings.client() as client:
        if executor:
            one = client.ask(table.EXECUTOR, ExecutorQuery(executor=executor, limit=limit))
            _show_one(settings, one)
            return
        report = client.ask(table.EXECUTORS)
    twins = {twin.executor: twin for twin in report.twins}
    if settings.is_json:
        render.json_lines(executor_row(view, twins.get(view.id)) for view in report.executors)
        return
    cells = (executor_cells(view, twins.get(view.id)) for view in report.executors)
    nothing = "no executors"
    render.table(EXECUTOR_COLUMNS, cells, nothing=nothing, narrow=EXECUTOR_NARROW, spill="id")
    _tell_twins(report.twins)


def _tell_twins(twins: list[TwinView]) -> None:
    for twin in twins:
        render.line(tell_twin(twin))


def _show_one(settings: Settings, report: ExecutorReport) -> None:
    """Show one executor, once for each ledger that it came with."""
    twin = report.twins[0] if report.twins else None
    for one in report.details:
        if settings.is_json:
            runs = [run_row(run) for run in one.runs]
            groups = [asdict(group) for group in one.executor.groups]
            row = executor_row(one.executor, twin) | {"groups": groups}
            render.json_lines([row | {"commands_open": one.commands, "runs": runs}])
            continue
        render.pairs(one.executor.id, detail_pairs(one, report.now_ms))
        if one.runs:
            cells = [run_cells(run, report.now_ms) for run in one.runs]
            render.table(RUN_COLUMNS, cells, nothing="", spill="launch")
        left = one.executor.open - len(one.runs)
        if left > 0:
            render.line(f"raftcron: {left} more; choose a higher --limit", err=True)
    if not settings.is_json:
        _tell_twins(report.twins)


def executor_row(view: ExecutorView, twin: TwinView | None = None) -> render.Row:
    """Return an executor as JSON, with the process that was refused since it has the same id."""
    labels: dict[str, Any] = dict(one.split("=", 1) for one in view.labels)
    return {
        "id": view.id,
        "role": view.role,
        "host": view.host,
        "address": view.address or None,
        "pid": view.pid or None,
        "version": view.version or None,
        "slots": view.slots,
        "open": view.open,
        "running": view.running,
        "labels": labels,
        "groups": [
            {"group": group.group, "slots": group.slots, "handlers": group.handlers}
            for group in view.groups
        ],
        "cpu_milli": view.cpu_milli or None,
        "memory_bytes": view.memory_bytes or None,
        "silent_ms": view.silent_ms,
        "clock_offset_ms": view.clock_offset_ms,
        "connected_since": format_ms(view.connected_since_ms),
        "drained_by": view.drained_by or None,
        "drained_at": format_ms(view.drained_ms),
        "gets_work": view.gets_work,
        "ledger": view.ledger,
        "note": view.note or None,
        "incarnation": view.incarnation or None,
        "joined_at": format_ms(view.joined_ms),
        "refused": twin_row(twin) if twin is not None else None,
    }


def executor_cells(view: ExecutorView, twin: TwinView | None = None) -> list[str]:
    """Return an executor as cells of EXECUTOR_COLUMNS; with a mark where another process was
    refused since it has the same id."""
    slots = view.slots + sum(group.slots for group in view.groups)
    return [
        f"{view.id} {TWIN_MARK}" if twin is not None else view.id,
        view.host or "-",
        view.version or "-",
        "draining" if view.drained_by and view.role == "connected" else view.role,
        f"{view.open}/{slots}",
        _groups(view) or "-",
        " ".join(view.labels) or "-",
        show_cpu(view.cpu_milli),
        show_about(view.memory_bytes),
        "-" if view.silent_ms is None else f"{show_length(view.silent_ms)} ago",
        view.note,
    ]


def _groups(view: ExecutorView) -> str:
    """The groups of workers with their handlers, beside the slots for commands."""
    parts = [f"command {view.slots}"] if view.slots else []
    for group in view.groups:
        more = len(group.handlers) - HANDLERS_SHOWN
        handlers = " ".join(group.handlers[:HANDLERS_SHOWN]) + (f" +{more}" if more > 0 else "")
        parts.append(f"{group.group} {group.slots}: {handlers}")
    return ", ".join(parts)
