"""Why a local time that a person has in mind is not the instant they think: changes of the clock.

Pure. The rules are those of `cron.calendar.schedule`: a fixed job runs once for each local time, a
skipped one at the first instant after the gap, a repeated one the first time; an interval job
follows the wall clock.
"""

from __future__ import annotations

from cron.calendar.schedule import Tick, Ticks, compile_or_none, unreadable
from cron.calendar.zones import Zone, zone
from cron.job import Schedule
from launcher.names import format_time

_DAY_MIN = 1440
_NEAR_S = 26 * 3600


def explain_clock(schedule: Schedule, at_s: int) -> str:
    """Return a sentence if a change of the clock has to do with what is, or is not, due at `at_s`;
    else an empty text."""
    if schedule.every_s or unreadable(schedule):
        return ""
    local_zone = zone(schedule.zone)
    ticks = compile_or_none(schedule)
    tick = ticks.tick_after(at_s - 1)
    if tick is not None and tick.scheduled_s == at_s:
        return _skipped(local_zone, tick)
    if ticks.is_fixed:
        return _repeated(local_zone, ticks, at_s) or _near_skipped(local_zone, ticks, at_s)
    return _interval(local_zone, at_s)


def _clock(local_min: int) -> str:
    return f"{local_min // 60 % 24:02}:{local_min % 60:02}"


def _skipped(local_zone: Zone, tick: Tick) -> str:
    shown = tick.scheduled_s // 60 + local_zone.offset(tick.scheduled_s // 60)
    if tick.local_min in (-1, shown):
        return ""
    return (
        f"{_clock(tick.local_min)} did not exist in {local_zone.name} that day, the clock went "
        f"forward over it; so it was due at the first instant after the gap, {_clock(shown)}"
    )


def _repeated(local_zone: Zone, ticks: Ticks, at_s: int) -> str:
    shown = at_s // 60 + local_zone.offset(at_s // 60)
    before = ticks.tick_before(at_s)
    while before is not None and before.scheduled_s > at_s - _NEAR_S:
        if before.local_min == shown:
            return (
                f"{_clock(shown)} came twice in {local_zone.name} that day, the clock was set back;"
                f" the launch belongs to the first time, {format_time(before.scheduled_s)}"
            )
        before = ticks.tick_before(before.scheduled_s)
    return ""


def _near_skipped(local_zone: Zone, ticks: Ticks, at_s: int) -> str:
    """A gap nearby: whoever wrote its local time down got an instant off the schedule."""
    for near in (ticks.tick_before(at_s), ticks.tick_after(at_s)):
        if near is None or abs(near.scheduled_s - at_s) > 3 * 3600:
            continue
        told = _skipped(local_zone, near)
        if told:
            return f"{told} ({format_time(near.scheduled_s)})"
    return ""


def _interval(local_zone: Zone, at_s: int) -> str:
    change = local_zone.segment(at_s // 60 + _DAY_MIN).start
    before, after = local_zone.offset(change - 1), local_zone.offset(change)
    if before == after or abs(change - at_s // 60) > _DAY_MIN:
        return ""
    way = "forward" if after > before else "back"
    return (
        f"the clock of {local_zone.name} was set {way} from {_clock(change + before)} to "
        f"{_clock(change + after)} at {format_time(change * 60)}; a job whose minute or hour begins"
        " with * follows the wall clock and makes up for nothing"
    )
