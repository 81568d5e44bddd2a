"""Times of systemd's timers (`OnCalendar=`, systemd.time(7)) as schedules of five fields."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from cron.crontab.systemd.syntax import Unfit

_WORDS: Final = {
    "minutely": "*-*-* *:*", "hourly": "*-*-* *:00", "daily": "*-*-* 00:00",
    "weekly": "Mon *-*-* 00:00", "monthly": "*-*-01 00:00", "yearly": "*-01-01 00:00",
    "annually": "*-01-01 00:00", "anually": "*-01-01 00:00", "quarterly": "*-01,04,07,10-01 00:00",
    "semiannually": "*-01,07-01 00:00", "semi-annually": "*-01,07-01 00:00",
    "biannually": "*-01,07-01 00:00", "bi-annually": "*-01,07-01 00:00",
}  # fmt: skip
_USUAL: Final[dict[tuple[str, ...], str]] = {
    ("0", "*", "*", "*", "*"): "@hourly", ("0", "0", "*", "*", "*"): "@daily",
    ("0", "0", "1", "*", "*"): "@monthly", ("0", "0", "1", "1", "*"): "@yearly",
}  # fmt: skip
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CHAIN: Final = r"(?:[*]|[0-9./,]+)"
_WHEN: Final = re.compile(
    r"(?:(?P<days>[A-Za-z]{3}[A-Za-z.,-]*)(?:\ +|\Z))?"
    rf"(?:(?:(?P<year>{_CHAIN})-)?(?P<month>{_CHAIN})(?P<mark>[-~])(?P<day>{_CHAIN})(?:\ |\Z)\ *)?"
    rf"(?:(?P<hour>{_CHAIN}):(?P<minute>{_CHAIN})(?::(?P<second>{_CHAIN}))?)?",
    re.VERBOSE,
)
_PART: Final = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?(?:/([0-9]{1,9}))?", re.ASCII)
_ZONE: Final = re.compile(r"(?P<when>.*\S)\ (?P<zone>[A-Za-z][A-Za-z0-9_+/-]*)", re.ASCII)
_ZERO: Final = re.compile(r"0+(?:\.0+)?", re.ASCII)
_RANGES: Final = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12)}
_NTH: Final = ("1-7", "8-14", "15-21", "22-28")
_LENGTH_MAX: Final = 1_000
_FROM_END_MAX: Final = 28
CALENDARS_MAX: Final = 100
"""Times of one timer; each is compared with each other one."""


class Field(NamedTuple):
    """A field of a schedule: its text, and which values it has; `L` and `1#2` have none."""

    text: str
    values: frozenset[int] = frozenset()


class Calendar(NamedTuple):
    """A schedule: minute, hour, day of the month, month, day of the week; and its zone."""

    fields: tuple[Field, ...]
    zone: str | None

    @property
    def schedule(self) -> str:
        """The schedule as a job has it."""
        texts = tuple(field.text for field in self.fields)
        return _USUAL.get(texts) or " ".join(texts)

    @property
    def is_plain(self) -> bool:
        """Return whether its fields say all of its instants."""
        return all(field.values for field in self.fields)


_ANY: Final = Field("*")


def calendar(text: str) -> Calendar:
    """Return the schedule of an `OnCalendar=`.

    Raises:
        Unfit: it is not understood, or no schedule means the same.
    """
    if len(text) > _LENGTH_MAX:
        raise Unfit("it is longer than a schedule can be")
    when, zone = text.strip(), None
    if (match := _ZONE.fullmatch(when)) and not _is_days(match["zone"]):
        when, zone = match["when"], match["zone"]
        zone = "UTC" if zone.upper() == "UTC" else zone
    when = _WORDS.get(when.lower(), when)
    match = _WHEN.fullmatch(when)
    if match is None or not (match["days"] or match["mark"] or match["hour"]):
        raise Unfit("it is not understood")
    if (match["year"] or "*") not in ("*", "1970/1"):
        raise Unfit("it names a year")
    if not _ZERO.fullmatch(match["second"] or "0"):
        raise Unfit("jobs here start at whole minutes")
    minute, hour, month = (_field(key, match[key]) for key in ("minute", "hour", "month"))
    if match["hour"] is None:
        minute = hour = Field("0", frozenset({0}))
    day, weekday = _field("day", match["day"]), _weekdays(match["days"])
    if match["mark"] == "~" and day.text != "*":
        day, weekday = _from_end(match["day"], day, weekday)
    if day.text != "*" and weekday.text != "*":
        day, weekday = _nth(day, weekday)
    return Calendar((minute, hour, day, month, weekday), zone)


def _is_days(text: str) -> bool:
    return all(one in (*_DAYS, *_FULL) for one in re.split(r"[.,-]+", text.lower()) if one)


def _field(key: str, text: str | None) -> Field:
    """Return a part as a field: ranges are `..` there, and numbers may begin with zeros."""
    low, high = _RANGES[key]
    if text in (None, "*"):
        return Field("*", frozenset(range(low, high + 1)))
    parts, values = [], set[int]()
    for part in str(text).split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise Unfit(f"{key} {part[:40]!r} is not understood")
        first, last, step = (int(one) if one else None for one in match.groups())
        first = first or 0
        end = first if last is None and step is None else high if last is None else last
        is_short = step is not None and last is None and first + step > high
        if not low <= first <= end <= high or step == 0 or is_short:
            raise Unfit(f"{key} {part[:40]} is not in {low}-{high}")
        values |= set(range(first, end + 1, step or 1))
        parts.append(_part_text(first, last, step))
    is_any = len(values) == high - low + 1
    return Field("*" if is_any else ",".join(parts), frozenset(values))


def _part_text(first: int, last: int | None, step: int | None) -> str:
    """Return a part of a list as five fields have it."""
    if last is None:
        return f"{first or '*'}/{step}" if step else str(first)
    if last == first or (step or 1) > last - first:
        return str(first)
    return f"{first}-{last}" + (f"/{step}" if step else "")


def _weekdays(text: str | None) -> Field:
    if text is None:
        return Field("*", frozenset(range(7)))
    values = set[int]()
    for part in text.removesuffix(",").lower().split(","):
        ends = [_day(one) for one in re.split(r"\.\.|-", part)]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise Unfit(f"{part[:40]!r} are no days of a week")
        values |= set(range(ends[0], ends[-1] + 1))
    if len(values) == len(_DAYS):
        return Field("*", frozenset(values))
    return Field(text.removesuffix(",").replace("..", "-"), frozenset(values))


def _day(text: str) -> int:
    for names in (_DAYS, _FULL):
        if text in names:
            return names.index(text)
    raise Unfit(f"{text[:40]!r} is no day of a week")


def _from_end(text: str, day: Field, weekday: Field) -> tuple[Field, Field]:
    """Return the fields of a day that counts from the end of a month. `~7/1` is the last week."""
    if len(day.values) == 1:
        (number,) = day.values
        if number > _FROM_END_MAX:
            raise Unfit(f"a day that counts from the end is at most ~{_FROM_END_MAX}")
        return Field(f"L-{number - 1}" if number > 1 else "L"), weekday
    if re.fullmatch("0*7/0*1", text) and len(weekday.values) == 1:
        (number,) = weekday.values
        return _ANY, Field(f"{_DAYS[number]}L")
    raise Unfit("its days before the end of the month are more than one")


def _nth(day: Field, weekday: Field) -> tuple[Field, Field]:
    """Return the fields of a day that has to be both a day of the month and of the week."""
    for number, days in enumerate(_NTH, 1):
        first, last = map(int, days.split("-"))
        if day.values == frozenset(range(first, last + 1)) and len(weekday.values) == 1:
            return _ANY, Field(f"{weekday.text[:3]}#{number}")
    raise Unfit("the day has to be both, and in five fields one is enough")


def united(calendars: Sequence[Calendar]) -> list[Calendar]:
    """Return schedules that have the instants of all calendars together, each once.

    Raises:
        Unfit: two of them may have an instant in common, at which the unit starts once.
    """
    if len(calendars) > CALENDARS_MAX:
        raise Unfit(f"it is one of more than {CALENDARS_MAX} times")
    found = list(dict.fromkeys(calendars))
    is_open = True
    while is_open:
        is_open = False
        for one, other in itertools.combinations(found, 2):
            union = _union(one, other)
            if union is not None:
                found = [union if kept is one else kept for kept in found if kept is not other]
                is_open = True
                break
    for one, other in itertools.combinations(found, 2):
        if may_meet([one], [other]):
            what = f"{one.schedule} and {other.schedule}"
            raise Unfit(f"the unit starts once where both are due, and two jobs would: {what}")
    return found


def _union(one: Calendar, other: Calendar) -> Calendar | None:
    """Return one calendar with the instants of both, None if there is none."""
    if one.zone != other.zone or not (one.is_plain and other.is_plain):
        return None
    pairs = list(zip(one.fields, other.fields, strict=True))
    if all(a.values >= b.values for a, b in pairs):
        return one
    if all(a.values <= b.values for a, b in pairs):
        return other
    differing = [number for number, (a, b) in enumerate(pairs) if a.values != b.values]
    if len(differing) != 1:
        return None
    (number,) = differing
    values = one.fields[number].values | other.fields[number].values
    fields = list(one.fields)
    fields[number] = Field(f"{one.fields[number].text},{other.fields[number].text}", values)
    return Calendar(tuple(fields), one.zone)


def may_meet(some: Sequence[Calendar], others: Sequence[Calendar]) -> bool:
    """Return whether calendars of two timers may have an instant in common; a timer without any has
    a period, and may meet all."""
    if not some or not others:
        return True
    return any(_may_meet(one, other) for one in some for other in others)


def _may_meet(one: Calendar, other: Calendar) -> bool:
    """Return whether two calendars may have an instant in common."""
    pairs = list(zip(one.fields, other.fields, strict=True))
    known = [(a, b) for a, b in pairs if a.values and b.values]
    if one.zone != other.zone:
        return True
    return all(not a.values.isdisjoint(b.values) for a, b in known)
