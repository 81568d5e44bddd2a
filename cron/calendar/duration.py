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
_IN_WORDS = re.compile(
    r"(?P<whole>[0-9]{1,6})?(?:\.(?P<tenths>[0-9]))?[ _-]*"
    r"(?:(?P<s>s|secs?|seconds?)|(?P<m>m|mins?|minutes?)|(?P<h>h|hrs?|hours?)|(?P<d>d|days?)"
    r"|(?P<w>w|wks?|weeks?))",
    re.IGNORECASE,
)
_WEEK_S: Final = 7 * 86_400


def parse_duration(text: str, *, what: str, least_s: int, most_s: int, column: int = 1) -> int:
    """Return the seconds of `90s`, `5m`, `2h`, `1d` or several of them, the largest unit first.

    A plain number is refused, because it could mean seconds or minutes. `what` names the duration
    in messages, `column` is its position.

    Raises:
        ScheduleError: the text is not a duration, or it is outside `least_s` to `most_s`.
    """
    bounds = f"{format_duration(least_s)} to {format_duration(most_s)}"
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        if text.isascii() and text.isdigit():
            hint = f"choose one from {bounds}"
            if len(text) <= len(str(most_s)) and least_s <= int(text) <= most_s:
                hint = f"write {text}s for seconds"
                if int(text) * 60 <= most_s:
                    hint += f", or {text}m for minutes"
            raise ScheduleError(f"{what} {text[:40]} has no unit", column, hint)
        meant = meant_duration(text)
        hint = "write it like 90s, 5m, 2h, 1d or 1h30m"
        if meant and least_s <= _seconds(meant) <= most_s:
            hint = f"write {meant}"
        raise ScheduleError(f"{what} {text!r} is not a duration", column, hint)
    total_s = _seconds(text)
    if not least_s <= total_s <= most_s:
        raise ScheduleError(
            f"{what} {text} is not in {bounds}", column, f"choose one from {bounds}"
        )
    return total_s


def meant_duration(text: str) -> str:
    """Return `5m` for `5minutes` and `1h30m` for `1.5h`; "" for unknown words."""
    match = _IN_WORDS.fullmatch(text)
    if match is None:
        return ""
    unit_s = next(
        size_s for unit, size_s in {**_UNIT_S, "w": _WEEK_S}.items() if match[unit] is not None
    )
    tenths = int(match["whole"] or (0 if match["tenths"] else 1)) * 10 + int(match["tenths"] or 0)
    seconds, rest = divmod(tenths * unit_s, 10)
    return "" if rest else format_duration(seconds)


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    return sum(int(match[unit] or 0) * size_s for unit, size_s in _UNIT_S.items()) if match else 0


def format_duration(seconds: int) -> str:
    """Return the shortest text that `parse_duration` reads as `seconds`; `0s` for none."""
    parts = []
    for unit, size_s in _UNIT_S.items():
        count, seconds = divmod(seconds, size_s)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
