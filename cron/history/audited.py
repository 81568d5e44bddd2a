"""A job as audit and explanations see it: its revisions, each with the instants that are its own.

Pure. Instants are computed by the schedule of the revision that they belong to, with the zone data
of whoever asks: under other zone data than the leader had, an instant near a changed rule may
differ (rule R11), and a finding about it is worth a look at the versions first.

After the cell's time was set back (rule R10) some rows count no more. Before the reset a leader
with a wrong clock gave rows to instants that had not come yet. Those that began are true for ever.
The others are void: they never began, and a later row says what became of the instant. They stay in
history, where a person can see what the wrong clock did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from cron.calendar.schedule import Tick, compile_or_none, unreadable
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.limits import LIFE_ENTRIES
from cron.state.rows import RESTORED_BY, Row, RowKind
from cron.state.state import Paused, Reset, Span
from launcher.protocol.status import Reason


def clip(span: Span, after_s: int, until_s: int) -> tuple[int, int]:
    """Return the part (after, until] of a period that lies in a span; empty if until is not above
    after."""
    end_s = min(until_s, span.to_s) if span.to_s else until_s
    return max(after_s, span.from_s), end_s


class AuditedJob(msgspec.Struct, frozen=True):
    """A job's name, its revisions oldest first, and the time up to which it is accounted for.

    `horizon_s`: every instant up to it must have its row, none after it may have one. Of instants
    up to `forgotten_s` the schedules are not known any more. `paused` is why it does not run now.
    Times of what began up to `reset_index`, where the cell's time was set back, are those of a
    wrong clock.
    `revision` is its newest one, which changed what no `Span` has, such as its command.
    """

    name: str
    revisions: tuple[Span, ...]
    horizon_s: int
    forgotten_s: int = 0
    paused: Paused | None = None
    reset_index: int = 0
    revision: int = 0

    def unreadable(self, after_s: int, until_s: int) -> str:
        """Return why the instants of a period cannot be known here, "" if they can."""
        spans = [span for span in self.revisions if (c := clip(span, after_s, until_s))[0] < c[1]]
        return next((why for span in spans if (why := unreadable(span.schedule))), "")

    def instants(self, after_s: int, until_s: int) -> Iterator[Tick]:
        """Yield the instants in (after_s, until_s], oldest first, one at a time."""
        for span in self.revisions:
            first_s, last_s = clip(span, after_s, until_s)
            ticks = compile_or_none(span.schedule)
            tick = ticks.tick_after(first_s) if first_s < last_s else None
            while tick is not None and tick.scheduled_s <= last_s:
                yield tick
                tick = ticks.tick_after(tick.scheduled_s)

    def count(self, after_s: int, until_s: int) -> int:
        """Return how many instants lie in (after_s, until_s], without walking through them."""
        clipped = [(span, *clip(span, after_s, until_s)) for span in self.revisions]
        return sum(
            compile_or_none(span.schedule).count(first_s, last_s)
            for span, first_s, last_s in clipped
            if first_s < last_s
        )

    def span_at(self, at_s: int) -> Span | None:
        """Return the revision that an instant at `at_s` would belong to, None if there was none."""
        for span in self.revisions:
            if span.from_s < at_s and (not span.to_s or at_s <= span.to_s):
                return span
        return None

    def tick_at(self, at_s: int) -> Tick | None:
        """Return the instant at `at_s`, None if there is none."""
        return next(self.instants(at_s - 1, at_s), None)

    def newest_at(self, at_s: int) -> int | None:
        """Return the newest instant at or before `at_s`, None if there is none."""
        for span in reversed(self.revisions):
            first_s, last_s = clip(span, 0, at_s)
            ticks = compile_or_none(span.schedule)
            found = ticks.newest(first_s, last_s, 1) if first_s < last_s else []
            if found:
                return found[0].scheduled_s
        return None

    def has_ever(self, at_s: int) -> bool:
        """Whether any revision's schedule has an instant at `at_s`, in its own span or not: what a
        backfill may ask for."""
        schedules = (compile_or_none(span.schedule) for span in self.revisions)
        return any(ticks.next(at_s - 1) == at_s for ticks in schedules)

    def overlap_of(self, revision: int, scheduled_s: int) -> Overlap:
        """Return the overlap policy of a revision; of the span around `scheduled_s` if the revision
        is not known any more. A span is that of all revisions up to the next span's."""
        for span in reversed(self.revisions) if revision else ():
            if span.revision <= revision:
                return span.overlap
        around = self.span_at(scheduled_s)
        return Overlap.ALLOW if around is None else around.overlap


def is_recalled(row: Row) -> bool:
    """Whether a restored cell knows of this attempt from its executor alone (rule R13), or went on
    with it: it began in an earlier life. Whoever killed it since has taken the place in `by`."""
    return row.by == RESTORED_BY or (row.begun_index > 0 and _is_of_earlier_life(row))


def is_remembered(row: Row) -> bool:
    """Whether an executor alone remembers this attempt, since a restore lost its log points. One
    that a restored cell began itself, in place of such a one, has its own."""
    return row.by == RESTORED_BY and _is_of_earlier_life(row)


def _is_of_earlier_life(row: Row) -> bool:
    known_index = row.launched_index if row.kind is RowKind.OPEN else row.ended_index
    return row.begun_index // LIFE_ENTRIES < known_index // LIFE_ENTRIES


def is_put_off(row: Row) -> bool:
    """Whether an attempt ended because its handler asked for another time."""
    return row.state is LaunchState.CANCELLED and row.reason is Reason.SNOOZE


class FindingKind(StrEnum):
    """What an audit can find."""

    MISSING = "missing"
    ACCOUNTED_TWICE = "accounted-twice"
    NO_INSTANT = "no-instant"
    BEYOND_HORIZON = "beyond-horizon"
    WRONG_COUNT = "wrong-count"
    LOG_POINT = "log-point"
    EARLY = "early"
    ATTEMPTS_AT_ONCE = "attempts-at-once"
    OVERLAP = "overlap"
    # Notes:
    UNRECORDED_ATTEMPT = "unrecorded-attempt"
    LATE_REPORT = "late-report"
    RESTORED = "restored"


NOTES = frozenset({FindingKind.UNRECORDED_ATTEMPT, FindingKind.LATE_REPORT, FindingKind.RESTORED})
"""What is worth telling and breaks no promise. An attempt that its executor durably refused never
ran, goes back to due, and leaves no row of its own (rule R7). A restored cell records what ran,
also under schedules that its snapshot does not have (rule R13)."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing an audit found, at one instant of one job."""

    job: str
    scheduled_s: int
    kind: FindingKind
    message: str

    @property
    def is_violation(self) -> bool:
        """Whether a promise is broken."""
        return self.kind not in NOTES


# --- after the cell's time was set back


def judged(job: AuditedJob, rows: Sequence[Row], resets: Sequence[Reset]) -> Sequence[Row]:
    """Return the rows of a job that an audit must judge, open launches among them. One that began
    ahead of its time is judged when that time has come."""
    if not resets:
        return rows
    kept = [row for row in rows if row.kind is not RowKind.OPEN]
    for reset in resets:
        kept = _without_void(job, kept, reset)
    newest, horizon_s = resets[-1].index, job.horizon_s
    kept = [row for row in kept if row.scheduled_s <= horizon_s or row.ended_index > newest]
    still_open = (row for row in rows if row.kind is RowKind.OPEN)
    kept += (row for row in still_open if row.trigger or row.scheduled_s <= horizon_s)
    return sorted(kept, key=lambda row: row.scheduled_s)


def _without_void(job: AuditedJob, rows: list[Row], reset: Reset) -> list[Row]:
    to_s = reset.to_ms // 1000
    begun = {row.scheduled_s for row in rows if row.begun_index and row.ended_index <= reset.index}
    kept: list[Row] = []
    for row in rows:
        is_void = (
            row.ended_index <= reset.index
            and not row.trigger
            and row.last_s > to_s
            and row.scheduled_s not in begun
        )
        if not is_void:
            kept.append(row)
        elif row.kind is RowKind.RANGE and row.scheduled_s <= to_s:
            last_s = job.newest_at(to_s) or row.scheduled_s
            count = job.count(row.scheduled_s - 1, last_s)
            kept.append(msgspec.structs.replace(row, last_s=last_s, count=count))
    return kept
