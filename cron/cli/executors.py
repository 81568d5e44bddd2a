"""executors: who runs launches, how full, and what may go where."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from cron.api.pool_views import ExecutorView
from cron.cli import render
from cron.cli.needs import show_about, show_cpu
from cron.cli.options import Settings, cell_options, pass_settings
from cron.cli.times import format_ms, show_length

EXECUTOR_COLUMNS: Final = (
    "id", "host", "version", "role", "used", "groups", "labels", "cpu", "memory", "heard",
    render.NOTE,
)  # fmt: skip
EXECUTOR_NARROW: Final = ("version", "host", "cpu", "memory", "heard", "labels")
HANDLERS_SHOWN: Final = 3


@click.command("executors")
@cell_options
@pass_settings
def executors_command(settings: Settings) -> None:
    """List the executors: slots, what runs, labels, handlers, when they were heard last.

    `raftcron executor drain ID` lets one finish and leave.
    """
    with settings.client() as client:
        views = client.executors().executors
    if settings.is_json:
        render.json_lines(map(executor_row, views))
    else:
        cells = map(executor_cells, views)
        render.table(
            EXECUTOR_COLUMNS, cells, nothing="no executors", narrow=EXECUTOR_NARROW, spill="id"
        )


def executor_row(view: ExecutorView) -> render.Row:
    """Return an executor as JSON."""
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
        "groups": [msgspec.structs.asdict(group) for group in view.groups],
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
    }


def executor_cells(view: ExecutorView) -> list[str]:
    """Return an executor as cells of EXECUTOR_COLUMNS."""
    slots = view.slots + sum(group.slots for group in view.groups)
    return [
        view.id,
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
