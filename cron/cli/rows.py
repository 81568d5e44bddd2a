"""Launches and gates as rows, which several commands show: JSON keys that programs may rely on, and
the cells that people see.

Keys are added at the end and never renamed. What is not known is null.
"""

from __future__ import annotations

from typing import Final

from cron.api.gates import GateView
from cron.api.launches import LaunchView
from cron.cli.render import JsonRow, Listing, row_of
from cron.cli.times import format_s, show_length
from launcher.protocol.names import short_job_name, split_job_name

_LAUNCH_KEYS: Final = (
    "launch job tenant scheduled_at@scheduled_s attempt state reason? begun_at@begun_at_ms"
    " launched_at@launched_at_ms started_at@started_at_ms finished_at@finished_at_ms exit_code"
    " executor? term? lateness_ms full_name output_bytes? kind is_amended amends? ended_index?"
    " number cpu_ms memory_peak_bytes"
)
_DETAIL_KEYS: Final = (
    "epoch? replica? begun_index? launched_index? ended_at@ended_at_ms local_time? revision by?"
    " detail? in_doubt waiting? deadline_at@deadline_at_ms is_open parts"
)
_PART_KEYS: Final = (
    "part executor? state reason? started_at@started_at_ms finished_at@finished_at_ms exit_code"
    " detail? cpu_ms memory_peak_bytes"
)
_GATE_KEYS: Final = (
    "gate=number action pool? collection? tenant? jobs? priority since@since_ms until@until_ms by?"
    " reason?"
)


def job_keys(full_name: str) -> JsonRow:
    """Return `job` (without its tenant) and `tenant`."""
    tenant, job = split_job_name(full_name)
    return {"job": job, "tenant": tenant}


def launch_row(view: LaunchView) -> JsonRow:
    """Return a launch as JSON; a run of skipped instants in one row also says its end and count."""
    job = view.job.rpartition("/")[2]
    row = row_of(view, _LAUNCH_KEYS, job=job, full_name=f"{view.tenant}/{job}")
    if view.count > 1:
        row |= {"last_scheduled_at": format_s(view.last_s), "count": view.count}
    return row


def launch_details(view: LaunchView) -> JsonRow:
    """Return all that is known of a launch as JSON: the keys of `launch_row` first."""
    parts = [row_of(part, _PART_KEYS) for part in view.parts]
    return launch_row(view) | row_of(view, _DETAIL_KEYS, parts=parts)


def gate_row(view: GateView) -> JsonRow:
    """Return a gate as JSON; what it does not name is null."""
    return row_of(view, _GATE_KEYS, priority=view.priority if view.priority >= 0 else None)


def _name(view: LaunchView) -> str:
    """Return the name of a launch without the default tenant."""
    attempt = f"#{view.attempt}" if view.attempt > 1 else ""
    more = f" and {view.count - 1} more" if view.count > 1 else ""
    return f"{short_job_name(view.launch)}{attempt}{more}"


def _state(view: LaunchView) -> str:
    """Return the state of a launch, and whether it became known late."""
    if view.is_amended:
        return f"{view.state} (amended)"
    return f"{view.state} (late report)" if view.kind == "amendment" else view.state


def ran_ms(view: LaunchView) -> int | None:
    """Return how long a launch ran, by its executor's clock; None while that is not known."""
    if not view.started_at_ms or not view.finished_at_ms:
        return None
    return view.finished_at_ms - view.started_at_ms


LAUNCHES: Final = Listing[LaunchView](
    launch_row,
    "launch attempt? state reason started_utc@started_at_ms late~lateness_ms ran exit=exit_code"
    " executor? note",
    {
        "launch": _name,
        "note": lambda view: view.waiting or view.detail,
        "state": _state,
        "reason": lambda view: view.reason or ("waits" if view.waiting else "-"),
        "ran": lambda view: show_length(ran_ms(view)),
    },
    nothing="no launches",
    # What can be missed first: a second attempt is in the launch's cell, too.
    narrow="executor attempt started_utc ran exit",
)
