"""Days that no number says: the last of a month, the second Friday, the weekday nearest to a day.

The forms are those of Quartz: `L`, `L-3`, `LW`, `L-3W` and `15W` for the day of month, `5L` (the
last Friday) and `FRI#2` (the second one) for the day of week. A month that lacks such a day has
none: `L-30` is in months of 31 days only, `31W` likewise, and few months have a fifth Friday.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

BACK_MAX: Final = 30
"""A month has at most this many days before its last one."""
NTH_MAX: Final = 5

_WEEK: Final = 7
_SATURDAY: Final = 6
_NAMES: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")

_WEEKDAY: Final = rf"(?P<day>[0-7]|{'|'.join(_NAMES)}|{'|'.join(name[:3] for name in _NAMES)})"
_OF_MONTH: Final = re.compile(
    r"(?:(?P<last>L)(?:-(?P<back>[0-9]{1,4}))?|(?P<number>[0-9]{1,4}))(?P<nearest>W)?", re.I
)
_OF_WEEK: Final = re.compile(rf"{_WEEKDAY}(?:#(?P<nth>[0-9]{{1,4}})|L)", re.I)
_MISWRITTEN: Final = re.compile(rf"(?:L{_WEEKDAY}|{_WEEKDAY.replace('day', 'nth_day')}#L)", re.I)


class Special(msgspec.Struct, frozen=True):
    """A day of each month: with `weekday` the `nth` one of it, the last one for 0; else the day
    `number`, or for 0 the one `back` days before the last; if `is_nearest`, the one from Monday to
    Friday that is nearest to it in the same month."""

    number: int = 0
    back: int = 0
    is_nearest: bool = False
    weekday: int = -1
    nth: int = 0

    @property
    def text(self) -> str:
        """The canonical text: weekdays are numbers."""
        if self.weekday >= 0:
            return f"{self.weekday}#{self.nth}" if self.nth else f"{self.weekday}L"
        back = f"-{self.back}" if self.back else ""
        return f"{self.number or f'L{back}'}{'W' if self.is_nearest else ''}"

    @property
    def words(self) -> str:
        """What it means, to go on after `on`."""
        if self.weekday >= 0:
            which = _ORDINALS[self.nth - 1] if self.nth else "last"
            return f"the {which} {_NAMES[self.weekday]} of the month"
        days = "day" if self.back == 1 else "days"
        last = f"the day that is {self.back} {days} before the last one of the month"
        if not self.back:
            last = "the last day of the month"
        if not self.is_nearest:
            return last
        if not (self.number or self.back):
            return "the last day of the month from Monday to Friday"
        which = f"day {self.number}" if self.number else last
        return f"the day from Monday to Friday that is nearest to {which}"

    def day(self, length: int, first: int) -> int:
        """Return the day of a month of `length` days whose first is the weekday `first`; 0 if that
        month has none."""
        if self.weekday >= 0:
            day = 1 + (self.weekday - first) % _WEEK
            day += _WEEK * (self.nth - 1 if self.nth else (length - day) // _WEEK)
            return day if day <= length else 0
        day = self.number or length - self.back
        if not 1 <= day <= length:
            return 0
        weekday = (first + day - 1) % _WEEK
        if self.is_nearest and weekday == _SATURDAY:
            return day - 1 if day > 1 else day + 2
        if self.is_nearest and weekday == 0:
            return day + 1 if day < length else day - 2
        return day


def read_of_month(text: str) -> Special | None:
    """Return the day of month of a text such as `L-3` or `15W`, None if it is none of these. Its
    numbers are not checked."""
    match = _OF_MONTH.fullmatch(text)
    if match is None or not (match["last"] or match["nearest"]):
        return None
    number = -1 if match["number"] and not int(match["number"]) else int(match["number"] or 0)
    return Special(number, int(match["back"] or 0), is_nearest=match["nearest"] is not None)


def read_of_week(text: str) -> Special | None:
    """Return the day of week of a text such as `5L` or `FRI#2`, None if it is none of these. Its
    number is not checked."""
    match = _OF_WEEK.fullmatch(text)
    if match is None:
        return None
    nth = 0 if match["nth"] is None else int(match["nth"]) or -1
    return Special(weekday=_weekday(match["day"]), nth=nth)


def meant_last(text: str) -> str:
    """Return `5L` for what other crons write as `L5` or `5#L`; "" if it is neither."""
    match = _MISWRITTEN.fullmatch(text)
    return f"{_weekday(match['day'] or match['nth_day'])}L" if match is not None else ""


def _weekday(text: str) -> int:
    if text.isdigit():
        return int(text) % _WEEK
    return [name[:3].lower() for name in _NAMES].index(text[:3].lower())


@lru_cache(maxsize=4096)
def days_mask(specials: tuple[Special, ...], length: int, first: int) -> int:
    """Return the days of a month that any of `specials` is, as bits; a month without one of them
    has no bit for it. The rest as in `Special.day`."""
    mask = 0
    for special in specials:
        day = special.day(length, first)
        mask |= 1 << day if day else 0
    return mask
