"""Options that say what a job asks of the pool: its handler, place, share, resources and retries.

Each reader returns the field of Policies that an option is for and what belongs there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from cron import limits
from cron.calendar.duration import parse_duration
from cron.errors import InvalidInput, ScheduleError
from cron.job import COMMAND
from launcher.names import NAME_PART_CHARS_MAX
from launcher.where import BadWhere, parse_where

PRIORITY_MAX: Final = 9
CONCURRENCY_MAX: Final = 1_000_000
RETRIES_MAX: Final = 1_000
EXIT_CODE_MAX: Final = 255
BACKOFF_S_MAX: Final = 86_400
HEARTBEAT_S_MAX: Final = 86_400
CPUS_MAX: Final = 10_000
MEMORY_BYTES_MIN: Final = 1 << 20
"""Less than a shell needs is a slip of the unit."""
MEMORY_BYTES_MAX: Final = 1 << 50

_WORD: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}", re.ASCII)
_WORD_HINT: Final = (
    f"use up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -"
)
_CPU: Final = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,3}))?", re.ASCII)
_MEMORY: Final = re.compile(r"([0-9]{1,12})([KMGT])", re.ASCII)
_UNITS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_word(what: str, text: str) -> str:
    """Return a plain word, such as the name of a handler or a collection.

    Raises:
        InvalidInput: it is none; the message begins with `what`.
    """
    if not _WORD.fullmatch(text):
        raise InvalidInput(f"{what} {text[:40]!r} is not a plain word", _WORD_HINT)
    return text


def read_number(what: str, text: str, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`.

    Raises:
        InvalidInput: it is none; the message begins with `what`.
    """
    if not _NUMBER.fullmatch(text):
        hint = f"write one from {least} to {most}"
        raise InvalidInput(f"{what} {text[:40]!r} is not a whole number", hint)
    if not least <= int(text) <= most:
        hint = f"choose one from {least} to {most}"
        raise InvalidInput(f"{what} {text} is not in {least} to {most}", hint)
    return int(text)


def read_handler(text: str) -> str:
    """Return the name of a handler.

    Raises:
        InvalidInput: no handler can be called so.
    """
    if text == COMMAND:
        hint = "leave the option out for a command, or give the handler another name"
        raise InvalidInput(f"handler {text!r} is what the pool of commands is called", hint)
    return read_word("handler", text)


def read_where(key: str, text: str) -> str:
    """Return which executors the option `key` means, in the canonical form.

    Raises:
        ScheduleError: it cannot be read; `column` counts characters of the text from 1.
    """
    try:
        where = str(parse_where(text))
    except BadWhere as error:
        raise ScheduleError(f"{key}: {error.problem}", error.column, error.way_out) from error
    if not where:
        raise InvalidInput(f"{key} is empty", "leave it out for any executor")
    return where


def _codes(what: str, text: str) -> tuple[int, ...]:
    codes = [read_number(what, code.strip(), 0, EXIT_CODE_MAX) for code in text.split(",")]
    if 0 in codes:
        raise InvalidInput(f"{what} has exit code 0, which is success", "leave it out")
    return tuple(sorted(set(codes)))


def _cpu_milli(text: str) -> int:
    match = _CPU.fullmatch(text)
    if match is None:
        hint = "write CPUs like 2 or 0.5, with up to 3 decimals"
        raise InvalidInput(f"cpu {text[:40]!r} is not a number of CPUs", hint)
    milli = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))
    if not 1 <= milli <= CPUS_MAX * 1000:
        hint = "leave it out where it does not matter"
        raise InvalidInput(f"cpu {text} is not in 0.001 to {CPUS_MAX}", hint)
    return milli


def _memory_bytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        if text.isascii() and text.strip("0").isdigit():
            raise InvalidInput(f"memory {text[:40]} has no unit", f"write {text[:12]}M for MiB")
        hint = "write it like 256M or 2G; K, M, G and T are binary"
        raise InvalidInput(f"memory {text[:40]!r} is not a size", hint)
    size = int(match[1]) << _UNITS[match[2]]
    if not MEMORY_BYTES_MIN <= size <= MEMORY_BYTES_MAX:
        raise InvalidInput(f"memory {text} is not in 1M to 1024T", "choose one from 1M to 1024T")
    return size


def _duration_ms(what: str, text: str, most_s: int) -> int:
    return parse_duration(text, what=what, least_s=1, most_s=most_s) * 1000


Reader = Callable[[str], tuple[str, Any]]
"""Reads a value: returns the field of Policies and what belongs there, or raises InvalidInput."""

POOL_READERS: Final[dict[str, Reader]] = {
    "priority": lambda text: ("priority", read_number("priority", text, 0, PRIORITY_MAX)),
    "collection": lambda text: ("collection", read_word("collection", text)),
    "concurrency": lambda text: (
        "concurrency",
        read_number("concurrency", text, 1, CONCURRENCY_MAX),
    ),
    "retries": lambda text: ("tries", read_number("retries", text, 0, RETRIES_MAX) + 1),
    "backoff": lambda text: ("backoff_ms", _duration_ms("backoff", text, BACKOFF_S_MAX)),
    "backoff-max": lambda text: (
        "backoff_max_ms",
        _duration_ms("backoff-max", text, limits.DEADLINE_S_MAX),
    ),
    "retry-on": lambda text: ("retry_codes", _codes("retry-on", text)),
    "fatal-on": lambda text: ("fatal_codes", _codes("fatal-on", text)),
    "where": lambda text: ("where", read_where("where", text)),
    "parts": lambda text: ("parts", read_number("parts", text, 1, limits.PARTS_MAX)),
    "each": lambda text: ("each", read_where("each", text)),
    "cpu": lambda text: ("cpu_milli", _cpu_milli(text)),
    "memory": lambda text: ("memory_bytes", _memory_bytes(text)),
    "handler": lambda text: ("handler", read_handler(text)),
    "heartbeat": lambda text: ("heartbeat_ms", _duration_ms("heartbeat", text, HEARTBEAT_S_MAX)),
}
