"""One field of a schedule: lists, ranges, steps, names, and the `?` forms.

A field is read into a canonical text (names become numbers, `a-a` becomes `a`, `N/S` becomes
`N-max/S`, so that croniter and we read the same) and a bit mask of its values. A field with `?` has
no values yet but options: what it may become, of which `cron.calendar.spread` chooses one.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cron.errors import ScheduleError


class Kind(msgspec.Struct, frozen=True):
    """What one of the five places means: its name, its range, its names, the range of `?`."""

    name: str
    lowest: int
    highest: int
    any_highest: int
    names: dict[str, int] = {}


_MONTHS: Final = [
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
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]

MINUTE: Final = Kind("minute", 0, 59, 59)
HOUR: Final = Kind("hour", 0, 23, 23)
DAY_OF_MONTH: Final = Kind("day of month", 1, 31, 28)
"""`?` means one of 1 to 28, so that the job runs every month."""
MONTH: Final = Kind("month", 1, 12, 12, {name: i + 1 for i, name in enumerate(_MONTHS)})
DAY_OF_WEEK: Final = Kind("day of week", 0, 7, 6, {name: i for i, name in enumerate(_DAYS)})
KINDS: Final = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)

_ANY = re.compile(
    r"\?(?P<range>\((?P<low>[^()/-]*)-(?P<high>[^()/-]*)\))?(?P<slash>/(?P<step>.*))?"
)
_ANY_HINT: Final = "write ?, ?(a-b), ?/n or ?(a-b)/n, alone in its field"
_FOREIGN: Final = {
    "L": "last days (L) are not part of crontab(5): test for the day in the command",
    "W": "nearest weekdays (W) are not part of crontab(5): test for the day in the command",
    "#": "n-th weekdays (#) are not part of crontab(5): test for the day in the command",
    "H": "where Jenkins writes H, write ?",
    "R": "where others write R, write ?: the choice is made once and kept",
}


class Option(msgspec.Struct, frozen=True):
    """One thing a `?` may become: plain text and the mask of its values."""

    text: str
    mask: int


class Field(msgspec.Struct, frozen=True):
    """A field that was read: canonical text, values as bits, whether its text begins with `*`.

    The star decides the job class and how the two day fields combine (crontab(5), cron(8)); it is
    a property of the text, not of the values. `options` is empty unless the field is a `?` form.
    """

    text: str
    mask: int
    has_star: bool = False
    options: tuple[Option, ...] = ()


def parse_field(kind: Kind, text: str, column: int) -> Field:
    """Return the field that `text`, which begins at `column`, means in the place `kind`.

    Raises:
        ScheduleError: the text cannot be read; the column is that of the offending part.
    """
    if "?" in text:
        return _parse_any(kind, text, column)
    parts = []
    mask = 0
    at = column
    for part in text.split(","):
        plain, values = _parse_part(kind, part, at)
        parts.append(plain)
        mask |= values
        at += len(part) + 1
    return Field(",".join(parts), mask, has_star=text.startswith("*"))


def _parse_part(kind: Kind, part: str, column: int) -> tuple[str, int]:
    body, slash, step_text = part.partition("/")
    step = _parse_step(kind, step_text, column + len(body) + 1) if slash else 1
    suffix = f"/{step}" if slash else ""
    if body == "*":
        return f"*{suffix}", _mask(kind, range(kind.lowest, kind.highest + 1, step))
    low_text, dash, high_text = body.partition("-")
    low = _parse_number(kind, low_text, column, part)
    if dash:
        high_column = column + len(low_text) + 1
        high = _parse_number(kind, high_text, high_column, part)
        if low > high:
            raise _wrapped(kind, part, low, high, column)
    elif slash:
        if kind is DAY_OF_WEEK:
            raise ScheduleError(
                f"{kind.name} {part} does not say where it ends",
                column,
                f"write {low}-6/{step} or {low}-7/{step}",
            )
        high = kind.highest
    else:
        high = low
    if low == high:
        return str(low), _mask(kind, range(low, low + 1))
    return f"{low}-{high}{suffix}", _mask(kind, range(low, high + 1, step))


def _parse_step(kind: Kind, text: str, column: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ScheduleError(
            f"{kind.name} step {text!r} is not a number", column, "write a step like */5 or 10-40/5"
        )
    step = int(text)
    if step == 0:
        raise ScheduleError(f"{kind.name} step 0 never moves", column, "write a step of at least 1")
    return step


def _parse_number(kind: Kind, text: str, column: int, part: str) -> int:
    named = kind.names.get(text.lower())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit()):
        raise _unreadable(kind, text, column, part)
    value = int(text)
    if not kind.lowest <= value <= kind.highest:
        raise ScheduleError(
            f"{kind.name} {value} is not in {kind.lowest}-{kind.highest}",
            column,
            f"write {'an' if kind is HOUR else 'a'} {kind.name} "
            f"from {kind.lowest} to {kind.highest}",
        )
    return value


def _unreadable(kind: Kind, text: str, column: int, part: str) -> ScheduleError:
    span = f"{kind.lowest}-{kind.highest}"
    if not text:
        return ScheduleError(
            f"{kind.name} has a number missing in {part!r}",
            column,
            f"write a number in {span}, a range like 1-5, or * for all",
        )
    for letter, hint in _FOREIGN.items():
        if letter in text.upper() and re.fullmatch(r"[0-9LWHR#]+(?:\(.*)?", text.upper()):
            return ScheduleError(f"{kind.name} {text} is not understood", column, hint)
    hint = f"write a number in {span}"
    if kind.names:
        hint += f" or one of {' '.join(kind.names)}"
    return ScheduleError(f"{kind.name} {text!r} is not a number", column, hint)


def _wrapped(kind: Kind, part: str, low: int, high: int, column: int) -> ScheduleError:
    hint = f"write {low}-{kind.highest},{kind.lowest}-{high}"
    if kind is DAY_OF_WEEK and high == 0:
        hint = f"Sunday is also 7: write {low}-7"
    elif kind is DAY_OF_WEEK:
        hint = f"write {low}-6,0-{high}"
    return ScheduleError(f"{kind.name} range {part} runs backwards", column, hint)


def _mask(kind: Kind, values: range) -> int:
    mask = 0
    for value in values:
        mask |= 1 << value
    if kind is DAY_OF_WEEK and mask >> 7:
        mask = (mask & 0x7F) | 1  # 0 and 7 are one day
    return mask


def _parse_any(kind: Kind, text: str, column: int) -> Field:
    match = _ANY.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{kind.name} {text!r} is not a form of ?", column, _ANY_HINT)
    low, high = kind.lowest, kind.any_highest
    canonical = "?"
    if match["range"]:
        low = _parse_number(kind, match["low"], column + match.start("low"), text)
        high = _parse_number(kind, match["high"], column + match.start("high"), text)
        if low > high:
            raise ScheduleError(
                f"{kind.name} range {low}-{high} of ? runs backwards",
                column + match.start("low"),
                "choose a range that does not wrap around",
            )
        canonical += f"({low}-{high})"
    step = 0
    if match["slash"]:
        step_column = column + match.start("step")
        step = _parse_step(kind, match["step"], step_column)
        if step > high - low + 1:
            raise ScheduleError(
                f"{kind.name} step {step} is longer than the range {low}-{high}",
                step_column,
                f"write a step of at most {high - low + 1}",
            )
        canonical += f"/{step}"
    return Field(canonical, 0, options=_options(kind, low, high, step))


def _options(kind: Kind, low: int, high: int, step: int) -> tuple[Option, ...]:
    if not step:
        return tuple(
            Option(str(value), _mask(kind, range(value, value + 1)))
            for value in range(low, high + 1)
        )
    options = []
    for first in range(low, low + step):
        values = range(first, high + 1, step)
        text = str(first) if len(values) == 1 else f"{first}-{high}/{step}"
        options.append(Option(text, _mask(kind, values)))
    return tuple(options)
