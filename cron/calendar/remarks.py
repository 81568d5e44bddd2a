"""Warnings and notes about valid schedules.

A warning says that the schedule may not mean what it seems to mean. A note says that other cron
implementations reject it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cron import limits
from cron.calendar.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    KINDS,
    MINUTE,
    Field,
    Kind,
    parse_field,
    parse_special,
)
from cron.calendar.special import NTH_MAX

_CHOICE_HINT: Final = "see the choice with `raftcron apply --dry-run`, or write a value yourself"
_NTH_DAYS: Final = ("1-7", "8-14", "15-21", "22-28")
"""The days of month among which the first, second, ... of a weekday is."""
_EVERY_UNITS: Final = {MINUTE.name: ("m", 60), HOUR.name: ("h", 3600)}


class Warned(NamedTuple):
    """A warning or note: its message, column (from 1) and hint."""

    column: int
    message: str
    hint: str


def warnings(
    words: tuple[str, ...],
    fields: tuple[Field, ...],
    columns: tuple[int, ...],
    *,
    is_never: bool = False,
) -> Iterator[Warned]:
    """Yield the warnings about five fields, given as written, as parsed, and with their columns.

    `is_never`: the day of month never comes, which has a warning of its own.
    """
    for kind, word, field, column in zip(KINDS, words, fields, columns, strict=True):
        if field.options and kind in (DAY_OF_MONTH, DAY_OF_WEEK):
            message = f"? in {kind.name} is a day chosen by raftcron, not every day as in Quartz"
            yield Warned(column, message, _CHOICE_HINT)
        if kind is DAY_OF_MONTH and any(not o.mask & ((1 << 29) - 1) for o in field.options):
            message = f"{field.text} in {kind.name} may choose a day that some months lack"
            yield Warned(column, message, _CHOICE_HINT)
        if any(special.nth == NTH_MAX for special in field.specials):
            message = f"{kind.name} {word} is not in every month"
            yield Warned(column, message, "write L instead of #5, as in 5L, for the last one")
        if not field.options:
            yield from _long_steps(kind, word, column)
    if not is_never:
        yield from _either_day(words, fields, columns)


def _long_steps(kind: Kind, word: str, column: int) -> Iterator[Warned]:
    """Warn about `*/90` in minutes, which means every full hour, not 90 minutes; also `5/90`."""
    for part, at in _parts(word, column):
        body, _, step_text = part.partition("/")
        mask = parse_field(kind, part, at).mask
        if not step_text or mask & (mask - 1) or int(step_text) == 1:
            continue
        only, step = mask.bit_length() - 1, int(step_text)
        if body.isdigit() and int(body) == kind.highest:
            continue  # 59/15: no value follows, whatever the step
        hint = f"write {only}"
        unit, unit_s = _EVERY_UNITS.get(kind.name, ("", 0))
        if unit and step > kind.highest and step * unit_s <= limits.PERIOD_S_MAX:
            hint += f", or @every {step}{unit} for a period"
        yield Warned(column, f"{kind.name} {part} is the same as {only}", hint)


def _either_day(
    words: tuple[str, ...], fields: tuple[Field, ...], columns: tuple[int, ...]
) -> Iterator[Warned]:
    """Warn if crontab(5) joins two day fields by "or": `0 0 1-7 * 1` is not the first Monday."""
    _, _, day, _, weekday = fields
    if day.options or weekday.options or day.has_star or weekday.has_star:
        return
    message = f"day of month {words[2]} or day of week {words[4]} is enough: the job runs on both"
    number = weekday.mask.bit_length() - 1
    if day.specials or weekday.specials:
        hint = "write * for one of them, or begin the command with a test of the day"
        yield Warned(columns[2], message, hint)
        return
    if day.text in _NTH_DAYS and weekday.mask == 1 << number:
        nth = _NTH_DAYS.index(day.text) + 1
        hint = f"for days that are both, write * for the day of month and {number}#{nth}"
        yield Warned(columns[2], message, f"{hint} for the day of week")
        return
    names = " ".join(
        f"-e ^{name.capitalize()}"
        for name, number in DAY_OF_WEEK.names.items()
        if weekday.mask >> number & 1
    )
    yield Warned(
        columns[2],
        message,
        f"for days that are both, write * for the day of week, and begin the command with: "
        f"LC_ALL=C date | grep -q {names} &&",
    )


def notes(words: tuple[str, ...], columns: tuple[int, ...]) -> Iterator[Warned]:
    """Yield the notes about five fields: syntax that other crons reject."""
    for kind, word, column in zip(KINDS, words, columns, strict=True):
        if "?" in word:
            continue
        for part, at in _parts(word, column):
            special = parse_special(kind, part, at)
            if special is not None:
                hint = "crontab(5) has no such day: other crons may refuse it"
                yield Warned(at, f"{kind.name} {part} means {special.words}", hint)
            elif not is_portable(kind, part):
                plain = parse_field(kind, part, at).text
                message = f"{kind.name} {part} means {plain}"
                yield Warned(at, message, f"other crons refuse it; for them write {plain}")


def is_portable(kind: Kind, part: str) -> bool:
    """Return whether every cron reads a part of a field: no full names, no range that wraps."""
    body = part.partition("/")[0].lower()
    ends = [kind.names.get(end, end) for end in body.split("-")]
    if any(end in kind.full_names for end in ends):
        return False
    return len(ends) == 1 or int(ends[0]) <= int(ends[1])


def _parts(word: str, column: int) -> Iterator[tuple[str, int]]:
    """Yield the parts of a list and their columns."""
    for part in word.split(","):
        yield part, column
        column += len(part) + 1
