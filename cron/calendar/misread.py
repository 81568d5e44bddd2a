"""Hints for schedules that do not have five fields: too few, too many, or torn apart by blanks.

Each hint has a corrected line. If no hint applies, the error of the invalid field is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cron import limits
from cron.calendar.duration import meant_duration, parse_duration
from cron.calendar.fields import KINDS, is_foreign, near_name, parse_field
from cron.errors import ScheduleError

_COMMAND = re.compile(r"""[A-Za-z_./~$\[({"'`!:]""")
_WEEKDAY: Final = r"(?:sun|mon|tue|wed|thu|fri|sat)[a-z]*"
_FIELD_LIKE = re.compile(
    r"[-*?0-9][-*?0-9,/]*|[,/]|\?\([0-9a-z-]+\)(?:/[0-9]+)?|[0-9]{1,2}[LW]|[0-7]#[1-5]"
    rf"|{_WEEKDAY}(?:[-,](?:{_WEEKDAY}|[0-7]))+|{_WEEKDAY}#[1-5]|{_WEEKDAY}L"
    r"|[0-9]{1,2}~[0-9]{0,2}(?:/[0-9]+)?|~[0-9]{0,2}|~[0-9]{1,2}/[0-9]+",
    re.IGNORECASE,
)
_NAMES: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
"""Names in capitals, as crons with seconds write them; `mon` may be a command."""
_ZONE = re.compile(r"(?:CRON_)?TZ=(?P<zone>[A-Za-z0-9_+/-]+)")
_SHOWN_CHARS: Final = 60
"""Characters of a line that a hint repeats."""


def is_field_like(word: str) -> bool:
    """Return whether a word looks like a field of a schedule rather than a command."""
    return word in _NAMES or _FIELD_LIKE.fullmatch(word) is not None


def is_prose(line: str) -> bool:
    """Return whether a line begins with a word that is not a field and not similar to a name."""
    word = line.split(" ", 1)[0].split("\t", 1)[0]
    return word[0].isalpha() and not (
        is_foreign(word) or any(near_name(kind, word) for kind in KINDS)
    )


def misread(
    tokens: Sequence[tuple[str, int]], *, has_command: bool = False
) -> ScheduleError | None:
    """Return the error in words (each with its column) that should begin with five fields.

    `has_command`: a command follows the fields, as in a crontab. Returns None if no hint applies,
    or if the first five words are fields and the sixth begins a command.
    """
    words = [word for word, _ in tokens]
    if not words:
        return None
    if words[0].lower() == "@every":
        return _every_in_words(tokens)
    zone = _ZONE.fullmatch(words[0])
    if zone and _are_fields(words[1:6]):
        return ScheduleError(
            f"{words[0]} does not stand before a schedule",
            tokens[0][1],
            f"in a crontab write {words[0]} on a line of its own above; in a job file write "
            f'zone = "{zone["zone"]}"; for `raftcron next` write --tz {zone["zone"]}',
        )
    return _torn(tokens) or _too_few(tokens) or _too_many(tokens, has_command=has_command)


def goes_on(tokens: Sequence[tuple[str, int]]) -> ScheduleError | None:
    """Return the error in an expression that is followed by a command; None if it is not."""
    words = [word for word, _ in tokens]
    if len(words) <= len(KINDS) or not _are_fields(words[: len(KINDS)]):
        return None
    return ScheduleError(
        "schedule goes on with a command",
        tokens[len(KINDS)][1],
        f"write '{' '.join(words[: len(KINDS)])}' alone: a command stands only in a file",
    )


def _are_fields(words: Sequence[str]) -> bool:
    return len(words) == len(KINDS) and all(map(_is_field, range(len(KINDS)), words))


def _is_field(place: int, word: str) -> bool:
    try:
        parse_field(KINDS[place], word, 1)
    except ScheduleError:
        return False
    return True


def _every_in_words(tokens: Sequence[tuple[str, int]]) -> ScheduleError | None:
    """Suggest `@every 5m` for `@every 5 minutes`."""
    if len(tokens) > 1 and _is_period(tokens[1][0]):
        return None
    for count in (2, 1):
        meant = meant_duration("".join(word for word, _ in tokens[1 : 1 + count]))
        if len(tokens) > count and _is_period(meant):
            said = " ".join(word for word, _ in tokens[1 : 1 + count])
            message = f"period {said!r} is not a duration"
            return ScheduleError(message, tokens[1][1], f"write @every {meant}")
    return None


def _is_period(text: str) -> bool:
    least_s, most_s = limits.PERIOD_S_MIN, limits.PERIOD_S_MAX
    try:
        parse_duration(text, what="period", least_s=least_s, most_s=most_s)
    except ScheduleError:
        return False
    return True


def _torn(tokens: Sequence[tuple[str, int]]) -> ScheduleError | None:
    """Suggest `mon,wed` for `mon, wed`."""
    joined: list[str] = []
    torn_at = 0
    for word, column in tokens:
        before = joined[-1] if joined else ""
        is_continued = bool(before) and (
            before.endswith((",", "-")) or word.startswith(",") or word == "-"
        )
        if is_continued and len(joined) <= len(KINDS):
            torn_at = torn_at or column
            joined[-1] += word
        else:
            joined.append(word)
    if not torn_at or not _are_fields(joined[: len(KINDS)]):
        return None
    return ScheduleError(
        "schedule has a blank inside a field",
        torn_at,
        f"write {' '.join(joined[: len(KINDS)])}: blanks stand only between fields",
    )


def _too_few(tokens: Sequence[tuple[str, int]]) -> ScheduleError | None:
    """Report a command in place of the fifth field, as in `* * * * ls | wc`."""
    for place, (word, column) in enumerate(tokens[: len(KINDS)]):
        if _is_field(place, word):
            continue
        is_name = any(near_name(kind, word) for kind in KINDS) or is_foreign(word)
        if place == 0 or is_name or not _COMMAND.match(word):
            return None
        count = "one field" if place == 1 else f"{place} fields"
        fields = [one for one, _ in tokens[:place]] + ["*"] * (len(KINDS) - place)
        command = " ".join(one for one, _ in tokens[place:])
        if len(command) > _SHOWN_CHARS:
            command = word
        return ScheduleError(
            f"schedule has {count}, not five: {word[:_SHOWN_CHARS]} begins the command",
            column,
            f"write five fields: minute hour day-of-month month day-of-week, such as "
            f"{' '.join(fields)} {command}",
        )
    return None


def _too_many(tokens: Sequence[tuple[str, int]], *, has_command: bool) -> ScheduleError | None:
    """Suggest `@every` for a field of seconds, as in `0 0 12 * * ?`, or removing a year."""
    extra = len(KINDS)
    if len(tokens) <= extra or not is_field_like(tokens[extra][0]):
        return None
    words = [word for word, _ in tokens]
    # Crons with seconds write ? for any day.
    meant = [
        "*" if place in (2, 4) and word == "?" else word for place, word in enumerate(words[1:6])
    ]
    if not _are_fields(meant):
        meant = words[:extra]
    seconds = re.fullmatch(r"\*(?:/([1-9][0-9]?))?", words[0])
    every = f"@every {seconds[1] or 1}s" if seconds else "@every 10s"
    ways = [f"write {' '.join(meant)}"] if _are_fields(meant) else []
    ways.append(f"{'' if ways else 'write '}{every} for seconds")
    if has_command and len(words) > extra + 1:
        ways.append(f"'{words[extra]}' in quotes if the command begins with it")
    count = sum(map(is_field_like, words[: extra + 2]))
    message = f"schedule has {max(count, extra + 1)} fields, not five"
    return ScheduleError(message, tokens[extra][1], ", or ".join(ways))
