"""Lengths of time as authors of handlers write them: `90`, `1.5`, `"5m"`, `"1h30m"`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

Length: TypeAlias = int | float | str | timedelta
"""Seconds as a number, a text with units (d, h, m, s, ms), or a timedelta."""

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PIECE: Final = re.compile(r"(\d+)(ms|[dhms])", re.ASCII)
_TEXT: Final = re.compile(r"(?:\d+(?:ms|[dhms]))+", re.ASCII)
LENGTH_MS_MAX: Final = 366 * 86_400_000
"""A leap year: whoever waits longer means a schedule."""


def length_ms(said: Length) -> int:
    """Return the milliseconds of a length, rounded up: what is more than nothing stays so.

    Raises:
        ValueError: it is no length, is negative, or is over a year.
        TypeError: it is neither number, text nor timedelta.
    """
    ms = _text_ms(said) if isinstance(said, str) else _number_ms(said)
    if not 0 <= ms <= LENGTH_MS_MAX:
        raise ValueError(f"{said!r} is not between 0 and 366 days")
    return ms


def _number_ms(said: object) -> int:
    if isinstance(said, timedelta):
        said = said.total_seconds()
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise TypeError(f"{said!r} is not a length like 90, '5m' or timedelta(minutes=5)")
    if not math.isfinite(said):
        raise ValueError(f"{said!r} is not a length like 90, '5m' or timedelta(minutes=5)")
    return math.ceil(said * 1000)


def _text_ms(said: str) -> int:
    if not _TEXT.fullmatch(said):
        raise ValueError(f"{said!r} is not a length like 90s, 5m or 1h30m")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PIECE.findall(said))
