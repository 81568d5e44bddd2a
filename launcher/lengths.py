"""Lengths of time as users of the library write them: `90`, `1.5`, `"5m"`, `"1h30m"`. Pure."""

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


def length_ms(length: Length, *, days_max: int = 366) -> int:
    """Return the milliseconds of a length, rounded up.

    Raises:
        ValueError: it is no length, is negative, or is longer than `days_max`.
        TypeError: it is neither number, text nor timedelta.
    """
    number = length.total_seconds() if isinstance(length, timedelta) else length
    problem = f"{length!r} is not a length like 90, '5m' or timedelta(minutes=5)"
    if isinstance(number, str):
        if not _TEXT.fullmatch(number):
            raise ValueError(f"{length!r} is not a length like 90s, 5m or 1h30m")
        ms = sum(int(count) * _UNITS_MS[unit] for count, unit in _PIECE.findall(number))
    elif isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(problem)
    elif not math.isfinite(number):
        raise ValueError(problem)
    else:
        ms = math.ceil(number * 1000)
    if not 0 <= ms <= days_max * 86_400_000:
        raise ValueError(f"{length!r} is not between 0 and {days_max} days")
    return ms
