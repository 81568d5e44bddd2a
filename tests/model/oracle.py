"""A slow, obviously right calendar: looks at every UTC minute, knows nothing of the fast one.

It has its own parser (sets instead of masks) and asks zoneinfo for the wall clock of each minute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
MONTHS = [
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
FULL_MONTHS = (
    "january february march april may june july august september october november december"
)
FULL_WEEKDAYS = "sunday monday tuesday wednesday thursday friday saturday"
NAMES = {
    3: {name: number for number, name in enumerate(MONTHS, 1)}
    | {name: number for number, name in enumerate(FULL_MONTHS.split(), 1)},
    4: {name: number for number, name in enumerate(WEEKDAYS)}
    | {name: number for number, name in enumerate(FULL_WEEKDAYS.split())},
}
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def _values(place, text):
    found = set()
    for part in text.split(","):
        if _is_special(place, part):
            continue
        body, _, step = part.partition("/")
        if body == "*":
            low, high = RANGES[place]
        else:
            low_text, dash, high_text = body.partition("-")
            low = _number(place, low_text)
            high = _number(place, high_text) if dash else (RANGES[place][1] if step else low)
        found.update(_around(place, low, high)[:: int(step or 1)])
    if place == 4 and found & {0, 7}:
        found = (found - {7}) | {0}
    return frozenset(found)


def _around(place, low, high):
    """From low to high, step by step, across the end of the field if that is on the way."""
    least, most = RANGES[place]
    if low <= high:
        return list(range(low, high + 1))
    if place == 4:  # Sunday is 7 at the end of a week and 0 at its beginning
        if high == 0:
            return list(range(low, 8))
        if low == 7:
            return list(range(high + 1))
        most = 6
    return [*range(low, most + 1), *range(least, high + 1)]


def _number(place, text):
    known = NAMES.get(place, {})
    return known[text.lower()] if text.lower() in known else int(text)


def _is_special(place, part):
    return place in (2, 4) and ("#" in part or part[-1] in "LW" or part.startswith("L"))


def _is_special_day(part, day):
    """Whether a date is a day such as L-3, 15W, 5L or 5#2: looks at every day of its month."""
    month = [
        date
        for number in range(1, 32)
        if (date := day.replace(day=1) + timedelta(days=number - 1)).month == day.month
    ]
    if "#" in part or (part.endswith("L") and part != "L"):
        weekday = int(part[0]) % 7
        mine = [date for date in month if date.isoweekday() % 7 == weekday]
        place = int(part[2]) - 1 if "#" in part else -1
        return day in mine[place : place + 1 or None]
    wanted = part.removesuffix("W")
    if wanted.startswith("L"):
        back = int(wanted[2:] or 0)
        chosen = month[-1 - back] if back < len(month) else None
    else:
        chosen = month[int(wanted) - 1] if int(wanted) <= len(month) else None
    if chosen is None or not part.endswith("W"):
        return day == chosen
    working = [date for date in month if date.isoweekday() < 6]
    return day == min(working, key=lambda date: abs(date - chosen))


class Spec:
    """Five fields as sets, and the four stars that matter."""

    def __init__(self, expression):
        texts = ALIASES.get(expression, expression).split()
        self.sets = [_values(place, text) for place, text in enumerate(texts)]
        self.specials = [
            [part for part in texts[place].split(",") if _is_special(place, part)]
            for place in (2, 4)
        ]
        self.is_interval = texts[0].startswith("*") or texts[1].startswith("*")
        self.is_both_days = texts[2].startswith("*") or texts[4].startswith("*")

    @lru_cache(maxsize=100_000)  # noqa: B019 - lives as long as one test
    def matches_day(self, day):
        _, _, days, months, weekdays = self.sets
        if day.month not in months:
            return False
        found = (
            day.day in days or any(_is_special_day(part, day) for part in self.specials[0]),
            day.isoweekday() % 7 in weekdays
            or any(_is_special_day(part, day) for part in self.specials[1]),
        )
        return all(found) if self.is_both_days else any(found)

    def matches(self, local):
        minutes, hours, *_ = self.sets
        return local.minute in minutes and local.hour in hours and self.matches_day(local.date())


def scan(expression, zone_name, after_s, until_s):
    """Return [(scheduled_s, local_min)] in (after_s, until_s]."""
    spec = Spec(expression)
    zone = ZoneInfo(zone_name)
    minute = EPOCH + timedelta(minutes=after_s // 60)
    before = minute.astimezone(zone).replace(tzinfo=None, fold=0)
    end = EPOCH + timedelta(minutes=until_s // 60)
    found = []
    while minute < end:
        minute += MINUTE
        aware = minute.astimezone(zone)
        local = aware.replace(tzinfo=None, fold=0)
        nominal = local if spec.matches(local) else None
        if not spec.is_interval:
            if aware.fold:
                nominal = None
            if nominal is None and MINUTE < local - before < timedelta(hours=24) + MINUTE:
                nominal = _last_skipped(spec, before, local)
        if nominal is not None:
            found.append(((minute - EPOCH) // MINUTE * 60, (nominal - LOCAL_EPOCH) // MINUTE))
        before = local
    return found


def _last_skipped(spec, before, local):
    skipped = local - MINUTE
    while skipped > before:
        if spec.matches(skipped):
            return skipped
        skipped -= MINUTE
    return None
