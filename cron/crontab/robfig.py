"""Schedules as robfig/cron v3 reads them, for Kubernetes and dkron, and the same instants as ours.

The grammar is that of robfig's `parser.go`, which differs from crontab(5): `?` is `*`; an empty
item of a list is nothing; Sunday is 0 alone; a step may be larger than its field; and a day field
counts as a star only if it has a `*` or `?` without a step above 1. So `0 0 */2 * 1` is due on each
odd day *or* Monday there, and on odd Mondays in cron.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, NamedTuple

from cron.calendar.duration import format_duration
from cron.calendar.expression import ALIASES, parse
from cron.calendar.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, Kind, parse_field
from cron.calendar.zones import zone
from cron.errors import InvalidInput, ScheduleError

_SECOND: Final = Kind("second", 0, 59, 59)
_KINDS: Final = (_SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
_HIGHEST: Final = (59, 59, 23, 31, 12, 6)
_ZONED: Final = re.compile(r"(?:CRON_)?TZ=([^ ]*) (.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"\+?([0-9]{1,18})", re.ASCII)
_EVERY: Final = "@every "
_DURATION: Final = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_LENGTH: Final = re.compile(r"([0-9]*)\.?([0-9]*)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_NS: Final = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6,
    "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9,
}  # fmt: skip
_DURATION_NS_MAX: Final = (1 << 63) - 1
_MINUTE_NS: Final = 60 * 10**9
_DAY_MIN: Final = 1440
_YEAR_MIN: Final = 366 * _DAY_MIN
_SHIFTS_FROM_MIN: Final = (2024 - 1970) * 365 * _DAY_MIN
_SHIFTS_YEARS: Final = 20
"""Years from 2024 whose changes of clocks are looked at; tzdata knows no rules that begin later."""


class Values(NamedTuple):
    """One field: its values as bits, and whether it counts as a star."""

    mask: int
    is_star: bool

    def is_full(self, index: int) -> bool:
        """Return whether the field `index` has all values."""
        return self.mask == _full(index)


class Due(NamedTuple):
    """A schedule of ours, and what differs: `second` is that of a minute at which robfig is due."""

    text: str
    zone: str | None
    second: int = 0


def read_robfig(text: str, *, has_seconds: bool) -> Due:
    """Return the schedule with the same instants, and the zone that the text names.

    `has_seconds`: the first of six fields are seconds; else there are five.

    Raises:
        InvalidInput: robfig does not read the text, or no schedule of ours has these instants.
    """
    named = None
    if text.startswith(("TZ=", "CRON_TZ=")):
        zoned = _ZONED.fullmatch(text)
        if zoned is None:
            raise InvalidInput(f"schedule {text} names a zone and nothing else")
        named, text = zoned[1] or "UTC", zoned[2].strip()
    if text.startswith(_EVERY):
        return Due(f"@every {format_duration(_period_s(text[len(_EVERY) :]))}", named)
    if text.startswith("@"):
        if text not in ALIASES:
            raise InvalidInput(f"schedule {text} is not known to robfig/cron")
        return Due(text, named)
    words = text.split()
    if len(words) != 5 + has_seconds:
        count = "six" if has_seconds else "five"
        raise InvalidInput(f"schedule {text} has {len(words)} fields, and not {count}")
    if not has_seconds:
        words = ["0", *words]
    fields = [_field(index, word) for index, word in enumerate(words)]
    return _due(words, fields, text)._replace(zone=named)


def differs_at_shifts(text: str, zone_name: str | None) -> bool:
    """Return whether a job with this schedule of ours may be due at another time, or not at all,
    with robfig where clocks of the zone change.

    robfig looks at each real minute: a local time that is skipped is none, one that is repeated is
    due twice. Jobs of ours at fixed times are due once.
    """
    expression = parse(text)
    if zone_name is None or expression.every_s or expression.is_interval:
        return False
    hours, minutes = expression.fields[1].mask, expression.fields[0].mask
    where = zone(zone_name)
    at, end = _SHIFTS_FROM_MIN, _SHIFTS_FROM_MIN + _SHIFTS_YEARS * _YEAR_MIN
    while at < end:
        segment = where.segment(at)
        begin = segment.start + segment.offset
        local = [*range(segment.gap_from, begin), *range(begin, segment.fresh_from)]
        if any(hours >> one // 60 % 24 & 1 and minutes >> one % 60 & 1 for one in local):
            return True
        at = segment.end
    return False


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration of Go, such as `1h30m` or `1.5s`.

    Raises:
        InvalidInput: it is none.
    """
    unsigned = text[1:] if text[:1] in ("-", "+") else text
    sign = -1 if text.startswith("-") else 1
    if unsigned == "0":
        return 0
    if _DURATION.fullmatch(text) is None:
        raise InvalidInput(f"{text[:40]!r} is not a duration")
    total = 0
    for whole, tenths, unit in _LENGTH.findall(unsigned):
        total += int(whole or 0) * _UNIT_NS[unit]
        total += int(tenths or 0) * _UNIT_NS[unit] // 10 ** len(tenths)
    if total > _DURATION_NS_MAX:
        raise InvalidInput(f"{text[:40]!r} is too long a duration")
    return sign * total


def _period_s(text: str) -> int:
    """Return the seconds of an `@every`: less than one is one, and parts of one do not count."""
    return max(duration_ns(text), 10**9) // 10**9


def _full(index: int) -> int:
    return (2 << _HIGHEST[index]) - (1 << _KINDS[index].lowest)


def _field(index: int, text: str) -> Values:
    """Return the values of a field: those of all items of its list."""
    mask, is_star = 0, False
    for item in filter(None, text.split(",")):
        values = _range(index, item)
        mask, is_star = mask | values.mask, is_star or values.is_star
    if not mask:
        raise InvalidInput(f"{_KINDS[index].name} {text} has no value: it is never due")
    return Values(mask, is_star)


def _range(index: int, item: str) -> Values:
    """Return the values of `*`, `?`, `a`, `a-b` and of each with a step; a `*-b` is a `*`."""
    kind, highest = _KINDS[index], _HIGHEST[index]
    span, *steps = item.split("/")
    ends = span.split("-")
    is_star = ends[0] in ("*", "?")
    if len(steps) > 1 or (len(ends) > 2 and not is_star):
        raise InvalidInput(f"{kind.name} {item} is not a range")
    if is_star:
        first, last = kind.lowest, highest
    else:
        first = _number(kind, ends[0], item)
        last = _number(kind, ends[-1], item)
        if steps and len(ends) == 1:
            last = highest
    step = _number(kind, steps[0], item, is_step=True) if steps else 1
    if not kind.lowest <= first <= last <= highest or not step:
        raise InvalidInput(f"{kind.name} {item} is not in {kind.lowest}-{highest}")
    mask = sum(1 << value for value in range(first, last + 1, step))
    return Values(mask, is_star and step == 1)


def _number(kind: Kind, text: str, item: str, *, is_step: bool = False) -> int:
    if not is_step and (named := kind.names.get(text.lower())) is not None:
        return named
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{kind.name} {item} has {text!r}, which is not a number")
    return int(match[1])


def _due(words: list[str], fields: list[Values], text: str) -> Due:
    """Return the schedule of six fields."""
    seconds = [value for value in range(60) if fields[0].mask >> value & 1]
    day, weekday = fields[3], fields[5]
    is_joined = day.is_star or weekday.is_star
    if len(seconds) == 1:
        texts = [_text(index, words[index], fields[index]) for index in range(1, 6)]
        texts[2], texts[4] = _days(texts[2], texts[4], day, weekday, is_joined=is_joined)
        return Due(" ".join(texts), None, seconds[0])
    step = seconds[1] - seconds[0]
    full = day.is_full(3), weekday.is_full(5)
    is_each_day = all(full) if is_joined else any(full)
    if not is_each_day or not all(fields[index].is_full(index) for index in (1, 2, 4)):
        raise InvalidInput(f"schedule {text} has several seconds: jobs here start at whole minutes")
    if 60 % step or seconds != [*range(0, 60, step)]:
        raise InvalidInput(f"schedule {text} has seconds that are no even period of a minute")
    return Due(f"@every {step}s", None)


def _text(index: int, word: str, values: Values) -> str:
    """Return a field of ours with the same values: as it is written, if it means that."""
    plain = "*" if values.is_full(index) and values.is_star else word.strip(",")
    try:
        field = parse_field(_KINDS[index], plain, 1)
    except ScheduleError:
        return _listed(index, values.mask)
    is_same = field.mask == values.mask and not (field.options or field.specials)
    has_longer = any(int(step) > _HIGHEST[index] for step in re.findall(r"/\+?([0-9]+)", plain))
    return plain if is_same and not has_longer else _listed(index, values.mask)


def _days(
    day_text: str, weekday_text: str, day: Values, weekday: Values, *, is_joined: bool
) -> tuple[str, str]:
    """Return both day fields so that both have to match (a star in one of them), or either."""
    if not is_joined:
        days = _listed(3, day.mask) if day_text.startswith("*") else day_text
        return days, _listed(5, weekday.mask) if weekday_text.startswith("*") else weekday_text
    return "*" if day.is_star else day_text, "*" if weekday.is_star else weekday_text


def _listed(index: int, mask: int) -> str:
    """Return values as a range, a range with a step, or a list; never as a star."""
    values = [value for value in range(_HIGHEST[index] + 1) if mask >> value & 1]
    steps = {later - earlier for earlier, later in pairwise(values)}
    if len(values) > 2 and len(steps) == 1:
        step = steps.pop()
        return f"{values[0]}-{values[-1]}" + (f"/{step}" if step > 1 else "")
    return ",".join(map(str, values))
