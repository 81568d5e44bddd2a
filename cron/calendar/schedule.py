"""The instants of schedules: next, previous, between. croniter only checks declared schedules.

The rules (Debian's cron(8), with instants instead of wake-ups):

1. A job whose minute or hour field begins with `*` is an interval job: it is due at every UTC
   minute whose local wall clock matches, in both passes of a repeated hour and never in a gap.
2. Any other is a fixed job: each local minute that matches is due exactly once. A repeated one
   the first time; a skipped one at the first instant after the gap, where several become one;
   one of a date that never was (Apia 2011-12-30) not at all.
3. `@every` is due at whole multiples of its period since the epoch.

croniter 7.0.0 is exact on naive time, but repeats jobs in a repeated hour and reads `7-7` as every
value. So it computes no instants here, and checks only canonical text, field by field. This module
does not read the current time.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from cron.calendar.days import DAY_MIN, DAYS_END, LocalTimes
from cron.calendar.expression import parse
from cron.calendar.fields import DAY_OF_WEEK, KINDS, Kind, parse_field, parse_special
from cron.calendar.zones import Zone, zone
from cron.errors import ScheduleError, TooManyTimes, invariant
from cron.job import Bounds, Schedule

LAST_MIN: Final = DAYS_END * DAY_MIN
"""The end of the calendar table, in UTC minutes: there are no instants at or after it."""


class Tick(NamedTuple):
    """One instant: `scheduled_s` in seconds since the epoch, UTC, and its nominal local minute.

    `local_min` counts minutes from 1970-01-01T00:00 of the zone's wall clock; -1 for `@every`. If
    several skipped local minutes fall on one instant, it is the last of them, so that it always
    increases for a fixed job. `nominal_min` is the same for fixed jobs, for which it must not
    repeat (rule R11), and -1 for others.
    """

    scheduled_s: int
    local_min: int
    nominal_min: int = -1


class Ticks(abc.ABC):
    """All instants of one schedule. Immutable; seconds since the epoch, UTC."""

    __slots__ = ()

    is_fixed: bool
    """Return whether this is a fixed job (rule 2), not an interval job."""

    @abc.abstractmethod
    def tick_after(self, after_s: int) -> Tick | None:
        """Return the first instant strictly later, or None if there is none."""

    @abc.abstractmethod
    def tick_before(self, before_s: int) -> Tick | None:
        """Return the last instant strictly earlier and not before 1970, or None."""

    @abc.abstractmethod
    def count(self, after_s: int, until_s: int) -> int:
        """Return how many instants are in (after_s, until_s], without enumerating them."""

    def next(self, after_s: int) -> int | None:
        """Return the first instant strictly later, or None if there is none."""
        tick = self.tick_after(after_s)
        return None if tick is None else tick.scheduled_s

    def previous(self, before_s: int) -> int | None:
        """Return the last instant strictly earlier and not before 1970, or None."""
        tick = self.tick_before(before_s)
        return None if tick is None else tick.scheduled_s

    def between(self, after_s: int, until_s: int, *, limit: int) -> list[Tick]:
        """Return all instants in (after_s, until_s], oldest first.

        Raises:
            TooManyTimes: there are more than `limit`.
        """
        found: list[Tick] = []
        tick = self.tick_after(after_s)
        while tick is not None and tick.scheduled_s <= until_s:
            if len(found) == limit:
                raise TooManyTimes(
                    f"more than {limit} times are due in the range", "choose a shorter range"
                )
            found.append(tick)
            tick = self.tick_after(tick.scheduled_s)
        return found

    def newest(self, after_s: int, until_s: int, n: int) -> list[Tick]:
        """Return the last `n` instants of (after_s, until_s], oldest first; fewer if fewer are."""
        found: list[Tick] = []
        tick = self.tick_before(until_s + 1)
        while tick is not None and tick.scheduled_s > after_s and len(found) < n:
            found.append(tick)
            tick = self.tick_before(tick.scheduled_s)
        found.reverse()
        return found


class EveryTicks(Ticks):
    """`@every`: whole multiples of a period since the epoch, independent of zones and days."""

    __slots__ = ("_every_s",)

    is_fixed = False

    def __init__(self, every_s: int) -> None:
        invariant(every_s > 0, "a period is positive")
        self._every_s = every_s

    def tick_after(self, after_s: int) -> Tick | None:
        """Return the first multiple strictly later."""
        scheduled_s = (max(after_s, -1) // self._every_s + 1) * self._every_s
        return Tick(scheduled_s, -1) if scheduled_s < LAST_MIN * 60 else None

    def tick_before(self, before_s: int) -> Tick | None:
        """Return the last multiple strictly earlier."""
        if before_s <= 0:
            return None
        return Tick((min(before_s, LAST_MIN * 60) - 1) // self._every_s * self._every_s, -1)

    def count(self, after_s: int, until_s: int) -> int:
        """Return the multiples in (after_s, until_s]."""
        until_s = min(until_s, LAST_MIN * 60 - 1)
        return max(0, max(until_s, -1) // self._every_s - max(after_s, -1) // self._every_s)


class FieldTicks(Ticks):
    """Five fields in a zone. Works on local minutes, segment by segment of the zone."""

    __slots__ = ("_times", "_zone", "is_fixed")

    def __init__(self, times: LocalTimes, zone: Zone, *, is_fixed: bool) -> None:
        self._times = times
        self._zone = zone
        self.is_fixed = is_fixed

    def tick_after(self, after_s: int) -> Tick | None:
        """Return the first instant strictly later, at a whole minute."""
        minute = max(after_s // 60 + 1, 0)
        while minute < LAST_MIN:
            segment = self._zone.segment(minute)
            local = minute + segment.offset
            if self.is_fixed:
                if minute == segment.start:
                    skipped = self._last_skipped(segment.gap_from, local)
                    if skipped is not None:
                        return Tick(minute * 60, skipped, skipped)
                # Invariant: a fixed job never sees a local minute twice.
                local = max(local, segment.fresh_from)
            match = self._times.at_or_after(local)
            if match is None:
                return None
            if match - segment.offset < segment.end:
                nominal = match if self.is_fixed else -1
                return Tick((match - segment.offset) * 60, match, nominal)
            minute = segment.end
        return None

    def tick_before(self, before_s: int) -> Tick | None:
        """Return the last instant strictly earlier, at a whole minute."""
        minute = min((before_s - 1) // 60, LAST_MIN - 1)
        while minute >= 0:
            segment = self._zone.segment(minute)
            begin = segment.start + segment.offset
            least = max(begin, segment.fresh_from) if self.is_fixed else begin
            match = self._times.at_or_before(minute + segment.offset)
            if match is None:
                return None
            if match >= least and match - segment.offset >= 0:
                nominal = match if self.is_fixed else -1
                return Tick((match - segment.offset) * 60, match, nominal)
            if self.is_fixed:
                skipped = self._last_skipped(segment.gap_from, begin)
                if skipped is not None:
                    return Tick(segment.start * 60, skipped, skipped)
            minute = segment.start - 1
        return None

    def count(self, after_s: int, until_s: int) -> int:
        """Return how many instants lie in (after_s, until_s], segment by segment."""
        minute = max(after_s // 60 + 1, 0)
        end = min(until_s // 60 + 1, LAST_MIN)
        total = 0
        while minute < end:
            segment = self._zone.segment(minute)
            low = minute + segment.offset
            high = min(segment.end, end) + segment.offset
            if self.is_fixed:
                if minute == segment.start:
                    skipped = self._last_skipped(segment.gap_from, low)
                    # If `low` itself matches, the count below includes this instant.
                    total += skipped is not None and skipped != low
                low = max(low, segment.fresh_from)
            total += self._times.count(low, high)
            minute = segment.end
        return total

    def _last_skipped(self, gap_from: int, begin: int) -> int | None:
        """Return the last match in [gap_from, begin] if a gap ends at local minute `begin`."""
        if gap_from >= begin:
            return None
        match = self._times.at_or_before(begin)
        return match if match is not None and match >= gap_from else None


class BoundedTicks(Ticks):
    """The instants of another schedule from `start_s` to `end_s`, both included."""

    __slots__ = ("_end_s", "_start_s", "_ticks", "is_fixed")

    def __init__(self, ticks: Ticks, start_s: int, end_s: int) -> None:
        self._ticks = ticks
        self._start_s = start_s
        self._end_s = end_s
        self.is_fixed = ticks.is_fixed

    def tick_after(self, after_s: int) -> Tick | None:
        """Return the first instant strictly later, None if it is after the end."""
        tick = self._ticks.tick_after(max(after_s, self._start_s - 1))
        return tick if tick is not None and tick.scheduled_s <= self._end_s else None

    def tick_before(self, before_s: int) -> Tick | None:
        """Return the last instant strictly earlier, None if it is before the start."""
        tick = self._ticks.tick_before(min(before_s, self._end_s + 1))
        return tick if tick is not None and tick.scheduled_s >= self._start_s else None

    def count(self, after_s: int, until_s: int) -> int:
        """Return how many instants are in (after_s, until_s] and not out of bounds."""
        return self._ticks.count(max(after_s, self._start_s - 1), min(until_s, self._end_s))


def compile(schedule: Schedule) -> Ticks:
    """Return the instants of a placed schedule; the same object for the same schedule.

    Raises:
        ScheduleError: a `?` has no value yet, or its text or zone is not valid.
    """
    return _compile(schedule.resolved, schedule.zone, schedule.every_s, schedule.bounds)


class NoTicks(Ticks):
    """Replaces a schedule that this program cannot read; it has no instants."""

    __slots__ = ()

    is_fixed = False

    def tick_after(self, after_s: int) -> Tick | None:
        """Return None."""
        return None

    def tick_before(self, before_s: int) -> Tick | None:
        """Return None."""
        return None

    def count(self, after_s: int, until_s: int) -> int:
        """Return 0."""
        return 0


def unreadable(schedule: Schedule) -> str:
    """Return why this program cannot compute the instants of a cell's schedule; "" if it can.

    Another version of this program, or one with other tzdata, may have accepted the schedule.
    """
    try:
        compile(schedule)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is that of one job alone
        return str(error) or repr(error)
    return ""


def compile_or_none(schedule: Schedule) -> Ticks:
    """Return the instants of a schedule for display; none for an unreadable one.

    Do not use it to create rows: missing instants would have none.
    """
    return NoTicks() if unreadable(schedule) else compile(schedule)


@lru_cache(maxsize=65_536)
def _compile(resolved: str, zone_name: str, every_s: int, bounds: Bounds | None) -> Ticks:
    ticks = _unbounded(resolved, zone_name, every_s, bounds)
    if bounds is not None and (bounds.start_s or bounds.end_s):
        return BoundedTicks(ticks, bounds.start_s, bounds.end_s or LAST_MIN * 60)
    return ticks


def _unbounded(resolved: str, zone_name: str, every_s: int, bounds: Bounds | None) -> Ticks:
    """Return the instants without regard to start and end."""
    if every_s:
        return EveryTicks(every_s)
    expression = parse(resolved) if resolved else None
    if expression is None or expression.has_any or expression.every_s:
        raise ScheduleError(
            "schedule has no place yet for its ?", 0, "place it before asking for times"
        )
    days = accumulate(bounds.days) if bounds is not None else ()
    is_only = bounds is not None and bool(bounds.calendar) and bounds.is_only
    times = LocalTimes(expression.fields, days, is_only=is_only)
    return FieldTicks(times, zone(zone_name), is_fixed=not expression.is_interval)


@lru_cache(maxsize=8192)
def shortest_period_s(resolved: str) -> int:
    """Return the shortest time between two instants of five plain fields, ignoring zones."""
    return LocalTimes(parse(resolved).fields).shortest_distance() * 60


def next_times(
    schedule: Schedule, after_s: int, count: int, spend: Callable[[], None] | None = None
) -> list[int]:
    """Return up to `count` scheduled times after `after_s`; none if this release cannot read the
    schedule. `spend` is called for each of them, and may raise to stop.
    """
    ticks = compile_or_none(schedule)
    times: list[int] = []
    following = ticks.next(after_s)
    while following is not None and len(times) < count:
        if spend is not None:
            spend()
        times.append(following)
        following = ticks.next(following)
    return times


def check(schedule: Schedule, columns: Sequence[int] = ()) -> None:
    """Check with croniter that it reads the five fields of a declared job in the same way.

    `columns` are the columns of the fields, for the error.

    Raises:
        ScheduleError: croniter refuses them, or reads other values.
    """
    compile(schedule)
    for place, text in enumerate(schedule.resolved.split()):
        doubt = _doubt(place, text)
        if doubt:
            column = columns[place] if columns else 1
            raise ScheduleError(doubt, column, "write the values of the field as a list")


@lru_cache(maxsize=8192)
def _doubt(place: int, text: str) -> str:
    """Return why croniter reads the field at `place` (from 0) differently; "" if it does not.

    Each field is checked separately: croniter's check of impossible dates ignores that Debian joins
    the two day fields by "or".
    """
    # Imported here because it takes 40 ms and only declarations need it. It has no types.
    from croniter import CroniterError, croniter  # type: ignore[import-untyped]

    kind = KINDS[place]
    # It has other forms of L and # and only some of W.
    parts = [part for part in text.split(",") if parse_special(kind, part, 1) is None]
    if not parts:
        return ""
    text = ",".join(parts)
    fields = ["*"] * len(KINDS)
    fields[place] = text
    try:
        columns, _ = croniter.expand(" ".join(fields))
    except CroniterError:
        return f"{kind.name} {text!r} is not read by every cron"
    if _read_by_croniter(columns[place], kind) != parse_field(kind, text, 1).mask:
        return f"{kind.name} {text!r} is not read alike by every cron"
    return ""


def _read_by_croniter(values: list[object], kind: Kind) -> int:
    """Return the mask of croniter's values; it returns `*` for all values, however written."""
    numbers = range(kind.lowest, kind.highest + 1) if "*" in values else values
    mask = 0
    for value in numbers:
        invariant(isinstance(value, int), "croniter expands to numbers")
        number = int(str(value))
        mask |= 1 << (number % 7 if kind is DAY_OF_WEEK else number)
    return mask
