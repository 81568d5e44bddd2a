"""One field of a schedule: lists, ranges, steps, names, and the `?` forms.

A field is parsed into a canonical text (names become numbers, `a-a` becomes `a`, `N/S` becomes
`N-max/S`, `22-6` becomes `22-23,0-6`, so that croniter and older replicas read the same) and a bit
mask of its values. A field with `?` has options instead of values; `cron.calendar.spread` chooses
one of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from cron.calendar.special import (
    BACK_MAX,
    NTH_MAX,
    Special,
    meant_last,
    read_of_month,
    read_of_week,
)
from cron.errors import ScheduleError


class Kind(msgspec.Struct, frozen=True):
    """The definition of one of the five fields: its name, its range, its names, the range of `?`.

    `names` are the three-letter names of crontab(5); other crons do not read `full_names`.
    """

    name: str
    lowest: int
    highest: int
    any_highest: int
    names: dict[str, int] = {}
    full_names: dict[str, int] = {}


_MONTHS: Final = [
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
]
_DAYS: Final = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]


def _numbered(names: Sequence[str], first: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, first)}


MINUTE: Final = Kind("minute", 0, 59, 59)
HOUR: Final = Kind("hour", 0, 23, 23)
DAY_OF_MONTH: Final = Kind("day of month", 1, 31, 28)
"""`?` means one of 1 to 28, so that the job runs every month."""
MONTH: Final = Kind(
    "month", 1, 12, 12, _numbered([name[:3] for name in _MONTHS], 1), _numbered(_MONTHS, 1)
)
DAY_OF_WEEK: Final = Kind(
    "day of week", 0, 7, 6, _numbered([name[:3] for name in _DAYS], 0), _numbered(_DAYS, 0)
)
KINDS: Final = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)

_ANY = re.compile(
    r"\?(?P<range>\((?P<low>[^()/-]*)-(?P<high>[^()/-]*)\))?(?P<slash>/(?P<step>.*))?"
)
_ANY_HINT: Final = "write ?, ?(a-b), ?/n or ?(a-b)/n, alone in its field"
_HASHED = re.compile(r"[HR](?P<rest>(?:\([^()]*\))?(?:/[0-9]+)?)", re.IGNORECASE)
_TILDE = re.compile(
    r"(?P<low>[0-9]{1,2}|[a-z]{3,9})?~(?P<high>[0-9]{1,2}|[a-z]{3,9})?(?P<step>/[0-9]{1,9})?",
    re.IGNORECASE,
)
"""A random value of cronie and OpenBSD (crontab(5) of both): `~`, `0~59`, `10~`, `~30/5`."""
_DAYS_A_WEEK: Final = 7
_LIKE_SPECIAL = re.compile(r"L|LW|[0-9]{1,2}W|L-[0-9]+W?|.*#.*|.*[0-9]L", re.IGNORECASE)
"""A part of a day field that means a special day and is not one."""


class Option(msgspec.Struct, frozen=True):
    """One option of a `?`: plain text and the mask of its values."""

    text: str
    mask: int


class Field(msgspec.Struct, frozen=True):
    """A parsed field: canonical text, values as bits, and whether its text begins with `*`.

    The star decides whether the job is an interval job and how the two day fields combine
    (crontab(5), cron(8)); it is a property of the text, not of the values. `options` is empty
    unless the field has a `?`. `specials` are days that depend on the month, such as `L`: `mask`
    lacks them.
    """

    text: str
    mask: int
    has_star: bool = False
    options: tuple[Option, ...] = ()
    specials: tuple[Special, ...] = ()


def parse_field(kind: Kind, text: str, column: int) -> Field:
    """Return the parsed field `kind` from `text`, which begins at `column`.

    Raises:
        ScheduleError: the text is not valid; the column is that of the invalid part.
    """
    if "?" in text:
        return _parse_any(kind, text, column)
    parts: list[str] = []
    specials: list[Special] = []
    mask = 0
    at = column
    for part in text.split(","):
        special = parse_special(kind, part, at)
        if special is not None:
            specials.append(special)
            parts.append(special.text)
        else:
            plain, values = _parse_part(kind, part, at)
            parts.append(plain)
            mask |= values
        at += len(part) + 1
    is_star = text.startswith("*")
    return Field(",".join(parts), mask, has_star=is_star, specials=tuple(specials))


def parse_special(kind: Kind, part: str, column: int) -> Special | None:
    """Return the day that a part of a field means if it depends on the month; None if not.

    Raises:
        ScheduleError: there is no such day.
    """
    of_month, of_week = read_of_month(part), read_of_week(part)
    if kind is DAY_OF_MONTH and of_month is not None:
        if of_month.number:
            _parse_number(kind, str(max(of_month.number, 0)), column, part)
        if of_month.back > BACK_MAX:
            message = f"{kind.name} {part} is in no month"
            hint = f"write L-1 to L-{BACK_MAX}, or L for the last day"
            raise ScheduleError(message, column, hint)
        return of_month
    if kind is DAY_OF_WEEK and of_week is not None:
        if of_week.nth < 0 or of_week.nth > NTH_MAX:
            message = f"{kind.name} {part} is in no month"
            hint = f"write {of_week.weekday}#1 to {of_week.weekday}#{NTH_MAX}"
            raise ScheduleError(message, column, f"{hint}, or {of_week.weekday}L for the last one")
        return of_week
    if kind in (DAY_OF_MONTH, DAY_OF_WEEK):
        _refuse_misplaced(kind, part, column)
    return None


def _refuse_misplaced(kind: Kind, part: str, column: int) -> None:
    """Refuse a form of L, # or W that is incomplete or belongs to the other day field."""
    if not _LIKE_SPECIAL.fullmatch(part) and not meant_last(part):
        return
    message = f"{kind.name} {part} is no day"
    if kind is DAY_OF_WEEK and part.upper() == "L":
        message = f"{kind.name} L does not say which day"
        hint = "write 5L for the last Friday of the month, or 6 for every Saturday"
    elif kind is DAY_OF_WEEK and meant_last(part):
        hint = f"did you mean {meant_last(part)}, the last one of the month?"
    elif kind is DAY_OF_WEEK and read_of_month(part):
        message = f"{kind.name} {part} is a day of month"
        hint = "write it in the third field, and * here"
    elif kind is DAY_OF_MONTH and (read_of_week(part) or meant_last(part)):
        message = f"{kind.name} {part} is a day of week"
        hint = f"write {meant_last(part) or part} in the fifth field, and * here"
    elif kind is DAY_OF_MONTH and "#" in part:
        hint = "write a weekday like 5#2 in the fifth field, and * here"
    elif kind is DAY_OF_MONTH:
        hint = "write L, L-3, LW or 15W"
    else:
        hint = "write one weekday like 5#2 or 5L, several with commas between, like 1#1,2#1"
    raise ScheduleError(message, column, hint)


def _parse_part(kind: Kind, part: str, column: int) -> tuple[str, int]:
    hashed = _HASHED.fullmatch(part)
    if hashed:  # H and R of other crons
        hint = f"write ?{hashed['rest']}, alone in its field: the choice is made once and kept"
        raise ScheduleError(f"{kind.name} {part} is not part of crontab(5)", column, hint)
    _refuse_tilde(kind, part, column)
    body, slash, step_text = part.partition("/")
    low_text, dash, high_text = body.partition("-")
    if kind is MINUTE and not low_text and dash:
        _refuse_unlogged(part, column)
    low = high = -1
    if body != "*":
        low = high = _parse_number(kind, low_text, column, part)
        if dash:
            high = _parse_number(kind, high_text, column + len(low_text) + 1, part)
    step = 1
    if slash:
        # N/S of a weekday would not be accepted, so the hint has a range.
        sample = body if dash or low < 0 or kind is not DAY_OF_WEEK else f"{low % 7}-6"
        step = _parse_step(kind, step_text, column + len(body) + 1, sample)
    suffix = f"/{step}" if slash else ""
    if low < 0:
        return f"*{suffix}", _mask(kind, range(kind.lowest, kind.highest + 1, step))
    if slash and not dash:
        if kind is DAY_OF_WEEK:
            raise ScheduleError(
                f"{kind.name} {part} does not say where it ends",
                column,
                f"write {low % 7}-6/{step} or {low % 7}-7/{step}",
            )
        high = kind.highest
    low, high = _on_one_week(kind, low, high)
    if low > high:
        return _wrapped(kind, low, high, step)
    if low == high:
        return str(low), _mask(kind, range(low, low + 1))
    return f"{low}-{high}{suffix}", _mask(kind, range(low, high + 1, step))


def _refuse_tilde(kind: Kind, part: str, column: int) -> None:
    """Refuse `0~59`, and name the form of `?` that chooses from the same values."""
    match = _TILDE.fullmatch(part)
    if match is None:
        return
    meant = "?"
    if match["low"] or match["high"]:
        meant = f"?({match['low'] or kind.lowest}-{match['high'] or kind.highest})"
    meant += match["step"] or ""
    try:
        _parse_any(kind, meant, column)
    except ScheduleError as error:  # its column is of the form that nobody wrote
        raise ScheduleError(f"{error}, in {part!r}", column, error.hint) from error
    hint = f"write {meant}, alone in its field: the choice is made once and kept"
    raise ScheduleError(f"{kind.name} {part} is not part of crontab(5)", column, hint)


def _on_one_week(kind: Kind, low: int, high: int) -> tuple[int, int]:
    """Return the range in ascending order if it is descending only because Sunday is 0 and 7."""
    if kind is DAY_OF_WEEK and low > high:
        if high == 0:
            return low, 7
        if low == _DAYS_A_WEEK:
            return 0, high
    return low, high


def _wrapped(kind: Kind, low: int, high: int, step: int) -> tuple[str, int]:
    """Return canonical text and mask of a range that wraps around, such as 22-6 of hours.

    Steps count from `low` across the end of the field.
    """
    highest = 6 if kind is DAY_OF_WEEK else kind.highest
    size = highest - kind.lowest + 1
    values = [
        kind.lowest + (low - kind.lowest + passed) % size
        for passed in range(0, (high - low) % size + 1, step)
    ]
    runs = [[one for one in values if one >= low], [one for one in values if one <= high]]
    mask = 0
    for value in values:
        mask |= 1 << value
    return ",".join(_run(run, step) for run in runs if run), mask


def _run(values: list[int], step: int) -> str:
    first, last = values[0], values[-1]
    if first == last:
        return str(first)
    return f"{first}-{last}" + (f"/{step}" if step > 1 else "")


def _parse_step(kind: Kind, text: str, column: int, sample: str) -> int:
    """Return the number behind a slash; `sample` is the text before it, for the hint."""
    if not (text.isascii() and text.isdigit()):
        raise ScheduleError(
            f"{kind.name} step {text!r} is not a number", column, f"write a step like {sample}/2"
        )
    step = int(text)
    if step == 0:
        hint = f"write a step of at least 1, like {sample}/1"
        raise ScheduleError(f"{kind.name} step 0 never moves", column, hint)
    return step


def _parse_number(kind: Kind, text: str, column: int, part: str) -> int:
    named = kind.names.get(text.lower(), kind.full_names.get(text.lower()))
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
    hint = f"write a number in {span}"
    if kind.names:
        hint += f" or one of {' '.join(kind.names)}"
    near = near_name(kind, text)
    if near:
        hint = f"did you mean {near}? {hint}"
    return ScheduleError(f"{kind.name} {text!r} is not a number", column, hint)


def near_name(kind: Kind, text: str) -> str:
    """Return the short name that is most similar to a wrong one; "" if there is none."""
    return _near(tuple(kind.names), tuple(kind.full_names), text.lower())


@lru_cache(maxsize=1_024)  # cached, because a file has the same words on many lines
def _near(names: tuple[str, ...], full_names: tuple[str, ...], text: str) -> str:
    near = difflib.get_close_matches(text, [*names, *full_names], 1, 0.75)
    near = near or [name for name in names if text.startswith(name)]
    return near[0][:3] if near else ""


def is_foreign(text: str) -> bool:
    """Return whether a text is syntax that not every cron has: L, W, #, H, R or ~."""
    specials = (_HASHED.fullmatch, _TILDE.fullmatch, read_of_month, read_of_week, meant_last)
    return any(read(text) for read in specials)


def _refuse_unlogged(part: str, column: int) -> None:
    """Refuse `-*/15`: in other crons a leading - keeps a job out of the system's log."""
    try:
        _parse_part(MINUTE, part[1:], column + 1)
    except ScheduleError:
        return
    message = f"minute {part} begins with -, which elsewhere means not to log the job"
    raise ScheduleError(message, column, f"write {part[1:]}")


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
        low, high = _on_one_week(kind, low, high)
        if low > high:
            last = f"{low}-{kind.any_highest}" if low <= kind.any_highest else f"{low}-{low}"
            raise ScheduleError(
                f"{kind.name} range {low}-{high} of ? runs backwards",
                column + match.start("low"),
                f"choose one part of it: write ?({last}) or ?({kind.lowest}-{high})",
            )
        canonical += f"({low}-{high})"
    step = 0
    if match["slash"]:
        step_column = column + match.start("step")
        step = _parse_step(kind, match["step"], step_column, canonical)
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
