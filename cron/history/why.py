"""Why: what happened at one instant of a job, in plain English, for a person. Pure.

A local time that a person has in mind may not be the instant they think, where the clock changes.
The rules are those of `cron.calendar.schedule`: a fixed job runs once for each local time, a
skipped one at the first instant after the gap, a repeated one the first time; an interval job
follows the wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from cron.calendar.schedule import Tick, Ticks, compile_or_none, unreadable
from cron.calendar.zones import Zone, zone
from cron.history.audited import AuditedJob
from cron.history.story import (
    Line,
    asked_by,
    changes_of_leader,
    due_at_ms,
    end_of_attempt,
    ended_as,
    format_ms,
    may_be_tried_again,
    memory_of,
    sentence_of,
    story_of,
)
from cron.job import Schedule
from cron.launch_state import LaunchState
from cron.notes import sentence
from cron.state.rows import Row, RowKind
from cron.state.state import LeaderTerm, Paused, Span
from launcher.protocol.names import format_time

TRIES_SHOWN: Final = 3
"""Attempts before the last that a verdict names; the story has them all."""


class Explanation(msgspec.Struct, frozen=True):
    """`verdict` is the answer in a sentence or two; `story` how it came to that, oldest first, each
    line with its time in epoch milliseconds."""

    verdict: str
    story: list[Line]


def explain(
    job: AuditedJob | None,
    at_s: int,
    rows: list[Row],
    open_row: Row | None,
    now_s: int,
    leader_terms: Sequence[LeaderTerm] = (),
    *,
    waiting: str = "",
) -> Explanation:
    """Return what happened, or will, at `at_s`.

    `rows` are what history has of that launch, as `RowStore.of_launch` returns them, `open_row`
    what State has, and `waiting` says why that has not begun. A job that was deleted still has its
    record; `job` is None for one that never was.
    """
    due_ms = at_s * 1000
    known = [*rows, open_row] if open_row is not None else rows
    story = story_of(known, leader_terms, due_ms)
    if open_row is not None:
        verdict = _open_verdict(open_row, waiting, now_s) + _with_tries(rows)
    elif rows:
        verdict = _ended_verdict(rows)
    elif job is None:
        verdict = "there is no job of this name, and there never was"
    else:
        verdict = _silent_verdict(job, at_s, now_s)
    verdict += _with_backfill(known)
    # Whose word it is that the newest attempt ran, where that is not the log's.
    attempts = [row for row in known if row.kind in (RowKind.ENDED, RowKind.OPEN)]
    if attempts and (memory := memory_of(attempts[-1])):
        verdict += f"; {memory}"
    verdict += _with_leaders(changes_of_leader(known, leader_terms, due_ms))
    if not any(row.trigger for row in known):
        span = job.span_at(at_s) if job is not None else None
        said = explain_clock(span.schedule, at_s) if span is not None else ""
        verdict += f"; {said}" if said else ""
    return Explanation(verdict, story)


def _with_leaders(changes: list[tuple[LeaderTerm, LeaderTerm]]) -> str:
    """Whether the leader changed while the launch was due or open."""
    if not changes:
        return ""
    leader_terms = [changes[0][0], *(leader_term for _, leader_term in changes)]
    names = [name for name, _ in groupby(leader_term.epoch.replica for leader_term in leader_terms)]
    if len(names) == 1:
        return f"; meanwhile {names[0]} leads again, in term {leader_terms[-1].epoch.term}"
    return f"; meanwhile the leader changed from {' to '.join(names)}"


def _with_backfill(rows: list[Row]) -> str:
    """Whether a person had a launch made again; else `by` of a manual one is who made it."""
    again = (row for row in reversed(rows) if row.is_redriven or not row.trigger)
    asked = next((row for row in again if asked_by(row)), None)
    if asked is None:
        return ""
    if asked.is_redriven:
        return f"; it was a dead letter, {asked_by(asked)} redrove it"
    return f"; it was a backfill, {asked_by(asked)} asked for it"


# ---- with rows


def _open_verdict(row: Row, waiting: str, now_s: int) -> str:
    if row.state is LaunchState.DUE:
        late = format_ms(max(0, now_s - row.scheduled_s) * 1000)
        refused = f"; attempt {row.attempt} was taken back" if row.begun_index else ""
        said = sentence(row.note, row.detail)
        detail = f" ({said})" if said else ""
        why = f": {waiting}" if waiting else ""
        return f"it is due since {late} and waits to be begun{why}{refused}{detail}"
    if row.state is LaunchState.BEGUN:
        return (
            f"it stands between its log points: attempt {row.attempt} was begun, and "
            f"{row.executor or 'its executor'} has not said yet whether it was started"
        )
    ran = format_ms(max(0, now_s * 1000 - row.started_ms))
    return f"it is running: attempt {row.attempt}{_on(row.executor)}, for {ran} so far"


def _ended_verdict(rows: list[Row]) -> str:
    ended = [row for row in rows if row.kind is not RowKind.AMENDMENT]
    if not ended:
        return "it was lost, its row is older than what is kept here; " + sentence_of(rows[-1])
    last = _newest_that_began(ended)
    attempts = f", attempt {last.attempt}" if last.attempt > 1 else ""
    if last.state is LaunchState.LOST and not last.attempt:
        verdict = f"nobody knows whether it ran, it was {sentence_of(last)}"
    elif last.state is LaunchState.SKIPPED or not last.attempt:
        verdict = f"it did not run, it was {sentence_of(last)}"
    elif last.state is LaunchState.LOST:
        verdict = f"it was begun{_on(last.executor)} and was {sentence_of(last)}"
    elif last.started_ms:
        lateness_ms = max(0, last.started_ms - due_at_ms(last))
        lateness = f", {format_ms(lateness_ms)} late" if not last.trigger else ""
        verdict = f"it ran{_on(last.executor)}{lateness}{attempts}, and {ended_as(last)}"
    else:
        verdict = (
            f"it was begun{_on(last.executor)}{attempts}, was not started, and {ended_as(last)}"
        )
    if last is not ended[-1]:
        verdict += f"; it was not begun again, it {ended_as(ended[-1])}"
    verdict += _with_tries(ended[: ended.index(last)])
    late = [row for row in rows if row.kind is RowKind.AMENDMENT]
    if late:
        row = late[-1]
        became = f" {row.state.label} after all"
        if row.state is LaunchState.LOST:
            became = f", {sentence(row.note, row.detail)}"
        verdict += f"; late report: attempt {row.attempt}{became}"
    return verdict


def _newest_that_began(ended: list[Row]) -> Row:
    """The last row that is of an attempt; one that waited for the next attempt has the number of
    the one before. The last of all where none was, or where a restore cannot know."""
    last = ended[-1]
    if last.begun_index or not last.attempt or last.state is LaunchState.LOST:
        return last
    began = [row for row in ended if row.begun_index and row.attempt <= last.attempt]
    return began[-1] if began else last


def _with_tries(ended: list[Row]) -> str:
    """How attempts ended that another one followed by itself; of many the newest."""
    said = [end_of_attempt(row) for row in ended if row.begun_index and may_be_tried_again(row)]
    more = f"; and {len(said) - TRIES_SHOWN} attempts before" if len(said) > TRIES_SHOWN else ""
    return "".join(f"; {one}" for one in said[-TRIES_SHOWN:]) + more


def _on(executor: str) -> str:
    return f" on {executor}" if executor else ""


# ---- without rows


def _silent_verdict(job: AuditedJob, at_s: int, now_s: int) -> str:
    span = job.span_at(at_s)
    if span is None:
        return _undeclared(job, at_s)
    if job.tick_at(at_s) is None:
        return _no_instant(span, at_s)
    if at_s > now_s:
        return _future(job, at_s, now_s)
    if at_s > job.horizon_s:
        return (
            "it is due and has no row yet: accounts reach to "
            f"{format_time(job.horizon_s)}, a leader will account for it{_paused(job.paused)}"
        )
    return (
        "it was due and has no row here: either this replica's history has a gap (see its gaps), or"
        " a promise was broken (run audit)"
    )


def _undeclared(job: AuditedJob, at_s: int) -> str:
    later = [span for span in job.revisions if span.from_s >= at_s]
    if not later:
        removed_s = max((span.to_s for span in job.revisions), default=0)
        return f"the job had been removed by then, at {format_time(removed_s)}"
    first = later[0]
    if at_s <= job.forgotten_s:
        until = format_time(job.forgotten_s)
        return f"what the job was then is forgotten, as all its schedules up to {until}"
    if first is job.revisions[0]:
        since = format_time(first.from_s)
        return f"the job was not declared yet, it was first applied at {since}"
    return f"the job was removed at that time, and declared again at {format_time(first.from_s)}"


def _no_instant(span: Span, at_s: int) -> str:
    ticks = compile_or_none(span.schedule)
    before, after = ticks.previous(at_s), ticks.next(at_s)
    around = []
    if before is not None:
        around.append(f"the one before is {format_time(before)}")
    if after is not None:
        around.append(f"the next is {format_time(after)}")
    schedule = span.schedule
    text = schedule.text
    if schedule.resolved and schedule.resolved != text:
        text += f" (placed at {schedule.resolved})"
    zone = "" if schedule.every_s else f" in {schedule.zone}"
    near = f": {', '.join(around)}" if around else ""
    return f"it is no instant of the schedule {text}{zone}{near}"


def _future(job: AuditedJob, at_s: int, now_s: int) -> str:
    pause = job.paused
    wait = format_ms((at_s - now_s) * 1000)
    if pause is None or 0 < pause.until_ms <= at_s * 1000:
        return f"it is due in {wait}, by revision {job.revision}"
    until = f"until {format_time(pause.until_ms // 1000)}" if pause.until_ms else "until resumed"
    return f"it is due in {wait}, and will be skipped{_paused(pause)} {until}"


def _paused(pause: Paused | None) -> str:
    if pause is None:
        return ""
    why = f" ({pause.reason})" if pause.reason else ""
    since = format_time(pause.since_ms // 1000)
    return f"; the job has been paused since {since}, by {pause.by or 'somebody'}{why}"


# --- changes of the clock


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
        said = _skipped(local_zone, near)
        if said:
            return f"{said} ({format_time(near.scheduled_s)})"
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
