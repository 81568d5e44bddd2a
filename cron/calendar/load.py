"""The expected launches per minute of a week, by which values for `?` are chosen.

A launch counts in each minute in which it usually runs, once for each executor that it runs on at
once: the table has the slots that launches take.

The table counts expected launches per UTC minute of the day, for each weekday and for two seasons,
because a zone with daylight saving time has different offsets in January and in July, and a minute
that is free in winter may be crowded in summer. It uses only integers and no order of sets or
hashes: the same jobs give the same table on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from cron.calendar.days import CYCLE_WEEKS, DAY_MIN, LocalTimes
from cron.calendar.expression import parse
from cron.calendar.fields import Field
from cron.calendar.zones import zone
from cron.errors import ScheduleError, invariant
from cron.job import Schedule

UNIT: Final = 420
"""The weight of one launch a day; its many divisors make weekly and monthly jobs integers."""
RUN_MIN_MAX: Final = 240
"""Minutes that a launch counts in at most: a longer one is under way almost all the time."""
SEASONS: Final = (29_474_640, 29_735_280)
"""Noon UTC of 15 January and 15 July 2026; constants of the algorithm that never change."""

_DAYS_A_WEEK: Final = 7
_MINUTE_S: Final = 60


class Load:
    """The launches of all schedules with values. Schedules without `?` count too, so that `?`
    avoids them.

    Equal schedules are counted together and added to the table when it is next read: a hundred
    thousand jobs on a thousand schedules cost a thousand additions.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, int, int], int] = {}
        self._daily = [[0] * DAY_MIN for _ in SEASONS]
        self._weekly = [[[0] * DAY_MIN for _ in range(_DAYS_A_WEEK)] for _ in SEASONS]
        self._top = [[0] * DAY_MIN for _ in SEASONS]
        self._days = ([0] * 32, [0] * 13, [0] * _DAYS_A_WEEK)

    def add(self, schedule: Schedule, weight: int = 1, run_min: int = 1) -> None:
        """Add a schedule with values, `weight` times. Its launches run for `run_min` minutes."""
        invariant(schedule.is_placed, f"schedule {schedule.text!r} is placed before it is counted")
        run_min = min(max(run_min, 1), RUN_MIN_MAX)
        key = (schedule.resolved, schedule.zone, schedule.every_s, run_min)
        self._pending[key] = self._pending.get(key, 0) + weight

    def remove(self, schedule: Schedule, weight: int = 1, run_min: int = 1) -> None:
        """Subtract a schedule that was added like that."""
        self.add(schedule, -weight, run_min)

    def top(self, zone_name: str) -> list[int]:
        """Return the launches of each local minute of a day, for its worst weekday and season."""
        self._enter_pending()
        rows = [
            _rotated(top, offset) for top, offset in zip(self._top, offsets(zone_name), strict=True)
        ]
        return rows[0] if rows[0] == rows[1] else list(map(max, *rows))

    def top_of(self, weekdays: list[int], zone_name: str) -> list[int]:
        """Return the same as `top`, for these local weekdays (0 is Sunday) only."""
        if len(weekdays) == _DAYS_A_WEEK:
            return self.top(zone_name)
        self._enter_pending()
        worst = [0] * DAY_MIN
        for season, offset in enumerate(offsets(zone_name)):
            for weekday in weekdays:
                around = [
                    count
                    for day in (weekday - 1, weekday, weekday + 1)
                    for count in self._weekly[season][day % _DAYS_A_WEEK]
                ]
                shifted = around[DAY_MIN - offset : 2 * DAY_MIN - offset]
                daily = _rotated(self._daily[season], offset)
                row = [a + b for a, b in zip(shifted, daily, strict=True)]
                worst = list(map(max, worst, row))
        return worst

    def days(self, place: int) -> list[int]:
        """Return the launches by value of a day field: 0 day of month, 1 month, 2 day of week.

        Counts only schedules that restrict the field; the others use all its values equally.
        """
        self._enter_pending()
        return self._days[place]

    def _enter_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        for (resolved, zone_name, every_s, run_min), weight in pending.items():
            if not weight:
                continue
            if not every_s:
                self._enter_fields(resolved, zone_name, weight, run_min)
                continue
            minutes, rest = divmod(every_s, _MINUTE_S)
            cells: Sequence[int]
            if not rest and DAY_MIN % minutes == 0:
                starts = range(0, DAY_MIN, minutes)
                cells = [minute % DAY_MIN for minute in running(starts, min(run_min, minutes))]
                load = UNIT * weight
            else:
                # Its minutes change from day to day, so it counts equally for all of them.
                share = UNIT * _MINUTE_S // every_s
                share = max(share, min(share * run_min, UNIT))
                cells, load = range(DAY_MIN), share * weight
            for season in range(len(SEASONS)):
                self._enter_daily(season, cells, load)

    def _enter_fields(self, resolved: str, zone_name: str, weight: int, run_min: int) -> None:
        fields = parse(resolved).fields
        by_weekday = weekday_loads(fields[2:])
        minutes = running(LocalTimes(fields).minutes, run_min)
        for season, offset in enumerate(offsets(zone_name)):
            if min(by_weekday) == max(by_weekday):
                cells = [(minute - offset) % DAY_MIN for minute in minutes]
                self._enter_daily(season, cells, by_weekday[0] * weight)
            else:
                self._enter_weekly(season, minutes, offset, [w * weight for w in by_weekday])
        _, _, day, month, weekday = fields
        for place, field in enumerate((day, month, weekday)):
            counts = self._days[place]
            if not field.text.startswith("*"):
                for value in range(len(counts)):
                    if field.mask >> value & 1:
                        counts[value] += len(minutes) * weight

    def _enter_daily(self, season: int, cells: Sequence[int], load: int) -> None:
        daily, top = self._daily[season], self._top[season]
        for cell in cells:
            daily[cell] += load
            top[cell] += load

    def _enter_weekly(
        self, season: int, minutes: Sequence[int], offset: int, loads: list[int]
    ) -> None:
        tables, daily, top = self._weekly[season], self._daily[season], self._top[season]
        for minute in minutes:
            days, cell = divmod(minute - offset, DAY_MIN)
            for weekday, load in enumerate(loads):
                tables[(weekday + days) % _DAYS_A_WEEK][cell] += load
            top[cell] = daily[cell] + max(table[cell] for table in tables)


def running(starts: Sequence[int], run_min: int) -> Sequence[int]:
    """Return the minutes in which launches that start in these minutes of a day, which rise, run:
    each minute of the clock once, those after midnight as 1440 and more."""
    if run_min == 1:
        return starts
    covered: list[int] = []
    for start in starts:
        first = max(start, covered[-1] + 1) if covered else start
        covered += range(first, start + run_min)
    here = {*covered}
    return [minute for minute in covered if minute - DAY_MIN not in here]


@lru_cache(maxsize=4096)
def weekday_loads(days: tuple[Field, ...]) -> tuple[int, ...]:
    """Return the expected launches of one matching minute on each weekday, in UNITs of a day;
    `days` are the last three fields."""
    midnight = parse("0 0 * * *").fields[:2]
    counts = LocalTimes((*midnight, *days)).days_by_weekday()
    return tuple(max(UNIT * count // CYCLE_WEEKS, min(count, 1)) for count in counts)


@lru_cache(maxsize=1024)
def offsets(zone_name: str) -> tuple[int, ...]:
    """Return local minus UTC, in minutes, of a zone in each of the SEASONS; 0 if this program does
    not know the zone of an existing job.
    """
    try:
        known = zone(zone_name)
    except ScheduleError:
        return tuple(0 for _ in SEASONS)
    return tuple(known.offset(minute) for minute in SEASONS)


def _rotated(row: list[int], offset: int) -> list[int]:
    """Return a row by UTC minute as a row by local minute."""
    first = -offset % DAY_MIN
    return row[first:] + row[:first] if first else row
