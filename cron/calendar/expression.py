"""Parses a schedule: five fields, an alias, or `@every`.

The syntax is that of Debian's crontab(5), extended by `?`, ranges that wrap (`22-6`), full names,
and Quartz's L, # and W for days. Syntax that another dialect reads differently is refused: six or
seven fields, H, R, dates that never come, characters other than ASCII. A schedule is parsed once,
when it is declared; plain fields are stored.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Final

import msgspec

from cron import limits
from cron.calendar.duration import parse_duration
from cron.calendar.fields import KINDS, Field, parse_field
from cron.calendar.misread import goes_on, misread
from cron.calendar.remarks import Warned, notes, warnings
from cron.calendar.special import Special
from cron.errors import ScheduleError, invariant
from cron.job import Schedule

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTH_DAYS_MAX: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_TOKEN = re.compile(r"[^ \t]+")
_FIVE_HINT: Final = "write five fields: minute hour day-of-month month day-of-week"


class Expression(msgspec.Struct, frozen=True):
    """A parsed schedule. Either `fields` has five fields, or `every_s` is a period.

    `text` is what the user wrote, with single blanks; `columns` are the columns of the fields in
    the original text (from 1). `warnings` and `notes` are as for `lint`.
    """

    text: str
    fields: tuple[Field, ...] = ()
    every_s: int = 0
    warnings: tuple[Warned, ...] = ()
    columns: tuple[int, ...] = ()
    notes: tuple[Warned, ...] = ()

    @property
    def has_any(self) -> bool:
        """Return whether a field has a `?` whose value is not chosen yet."""
        return any(field.options for field in self.fields)

    @property
    def resolved(self) -> str:
        """The five plain fields; "" for `@every` and while there is a `?`."""
        return "" if self.has_any else " ".join(field.text for field in self.fields)

    @property
    def is_interval(self) -> bool:
        """Return whether minute or hour begins with `*`: then it is an interval job."""
        return self.fields[0].has_star or self.fields[1].has_star

    @property
    def sample(self) -> str:
        """Five plain fields with the first option for each `?`, to compute the period."""
        return self.choose(
            tuple(field.options[0].text if field.options else "" for field in self.fields)
        )

    def choose(self, chosen: tuple[str, ...]) -> str:
        """Return five plain fields: the text in `chosen` for each `?`, the user's elsewhere."""
        invariant(len(chosen) == len(self.fields), "one choice per field")
        return " ".join(
            choice if field.options else field.text
            for field, choice in zip(self.fields, chosen, strict=True)
        )

    def schedule(self, zone: str) -> Schedule:
        """Return the Schedule in `zone` (an IANA name), without values for `?`.

        Replicas parse the text again when a `?` keeps its value, also older ones that know neither
        ranges that wrap nor full names: such a text is stored in plain fields.
        """
        text = self.text
        if self.has_any and self.notes:
            text = " ".join(field.text for field in self.fields)
        return Schedule(text, self.resolved, zone, self.every_s)


@lru_cache(maxsize=8192)
def parse(text: str) -> Expression:
    """Return the parsed schedule: five fields (`?` allowed), an alias, or `@every 90s`.

    Raises:
        ScheduleError: it is not valid; `column` counts the characters of `text` from 1.
    """
    if len(text.encode("utf-8", "surrogatepass")) > limits.EXPRESSION_BYTES_MAX:
        raise ScheduleError(
            f"schedule is longer than {limits.EXPRESSION_BYTES_MAX} bytes",
            limits.EXPRESSION_BYTES_MAX + 1,
            "split it into several jobs",
        )
    for column, character in enumerate(text, 1):
        if not (" " <= character <= "~" or character == "\t"):
            raise ScheduleError(
                f"schedule has the character U+{ord(character):04X}",
                column,
                "schedules are ASCII, with blanks or tabs between fields",
            )
    tokens = [(match.group(), match.start() + 1) for match in _TOKEN.finditer(text)]
    if not tokens:
        raise ScheduleError("schedule is empty", 1, _FIVE_HINT)
    if tokens[0][0].startswith("@"):
        return _parse_at(tokens)
    return _parse_fields(tokens, len(text) + 1)


def _parse_at(tokens: list[tuple[str, int]]) -> Expression:
    (word, column), rest = tokens[0], tokens[1:]
    alias = word.lower()
    if alias == "@every":
        return _parse_every(column, rest)
    if alias == "@reboot":
        raise ScheduleError(
            "@reboot has no instant here: the cell keeps running while its machines boot",
            column,
            "start it with the machine's own init, for example a systemd unit",
        )
    if alias not in ALIASES:
        known = [*ALIASES, "@every"]
        near = difflib.get_close_matches(alias, known, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ScheduleError(
            f"{word} is not a known schedule", column, f"{guess}known are {' '.join(known)}"
        )
    if rest:
        raise ScheduleError(f"{word} stands alone", rest[0][1], f"remove what follows {word}")
    fields = tuple(
        parse_field(kind, field, column)
        for kind, field in zip(KINDS, ALIASES[alias].split(), strict=True)
    )
    return Expression(alias, fields, columns=(column,) * len(fields))


def _parse_every(column: int, rest: list[tuple[str, int]]) -> Expression:
    if not rest:
        raise ScheduleError("@every has no period", column, "write one like @every 90s")
    if len(rest) > 1:
        error = misread([("@every", column), *rest])
        if error is not None:
            raise error
        hint = f"write @every {rest[0][0]} alone: a command stands only in a file"
        raise ScheduleError("@every has more than a period", rest[1][1], hint)
    every_s = parse_duration(
        rest[0][0],
        what="period",
        least_s=limits.PERIOD_S_MIN,
        most_s=limits.PERIOD_S_MAX,
        column=rest[0][1],
    )
    return Expression(f"@every {rest[0][0]}", every_s=every_s)


def _parse_fields(tokens: list[tuple[str, int]], end: int) -> Expression:
    words = tuple(word for word, _ in tokens)
    if len(tokens) != len(KINDS):
        error = misread(tokens) or goes_on(tokens)
        if error is not None:
            raise error
        count = "one field" if len(tokens) == 1 else f"{len(tokens)} fields"
        raise ScheduleError(f"schedule has {count}, not five", end, _FIVE_HINT)
    fields = tuple(
        parse_field(kind, word, column) for kind, (word, column) in zip(KINDS, tokens, strict=True)
    )
    never = _never(fields, tokens[2][1])
    fields = _without_impossible_days(fields, tokens[2][1])
    columns = tuple(column for _, column in tokens)
    found = [*never, *warnings(words, fields, columns, is_never=bool(never))]
    return Expression(
        " ".join(words),
        fields,
        warnings=tuple(sorted(found, key=lambda warned: warned.column)),
        columns=columns,
        notes=tuple(notes(words, columns)),
    )


def _never(fields: tuple[Field, ...], column: int) -> list[Warned]:
    """Refuse a date that never comes; warn if a day of week makes the job run anyway.

    Debian joins two restricted day fields by "or": `0 0 30 2 1` is every Monday of February.
    """
    _, _, day, month, weekday = fields
    if day.options or all(
        _occurs(day.mask, months) or any(_has(special, months) for special in day.specials)
        for months in _months(month)
    ):
        return []
    message = f"day of month {day.text} never comes in month {month.text}"
    if day.has_star or weekday.has_star:
        raise ScheduleError(message, column, _day_hint(month))
    return [Warned(column, f"{message}: only the day of week counts", "write * for the day")]


def _without_impossible_days(fields: tuple[Field, ...], column: int) -> tuple[Field, ...]:
    """Remove the options of a `?` that would give a date that never comes."""
    minute, hour, day, month, weekday = fields
    if not day.options:
        return fields
    months = _months(month)
    options = tuple(o for o in day.options if all(_occurs(o.mask, m) for m in months))
    if not options:
        raise ScheduleError(
            f"day of month {day.text} never comes in month {month.text}",
            column,
            _day_hint(month),
        )
    return minute, hour, msgspec.structs.replace(day, options=options), month, weekday


def _day_hint(month: Field) -> str:
    """Return the days of the month, whatever month a `?` chooses."""
    last = min(
        max(days for number, days in enumerate(MONTH_DAYS_MAX) if months >> number & 1)
        for months in _months(month)
    )
    return f"write a day from 1 to {last}"


def _months(month: Field) -> list[int]:
    return [option.mask for option in month.options] or [month.mask]


def _has(special: Special, months: int) -> bool:
    """Return whether one of the months has a special day."""
    return any(
        months >> month & 1 and special.day(MONTH_DAYS_MAX[month], 1) for month in range(1, 13)
    )


def _occurs(days: int, months: int) -> bool:
    return any(
        months >> month & 1 and days & ((2 << MONTH_DAYS_MAX[month]) - 1) for month in range(1, 13)
    )
