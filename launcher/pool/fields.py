"""Checks of single fields of what executors send: a value, or the field that is wrong."""

from __future__ import annotations

import re
from typing import Final

from launcher.names import DEFAULT_TENANT, BadName, parse_job_name
from launcher.pool.errors import BadMessage

_WORD: Final = re.compile(r"[!-~]+")  # visible ASCII, no blanks
_SHOWN_CHARS_MAX: Final = 120


def part(field: str, text: str) -> str:
    """Return a name of an executor, a replica or a label, which has the characters of a job name's
    part.

    Raises:
        BadMessage: it has others, or too many.
    """
    try:
        parse_job_name(f"{DEFAULT_TENANT}/{text}")
    except BadName as error:
        raise BadMessage(
            field, f"{shown(text)} is not a name of up to 100 of A-Z a-z 0-9 _ . -"
        ) from error
    return text


def word(field: str, text: str, chars_max: int) -> str:
    """Return a word of visible ASCII characters.

    Raises:
        BadMessage: it is none, or too long.
    """
    if len(text) > chars_max or not _WORD.fullmatch(text):
        raise BadMessage(
            field, f"{shown(text)} is not 1 to {chars_max} visible ASCII characters without blanks"
        )
    return text


def within(field: str, part: str, value: int, low: int, high: int) -> int:
    """Return a number of a part of a field, such as `.row` of `reports[3]`.

    Raises:
        BadMessage: it is below `low` or above `high`.
    """
    if not low <= value <= high:
        raise BadMessage(field + part, f"{value} is not between {low} and {high}")
    return value


def shown(text: str) -> str:
    """Return a text to quote in a status message, cut: that travels in a header of a few KiB."""
    return ascii(text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "...")
