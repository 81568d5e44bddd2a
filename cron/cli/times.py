"""Times on the command line: reading what people write, writing what programs and people read.

A TIME is ISO 8601 (`2026-11-20T15:00:00Z`, `2026-11-20 16:00:00+01:00`), or as tables print it
(`2026-11-20 15:00:00`, `2026-11-20 15:00`, `15:00` of today), or an age such as `5m`: that long
ago. Without a zone it is UTC, as in the tables.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from cron.errors import InvalidInput
from launcher.protocol.names import SCHEDULED_S_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_UNIT_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_AGE = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,10})s)?")
_DELAY_MS = re.compile(r"(\d{1,12})ms", re.ASCII)
_TIMEOUT = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?( UTC|Z)?")
_ZONE = re.compile(r"(?:Z| UTC|\d\d:\d\d[+-]\d\d:?\d\d|:\d\d(?:\.\d+)?[+-]\d\d:?\d\d)")
_TIME_HINT: Final = (
    "write 2026-11-20T15:00:00Z, '2026-11-20 15:00' or 15:00 in UTC, or an age such as 5m"
)
TIMEOUT_MS_MAX: Final = 3_600_000


def parse_moment(text: str, now_ms: int) -> int:
    """Return the epoch milliseconds of a TIME.

    Raises:
        InvalidInput: it cannot be read, or is not between the years 1970 and 9999.
    """
    age_ms = _age_ms(text)
    moment_ms = now_ms - age_ms if age_ms is not None else _iso_ms(_with_day(text, now_ms))
    if not 0 <= moment_ms <= SCHEDULED_S_MAX * 1000 + 999:
        raise InvalidInput(f"time {text!r} is not between the years 1970 and 9999", _TIME_HINT)
    return moment_ms


def has_zone(text: str) -> bool:
    """Return whether a TIME that `parse_moment` can read says its zone, or is an age."""
    return is_age(text) or _ZONE.search(text) is not None


def is_age(text: str) -> bool:
    """Return whether a TIME is an age: who gives one means about then, not that very second."""
    return _age_ms(text) is not None


def parse_length(text: str) -> int:
    """Return the milliseconds of a length of time such as `90s`, `5m`, `2h30m` or `7d`.

    Raises:
        InvalidInput: it cannot be read, or is nothing.
    """
    length_ms = _age_ms(text)
    if not length_ms:
        what = "cannot be read" if length_ms is None else "is zero"
        raise InvalidInput(f"length of time {text[:40]!r} {what}", "write 90s, 5m or 2h30m")
    return length_ms


def parse_delay(text: str) -> int:
    """Return the milliseconds of a delay such as `10ms`, `0s`, `90s` or `2h30m`.

    Raises:
        InvalidInput: it cannot be read.
    """
    match = _DELAY_MS.fullmatch(text)
    delay_ms = int(match[1]) if match else _age_ms(text)
    if delay_ms is None:
        raise InvalidInput(f"delay {text[:40]!r} cannot be read", "write 10ms, 90s, 5m or 2h30m")
    return delay_ms


def parse_timeout(text: str) -> int:
    """Return the milliseconds of a timeout: `10`, `10s`, `0.5s`, `500ms` or `1m`.

    Raises:
        InvalidInput: it cannot be read, is nothing, or is above an hour.
    """
    match = _TIMEOUT.fullmatch(text)
    unit_ms = {"ms": 1, "s": 1_000, "m": 60_000, None: 1_000}
    timeout_ms = round(float(match[1]) * unit_ms[match[2]]) if match else 0
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidInput(f"timeout {text[:40]!r} is not one", "write 10s or 500ms; at most 60m")
    return timeout_ms


def format_ms(at_ms: int | None) -> str | None:
    """Return `2026-11-20T15:00:00.000Z`, for programs; None for never."""
    if not at_ms:
        return None
    return (_EPOCH + at_ms * _MS).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def format_s(at_s: int | None) -> str | None:
    """Return `2026-11-20T15:00:00.000Z` of seconds, for programs; None for never."""
    return format_ms(at_s * 1000) if at_s else None


def show_ms(at_ms: int | None) -> str:
    """Return `2026-11-20 15:00:00 UTC`, for people; "-" for never."""
    if not at_ms:
        return "-"
    return (_EPOCH + at_ms * _MS).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_utc(at_ms: int | None) -> str:
    """Return `2026-11-20 15:00:00`, for a column whose head names the zone; "-" for never."""
    return show_ms(at_ms).removesuffix(" UTC")


def show_exact_ms(at_ms: int | None) -> str:
    """Return `2026-11-20 15:00:00.007 UTC`, for people who compare; "-" for never."""
    if not at_ms:
        return "-"
    return show_utc(at_ms) + f".{at_ms % 1000:03d} UTC"


def show_s(at_s: int | None) -> str:
    """Return `2026-11-20 15:00:00 UTC` of seconds, for people; "-" for never."""
    return show_ms(at_s * 1000) if at_s else "-"


def show_length(length_ms: int | None) -> str:
    """Return `41ms`, `1.2s`, `3m05s`, `2h03m`, for people; "-" for none."""
    if length_ms is None:
        return "-"
    sign, length_ms = ("-", -length_ms) if length_ms < 0 else ("", length_ms)
    if length_ms < 1_000:
        return f"{sign}{length_ms}ms"
    if length_ms < 60_000:
        return f"{sign}{length_ms // 100 / 10:g}s"
    minutes, seconds = divmod(length_ms // 1_000, 60)
    if minutes < 60:
        return f"{sign}{minutes}m{seconds:02d}s"
    return f"{sign}{minutes // 60}h{minutes % 60:02d}m"


def local_time(at_s: int, offset_min: int) -> str:
    """Return `2026-11-20T16:00:00+01:00`: an instant on the wall clock of a zone."""
    zone = timezone(timedelta(minutes=offset_min))
    return (_EPOCH + timedelta(seconds=at_s)).astimezone(zone).isoformat()


def _age_ms(text: str) -> int | None:
    match = _AGE.fullmatch(text) if text and text.isascii() else None
    if match is None:
        return None
    return sum(
        int(n) * unit_ms for n, unit_ms in zip(match.groups(), _UNIT_MS.values(), strict=True) if n
    )


def _with_day(text: str, now_ms: int) -> str:
    """Return `15:00` with today's date in UTC; any other text as it is."""
    clock = _CLOCK.fullmatch(text) if text.isascii() else None
    if clock is None:
        return text
    today = (_EPOCH + now_ms * _MS).strftime("%Y-%m-%d")
    return f"{today} {int(clock[1]):02d}:{clock[2]}:{clock[3] or '00'}Z"


def _iso_ms(text: str) -> int:
    if len(text) > 40 or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"time {text[:40]!r} cannot be read", _TIME_HINT)
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC") + "Z" * text.endswith(" UTC"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MS
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"time {text!r} cannot be read", _TIME_HINT) from error
