"""Views as rows: the JSON keys that programs may rely on, and the cells that people see.

Keys are added at the end and never renamed. What is not known is null.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cron.api.gates import GateView
from cron.api.jobs import JobView
from cron.api.launches import LaunchView, PartView
from cron.api.members import OverloadView, StatusRow
from cron.api.snapshots import KeepingView
from cron.cli.needs import needs_row
from cron.cli.render import NOTE, Row
from cron.cli.times import format_ms, format_s, show_length, show_ms, show_s
from cron.progress import describe_progress
from launcher.names import short_job_name, split_job_name
from launcher.work import NO_TIMEOUT_MS

LAUNCH_COLUMNS: Final = (
    "launch", "attempt", "state", "reason", "started utc", "late", "ran", "exit", "executor", NOTE,
)  # fmt: skip
LAUNCH_NARROW: Final = ("executor", "attempt", "started utc", "ran", "exit")
"""What can be missed first: a second attempt is in the launch's cell, too."""
JOB_COLUMNS: Final = (
    "job", "schedule", "zone", "next utc", "last utc", "state", "running", "held", "pool", NOTE,
)  # fmt: skip
JOB_NARROW: Final = ("running", "last utc", "zone", "pool", "state")
STATUS_COLUMNS: Final = (
    "kind", "id", "address", "pid", "role", "term", "applied", "digest", "version", "standing",
    NOTE,
)  # fmt: skip
STATUS_NARROW: Final = ("version", "digest", "applied", "standing", "kind", "term")
BEHIND_MIN: Final = 100
"""Entries that are on their way are no news."""


UNREACHABLE: Final = "unreachable"


def job_keys(full_name: str) -> Row:
    """Return `job` (without its tenant) and `tenant`."""
    tenant, job = split_job_name(full_name)
    return {"job": job, "tenant": tenant}


def launch_row(view: LaunchView) -> Row:
    """Return a launch as JSON; a run of skipped instants in one row also says its end and count."""
    row = {
        "launch": view.launch,
        "job": view.job.rpartition("/")[2],
        "tenant": view.tenant,
        "scheduled_at": format_s(view.scheduled_s),
        "attempt": view.attempt,
        "state": view.state,
        "reason": view.reason or None,
        "begun_at": format_ms(view.begun_at_ms),
        "launched_at": format_ms(view.launched_at_ms),
        "started_at": format_ms(view.started_at_ms),
        "finished_at": format_ms(view.finished_at_ms),
        "exit_code": view.exit_code,
        "executor": view.executor or None,
        "term": view.term or None,
        "lateness_ms": view.lateness_ms,
        "full_name": f"{view.tenant}/{view.job.rpartition('/')[2]}",
        "output_bytes": view.output_bytes or None,
        "kind": view.kind,
        "is_amended": view.is_amended,
        "amends": view.amends or None,
        "ended_index": view.ended_index or None,
        "number": view.number,
        "cpu_ms": view.cpu_ms,
        "memory_peak_bytes": view.memory_peak_bytes,
    }
    if view.count > 1:
        row |= {"last_scheduled_at": format_s(view.last_s), "count": view.count}
    return row


def launch_details(view: LaunchView) -> Row:
    """Return all that is known of a launch as JSON: the keys of `launch_row` first."""
    return launch_row(view) | {
        "epoch": view.epoch or None,
        "replica": view.replica or None,
        "begun_index": view.begun_index or None,
        "launched_index": view.launched_index or None,
        "ended_at": format_ms(view.ended_at_ms),
        "local_time": view.local_time or None,
        "revision": view.revision,
        "by": view.by or None,
        "detail": view.detail or None,
        "in_doubt": view.in_doubt,
        "waiting": view.waiting or None,
        "deadline_at": format_ms(view.deadline_at_ms),
        "is_open": view.is_open,
        "parts": [part_row(part) for part in view.parts],
    }


def part_row(part: PartView) -> Row:
    """Return one of several parts of an attempt as JSON."""
    return {
        "part": part.part,
        "executor": part.executor or None,
        "state": part.state,
        "reason": part.reason or None,
        "started_at": format_ms(part.started_at_ms),
        "finished_at": format_ms(part.finished_at_ms),
        "exit_code": part.exit_code,
        "detail": part.detail or None,
        "cpu_ms": part.cpu_ms,
        "memory_peak_bytes": part.memory_peak_bytes,
    }


def launch_cells(view: LaunchView) -> list[str]:
    """Return a launch as cells of LAUNCH_COLUMNS; the default tenant is left out of its name."""
    name = short_job_name(view.launch)
    if view.attempt > 1:
        name += f"#{view.attempt}"
    if view.count > 1:
        name += f" and {view.count - 1} more"
    return [
        name,
        str(view.attempt or "-"),
        _shown_state(view),
        view.reason or ("waits" if view.waiting else "-"),
        _utc(show_ms(view.started_at_ms)),
        show_length(view.lateness_ms),
        show_length(ran_ms(view)),
        "-" if view.exit_code is None else str(view.exit_code),
        view.executor or "-",
        view.waiting,
    ]


def _shown_state(view: LaunchView) -> str:
    """The state of a launch, and whether it became known late."""
    if view.is_amended:
        return f"{view.state} (amended)"
    return f"{view.state} (late news)" if view.kind == "amendment" else view.state


def ran_ms(view: LaunchView) -> int | None:
    """Return how long a launch ran, by its executor's clock; None while that is not known."""
    if not view.started_at_ms or not view.finished_at_ms:
        return None
    return view.finished_at_ms - view.started_at_ms


def job_row(view: JobView) -> Row:
    """Return a job as JSON."""
    return (
        job_keys(view.name)
        | {
            "schedule": view.schedule,
            "resolved": view.resolved or None,
            "zone": view.zone,
            "next": [format_s(at_s) for at_s in view.next_s],
            "overlap": view.overlap,
            "catchup": view.catchup,
            "on_lost": view.on_lost,
            "deadline_s": view.deadline_s,
            "timeout_ms": view.timeout_ms if 0 < view.timeout_ms < NO_TIMEOUT_MS else None,
            "paused": view.paused,
            "pause_reason": view.pause_reason or None,
            "paused_by": view.paused_by or None,
            "held": view.held or None,
            "paused_until": format_ms(view.paused_until_ms),
            "source": view.source,
            "revision": view.revision,
            "command": view.command,
            "user": view.user or None,
            "running": view.running,
            "last": launch_row(view.last) if view.last else None,
            "full_name": view.name,
        }
        | needs_row(view.needs)
        | {"gate": gate_row(view.gate) if view.gate is not None else None}
        | {"changed_by": view.changed_by or None, "changed_at": format_ms(view.changed_ms)}
    )


def gate_row(view: GateView) -> Row:
    """Return a gate as JSON; what it does not name is null."""
    return {
        "gate": view.number,
        "action": view.action,
        "pool": view.pool or None,
        "collection": view.collection or None,
        "tenant": view.tenant or None,
        "jobs": view.jobs or None,
        "priority": view.priority if view.priority >= 0 else None,
        "since": format_ms(view.since_ms),
        "until": format_ms(view.until_ms),
        "by": view.by or None,
        "reason": view.reason or None,
    }


def job_cells(view: JobView) -> list[str]:
    """Return a job as cells of JOB_COLUMNS; a placed `?` shows what it became."""
    is_placed = view.resolved and "?" in view.schedule
    return [
        short_job_name(view.name),
        f"{view.schedule} = {view.resolved}" if is_placed else view.schedule,
        view.zone,
        _utc(show_s(view.next_s[0])) if view.next_s else "-",
        _utc(show_s(max(view.last.scheduled_s, view.last.last_s))) if view.last else "-",
        view.last.state if view.last else "-",
        str(view.running),
        _held(view) or "-",
        view.needs.handler or "-",
        ", ".join(
            filter(None, (_held_note(view), _pause_note(view), _gate_note(view), _dead_note(view)))
        ),
    ]


def _held_note(view: JobView) -> str:
    """Why the leader cannot launch it at all."""
    return f"held: {view.held}" if view.held else ""


def _held(view: JobView) -> str:
    """What keeps a job from being launched, in a few words."""
    gate = f"gate {view.gate.number}" if view.gate is not None else ""
    held = ("unreadable" if view.held else "", "paused" if view.paused else "", gate)
    return ", ".join(filter(None, held))


def _gate_note(view: JobView) -> str:
    """What the gate does, until when, by whom and why."""
    gate = view.gate
    if gate is None:
        return ""
    does = "drops" if gate.action == "drop" else "holds"
    by = f" by {gate.by}" if gate.by else ""
    until = f" until {show_ms(gate.until_ms)}" if gate.until_ms else ""
    reason = f": {gate.reason}" if gate.reason else ""
    return f"gate {gate.number}, closed{by}{until}, {does} it{reason}"


def _dead_note(view: JobView) -> str:
    """How many launches were given up."""
    count = view.needs.dead
    return f"{count} dead letter{'' if count == 1 else 's'}" if count else ""


def _pause_note(view: JobView) -> str:
    """Until when, by whom and why a job is paused."""
    if not view.paused:
        return ""
    by = f" by {view.paused_by}" if view.paused_by else ""
    until = f" until {show_ms(view.paused_until_ms)}" if view.paused_until_ms else ""
    return f"paused{by}{until}" + (f": {view.pause_reason}" if view.pause_reason else "")


def _utc(shown: str) -> str:
    """A time without its zone, for a column whose head names it."""
    return shown.removesuffix(" UTC")


def status_row(view: StatusRow) -> Row:
    """Return a replica or an executor as JSON; of a silent replica nobody knows where it stands."""
    is_known = view.kind == "replica" and view.role != UNREACHABLE
    return {
        "kind": view.kind,
        "id": view.id,
        "address": view.address or None,
        "pid": view.pid or None,
        "role": view.role,
        "term": view.term if is_known else None,
        "applied": view.applied if is_known else None,
        "digest": view.digest or None,
        "version": view.version or None,
        "leader": view.leader or None,
        "clock_offset_ms": view.clock_offset_ms,
        "tzdata": view.tzdata or None,
        "since": format_ms(view.since_ms),
        "slots": view.slots,
        "running": view.running,
        "ledger": view.ledger or None,
        "note": view.note or None,
        "incarnation": view.incarnation or None,
        "standing": view.standing or None,
        "matched": view.matched,
        "joining": msgspec.structs.asdict(view.joining) if view.joining else None,
        "keeping": keeping_row(view.keeping) if view.keeping else None,
        "overload": overload_row(view.overload) if view.overload else None,
    }


def overload_row(view: OverloadView) -> Row:
    """Return since when more falls due than can begin, and how much was skipped, as JSON."""
    return {"since": format_s(view.since_s), "queue": view.queue, "skipped": view.skipped}


def keeping_row(view: KeepingView) -> Row:
    """Return what a replica keeps as JSON."""
    return {
        "snapshot_index": view.snapshot_index or None,
        "snapshot_at": format_ms(view.snapshot_at_ms),
        "store": view.store or None,
        "stored_index": view.stored_index or None,
        "stored_at": format_ms(view.stored_at_ms),
        "segments": view.segments,
        "segments_waiting": view.segments_waiting,
        "segments_missing": view.segments_missing,
        "open_rows": view.open_rows,
        "failing_since": format_ms(view.failing_since_ms),
        "failing": view.failing or None,
        "filling": view.filling or None,
        "resolving": view.resolving or None,
        "outputs_waiting": view.outputs_waiting,
    }


def status_cells(view: StatusRow, leader_at: int | None = None) -> list[str]:
    """Return a replica or an executor as cells of STATUS_COLUMNS.

    `leader_at` is the leader's own `matched`, where there is one.
    """
    is_executor = view.kind == "executor"
    is_blank = is_executor or view.role == UNREACHABLE
    notes = [f"{view.running} of {view.slots} slots"] if is_executor else []
    if view.clock_offset_ms and abs(view.clock_offset_ms) >= 1_000:
        notes.append(f"clock {show_length(view.clock_offset_ms)} off")
    if view.joining:
        notes.append(describe_progress(view.joining))
    elif leader_at is not None and view.matched is not None:
        # A new leader knows of no other replica how far it is, 0, until that one has answered it;
        # what it has applied it says itself.
        reached = max(view.matched, view.applied)
        behind = leader_at - reached if reached else 0
        notes += [f"{behind:,} entries behind"] if behind >= BEHIND_MIN else []
    if view.note:
        notes.append(view.note)
    return [
        view.kind,
        view.id,
        view.address or "-",
        str(view.pid or "-"),
        view.role,
        "-" if is_blank else str(view.term),
        "-" if is_blank else str(view.applied),
        view.digest[:12] or "-",
        view.version or "-",
        f"{view.standing} #{view.incarnation}" if view.standing else "-",
        ", ".join(notes),
    ]
