"""The values of options: how they are read, and how numbers and sizes are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from cron.cli import render
from cron.cli.times import has_zone, parse_length, parse_moment, parse_timeout, show_ms
from cron.clock import SystemClock
from cron.errors import InvalidInput

NO_LIMIT: Final = "none"
COUNT_MAX: Final = 1_000_000_000
"""The most that the server takes of anything that is counted."""
SIZE_BYTES_MAX: Final = 1 << 50
_SIZE: Final = re.compile(r"([0-9]{1,12})([KMGT])(iB|B)?", re.IGNORECASE)
_UNITS: Final = {"T": 40, "G": 30, "M": 20, "K": 10}


class Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.5
    """A value that `parse` reads from a text. What it refuses is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; a default that is not a text is the value already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InvalidInput as error:
            self.fail(f"{error}; {error.hint}" if error.hint else str(error), param, ctx)


def split_words(text: str) -> list[str]:
    """Return the words between commas, without blanks around them.

    Raises:
        InvalidInput: one is empty.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidInput(
            f"{text[:80]!r} has an empty word", "write one word, or several with commas"
        )
    return words


def read_time(text: str) -> int:
    """Return the epoch milliseconds of a TIME, and say on stderr what one without a zone means.

    Raises:
        InvalidInput: it cannot be read.
    """
    moment_ms = parse_moment(text, SystemClock().wall_ms())
    if not has_zone(text):
        render.line(f"raftcron: {text} is {show_ms(moment_ms)}", err=True)
    return moment_ms


def read_file(path: str, most: int = -1) -> bytes:
    """Return the content of a file, or of standard input for `-`; at most `most` bytes.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        with click.open_file(path, "rb") as opened:
            content: bytes = opened.read(most)
            return content
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or 'no file').lower()}") from error


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises:
        InvalidInput: it cannot be read, or is not UTF-8.
    """
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error}", "save it as UTF-8") from error


def count(least: int = 0, most: int = COUNT_MAX, *, or_none: bool = False) -> Parsed:
    """Return the type of whole numbers from `least` to `most`; with `or_none` the word `none` is 0,
    which means not limited."""

    def parse(text: str) -> int:
        if or_none and text == NO_LIMIT:
            return 0
        is_short = len(text) <= len(str(most))
        number = int(text) if is_short and text.isascii() and text.isdecimal() else -1
        if not least <= number <= most:
            bounds = f"{least} to {most:,}"
            raise InvalidInput(f"{text[:40]!r} is not a whole number from {bounds}")
        return number

    return Parsed(f"N|{NO_LIMIT}" if or_none else "N", parse)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `512MiB`, `512M` or `2G`; K, M, G and T are binary, as in
    crontabs.

    Raises:
        InvalidInput: it cannot be read, has no unit, is nothing, or is above 1024T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        hint = "write it like 512M or 2G; K, M, G and T are binary"
        raise InvalidInput(f"size {text[:40]!r} cannot be read", hint)
    size = int(match[1]) << _UNITS[match[2].upper()]
    if not 0 < size <= SIZE_BYTES_MAX:
        raise InvalidInput(f"size {text[:40]} is not in 1K to 1024T", "choose one from 1K to 1024T")
    return size


TIME: Final = Parsed("TIME", read_time)
"""A point in time, as epoch milliseconds."""
LENGTH: Final = Parsed("LENGTH", parse_length)
"""A length of time such as `2h`, as milliseconds."""
TIMEOUT: Final = Parsed("LENGTH", parse_timeout)
"""How long to try, as milliseconds; a plain number is seconds."""
SIZE: Final = Parsed("SIZE", parse_size)
"""A size, as bytes."""


def show_size(size_bytes: int) -> str:
    """Return a size as an option has it, `256M`, in the largest unit that it is whole in; "-" for
    none."""
    if not size_bytes:
        return "-"
    whole = (f"{size_bytes >> n}{unit}" for unit, n in _UNITS.items() if not size_bytes % (1 << n))
    return next(whole, str(size_bytes))


def show_about(size_bytes: int) -> str:
    """Return a size for people who compare hosts: `7.8G`; "-" for none."""
    for unit, bits in _UNITS.items():
        if size_bytes >> bits:
            return f"{size_bytes / (1 << bits):.1f}".removesuffix(".0") + unit
    return show_size(size_bytes)


def show_cpu(cpu_milli: int) -> str:
    """Return thousandths of a CPU as an option has them: `0.5`; "-" for none."""
    whole, rest = divmod(cpu_milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if cpu_milli else "-"
