"""Lengths of time as people write them: `90s`, `5m`, `2h`, `1d`, `1h30m`."""

from __future__ import annotations

import re
from typing import Final

from cron.errors import ScheduleError

_UNIT_S: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"(?:(?P<d>[0-9]{1,9})d)?(?:(?P<h>[0-9]{1,9})h)?"
    r"(?:(?P<m>[0-9]{1,9})m)?(?:(?P<s>[0-9]{1,9})s)?"
)


def parse_duration(text: str, *, what: str, least_s: int, most_s: int, column: int = 1) -> int:
    """Return the seconds of `90s`, `5m`, `2h`, `1d` or several of them, the largest unit first.

    A plain number is refused: nobody can see whether it means seconds or minutes. `what` names the
    duration in messages, `column` is where it stands.

    Raises:
        ScheduleError: the text is no duration, or it is outside `least_s` to `most_s`.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        if text.isascii() and text.isdigit():
            raise ScheduleError(f"{what} {text} has no unit", column, f"write {text}s for seconds")
        raise ScheduleError(
            f"{what} {text!r} is not a duration", column, "write it like 90s, 5m, 2h, 1d or 1h30m"
        )
    total_s = sum(int(match[unit] or 0) * size_s for unit, size_s in _UNIT_S.items())
    if not least_s <= total_s <= most_s:
        raise ScheduleError(
            f"{what} {text} is not in {format_duration(least_s)} to {format_duration(most_s)}",
            column,
            f"choose one from {format_duration(least_s)} to {format_duration(most_s)}",
        )
    return total_s


def format_duration(seconds: int) -> str:
    """Return the shortest text that `parse_duration` reads as `seconds`; `0s` for none."""
    parts = []
    for unit, size_s in _UNIT_S.items():
        count, seconds = divmod(seconds, size_s)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
