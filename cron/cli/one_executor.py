"""One executor: all that is known of it, what is open there, and who else claims its id."""

from __future__ import annotations

from typing import Final

from cron.api.executors import ExecutorDetail, ExecutorView, RunView, TwinView
from cron.cli import render
from cron.cli.needs import show_about, show_cpu
from cron.cli.times import format_ms, show_length, show_ms
from launcher.names import short_job_name

RUN_COLUMNS: Final = ("launch", "state", "pool", "begun utc", "for", render.NOTE)
TWIN_MARK: Final = "!"
"""Beside the id of an executor: a line below the table says what is the matter."""


def detail_pairs(detail: ExecutorDetail, now_ms: int) -> list[tuple[str, str]]:
    """Return an executor as names and values for people."""
    view = detail.executor
    slots = [("commands", f"{detail.commands} of {view.slots} slots")] if view.slots else []
    slots += [
        (f"group {group.group}", f"{group.open} of {group.slots} slots: {' '.join(group.handlers)}")
        for group in view.groups
    ]
    return [
        ("role", view.role + ("" if view.gets_work else ", gets no work")),
        ("note", view.note),
        ("host", view.host),
        ("address", view.address),
        ("pid", str(view.pid or "")),
        ("version", view.version),
        ("labels", " ".join(view.labels)),
        ("ledger", view.ledger),
        ("incarnation", view.incarnation),
        ("connected since", show_ms(view.connected_since_ms)),
        ("joined", show_ms(view.joined_ms)),
        ("heard", "" if view.silent_ms is None else f"{show_length(view.silent_ms)} ago"),
        ("clock", _clock(view)),
        ("cpu", show_cpu(view.cpu_milli)),
        ("memory", show_about(view.memory_bytes)),
        *slots,
        ("open", f"{view.open}, and it says that it runs {view.running}" if view.open else ""),
        ("drained", _drained(view, now_ms)),
    ]


def _clock(view: ExecutorView) -> str:
    offset_ms = view.clock_offset_ms
    if offset_ms is None:
        return ""
    return f"{show_length(abs(offset_ms))} {'behind' if offset_ms < 0 else 'ahead of'} the leader's"


def _drained(view: ExecutorView, now_ms: int) -> str:
    if not view.drained_by:
        return ""
    ago = show_length(max(0, now_ms - view.drained_ms))
    return f"by {view.drained_by} since {show_ms(view.drained_ms)}, {ago} ago"


def run_row(view: RunView) -> render.Row:
    """Return what is open on an executor as JSON."""
    return {
        "launch": view.launch,
        "attempt": view.attempt,
        "part": view.part or None,
        "state": view.state,
        "pool": view.pool or None,
        "begun_at": format_ms(view.begun_at_ms),
        "started_at": format_ms(view.started_at_ms),
        "is_cancelled": view.is_cancelled,
    }


def run_cells(view: RunView, now_ms: int) -> list[str]:
    """Return what is open on an executor as cells of RUN_COLUMNS."""
    name = short_job_name(view.launch)
    if view.attempt > 1 or view.part:
        name += f"#{view.attempt}"
    if view.part:
        name += f"/{view.part}"
    since_ms = view.started_at_ms or view.begun_at_ms
    return [
        name,
        view.state,
        view.pool or "-",
        show_ms(view.begun_at_ms).removesuffix(" UTC"),
        show_length(max(0, now_ms - since_ms)),
        "is being killed" if view.is_cancelled else "",
    ]


def twin_row(view: TwinView) -> render.Row:
    """Return a process that was refused as JSON."""
    return {
        "host": view.host,
        "pid": view.pid,
        "address": view.address or None,
        "held_by": view.held_by or None,
        "ago_ms": view.ago_ms,
        "times": view.times,
    }


def tell_twin(view: TwinView) -> str:
    """Return in a line which process was refused and why."""
    who = f"{view.host} (pid {view.pid})"
    ago = show_length(view.ago_ms)
    return f"{TWIN_MARK} {view.executor}: {who} was refused {ago} ago: it has the same id"
