"""Local wall-clock minutes that match five fields, without zones: bit masks over months.

A local minute is the number of minutes from 1970-01-01T00:00 of that wall clock. All arithmetic is
on integers; the months from 1970 to YEAR_LAST are tabled once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import Final

from cron.calendar.fields import Field
from cron.calendar.special import days_mask

DAY_MIN: Final = 1440
YEAR_LAST: Final = 2199
"""The last year of the tables; the longest gap, of a leap day, is eight years."""

_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_FIRST: Final = [
    date(year, month, 1).toordinal() - _EPOCH_ORDINAL
    for year in range(1970, YEAR_LAST + 1)
    for month in range(1, 13)
]
"""The day number of the first of each month."""
DAYS_END: Final = date(YEAR_LAST + 1, 1, 1).toordinal() - _EPOCH_ORDINAL
_LENGTH: Final = [b - a for a, b in zip(_FIRST, [*_FIRST[1:], DAYS_END], strict=True)]
_MONTHS: Final = len(_FIRST)
_EPOCH_WEEKDAY: Final = 4  # 1970-01-01 was a Thursday; Sunday is 0

# The Gregorian calendar repeats weekdays after 28 years unless a century interrupts: 2000 to 2027
# holds each weekday 1461 times.
_CYCLE_FIRST_MONTH: Final = (2000 - 1970) * 12
_CYCLE_MONTHS: Final = 28 * 12
CYCLE_WEEKS: Final = 1461


@lru_cache(maxsize=128)
def _weekday_patterns(weekdays: int) -> tuple[int, ...]:
    """For each weekday of a month's first: the days of the month whose weekday is in the mask."""
    return tuple(
        sum(1 << day for day in range(1, 32) if weekdays >> ((first + day - 1) % 7) & 1)
        for first in range(7)
    )


@lru_cache(maxsize=4096)
def minutes_of_day(hours: int, minutes: int) -> tuple[int, ...]:
    """Return the minutes of a day, 0 to 1439 and rising, that two masks of values allow."""
    return tuple(
        hour * 60 + minute
        for hour in range(24)
        if hours >> hour & 1
        for minute in range(60)
        if minutes >> minute & 1
    )


def _masks_by_month(dates: Iterable[int]) -> dict[int, int]:
    """Return days since 1970 as days of their months, as bits; months count from 1970-01."""
    found: dict[int, int] = {}
    for date_ in dates:
        if 0 <= date_ < DAYS_END:
            month = bisect_right(_FIRST, date_) - 1
            found[month] = found.get(month, 0) | 2 << date_ - _FIRST[month]
    return found


class LocalTimes:
    """The local minutes that five fields match.

    Day of month and day of week combine by Debian's rule: if either begins with `*`, both must
    match; otherwise one is enough (crontab(5)).
    """

    __slots__ = (
        "_and", "_days", "_end", "_left_out", "_months", "_only", "_patterns", "_specials",
        "minutes",
    )  # fmt: skip

    def __init__(
        self, fields: tuple[Field, ...], dates: Iterable[int] = (), *, is_only: bool = False
    ) -> None:
        """`dates` are days since 1970 that are left out, or with `is_only` the only ones."""
        minute, hour, day, month, weekday = fields
        self.minutes = minutes_of_day(hour.mask, minute.mask)
        self._days = day.mask
        self._months = month.mask
        self._patterns = _weekday_patterns(weekday.mask)
        self._and = day.has_star or weekday.has_star
        self._specials = (day.specials, weekday.specials)
        found = _masks_by_month(dates)
        self._left_out: dict[int, int] = {} if is_only else found
        self._only = found if is_only else None
        self._end = max(found, default=-1) + 1 if is_only else _MONTHS

    def at_or_after(self, local: int) -> int | None:
        """Return the first match not before `local`, or None to the end of the table."""
        day, minute = divmod(local, DAY_MIN)
        found = self._day_at_or_after(day)
        if found is None:
            return None
        if found == day:
            place = bisect_left(self.minutes, minute)
            if place < len(self.minutes):
                return day * DAY_MIN + self.minutes[place]
            found = self._day_at_or_after(day + 1)
            if found is None:
                return None
        return found * DAY_MIN + self.minutes[0]

    def at_or_before(self, local: int) -> int | None:
        """Return the last match not after `local`, or None back to 1970."""
        day, minute = divmod(local, DAY_MIN)
        found = self._day_at_or_before(day)
        if found is None:
            return None
        if found == day:
            place = bisect_right(self.minutes, minute)
            if place:
                return day * DAY_MIN + self.minutes[place - 1]
            found = self._day_at_or_before(day - 1)
            if found is None:
                return None
        return found * DAY_MIN + self.minutes[-1]

    def count(self, start: int, end: int) -> int:
        """Return how many matches lie in [start, end)."""
        start, end = max(start, 0), min(end, DAYS_END * DAY_MIN)
        if end <= start:
            return 0
        first, first_minute = divmod(start, DAY_MIN)
        last, last_minute = divmod(end, DAY_MIN)
        total = self._count_days(first, last) * len(self.minutes)
        total -= self._count_days(first, first + 1) * bisect_left(self.minutes, first_minute)
        return total + self._count_days(last, last + 1) * bisect_left(self.minutes, last_minute)

    def shortest_distance(self) -> int:
        """Return the fewest minutes between two matches, zones apart."""
        distances = [b - a for a, b in zip(self.minutes, self.minutes[1:], strict=False)]
        days = self._shortest_day_distance()
        overnight = days * DAY_MIN - self.minutes[-1] + self.minutes[0]
        return min([*distances, overnight])

    def days_by_weekday(self) -> tuple[int, ...]:
        """Return how many Sundays, Mondays, ... of CYCLE_WEEKS weeks match."""
        counts = [0] * 7
        for month in range(_CYCLE_FIRST_MONTH, _CYCLE_FIRST_MONTH + _CYCLE_MONTHS):
            mask = self._month_mask(month)
            if mask:
                first = _first_weekday(month)
                for weekday in range(7):
                    pattern = _weekday_patterns(1 << weekday)[first]
                    counts[weekday] += (mask & pattern).bit_count()
        return tuple(counts)

    def days_from(self, first: int, count: int) -> int:
        """Return which of `count` days match, as bits; the lowest is the day `first` since 1970."""
        found = 0
        month = bisect_right(_FIRST, first) - 1
        while month < _MONTHS and _FIRST[month] < first + count:
            shift = _FIRST[month] - first - 1  # the bits of a month begin with 1
            mask = self._month_mask(month)
            found |= mask << shift if shift >= 0 else mask >> -shift
            month += 1
        return found & ((1 << count) - 1)

    def _month_mask(self, month: int) -> int:
        if not self._months >> (month % 12 + 1) & 1:
            return 0
        first = _first_weekday(month)
        days, weekdays = self._days, self._patterns[first]
        of_month, of_week = self._specials
        if of_month or of_week:
            days |= days_mask(of_month, _LENGTH[month], first)
            weekdays |= days_mask(of_week, _LENGTH[month], first)
        days = days & weekdays if self._and else days | weekdays
        if self._left_out:
            days &= ~self._left_out.get(month, 0)
        elif self._only is not None:
            days &= self._only.get(month, 0)
        return days & ((2 << _LENGTH[month]) - 2)

    def _day_at_or_after(self, day: int) -> int | None:
        if day >= DAYS_END:
            return None
        day = max(day, 0)
        month = bisect_right(_FIRST, day) - 1
        skipped = day - _FIRST[month] + 1
        mask = self._month_mask(month) >> skipped << skipped
        while not mask:
            month += 1
            if month >= self._end:
                return None
            mask = self._month_mask(month)
        return _FIRST[month] + (mask & -mask).bit_length() - 2

    def _day_at_or_before(self, day: int) -> int | None:
        if day < 0:
            return None
        day = min(day, DAYS_END - 1)
        month = bisect_right(_FIRST, day) - 1
        mask = self._month_mask(month) & ((4 << (day - _FIRST[month])) - 1)
        while not mask:
            month -= 1
            if month < 0:
                return None
            mask = self._month_mask(month)
        return _FIRST[month] + mask.bit_length() - 2

    def _count_days(self, start: int, end: int) -> int:
        """Count the matching days in [start, end)."""
        total = 0
        day = start
        while day < min(end, DAYS_END):
            month = bisect_right(_FIRST, day) - 1
            stop = min(end, _FIRST[month] + _LENGTH[month])
            # Bit d of a month's mask is its d-th day, so bit 0 is never set.
            above = self._month_mask(month) >> (day - _FIRST[month] + 1)
            total += (above & ((1 << (stop - day)) - 1)).bit_count()
            day = stop
        return total

    def _shortest_day_distance(self) -> int:
        shortest = last = 0
        for month in range(_CYCLE_FIRST_MONTH, _CYCLE_FIRST_MONTH + 2 * _CYCLE_MONTHS):
            mask = self._month_mask(month)
            while mask:
                lowest = mask & -mask
                mask ^= lowest
                day = _FIRST[month] + lowest.bit_length() - 2
                if last and (day - last < shortest or not shortest):
                    shortest = day - last
                if shortest == 1:
                    return 1
                last = day
        return shortest or 28 * 365


def _first_weekday(month: int) -> int:
    return (_FIRST[month] + _EPOCH_WEEKDAY) % 7
