"""The syntax of systemd's units: lines (systemd.syntax(7)), words, time spans (systemd.time(7)).

A unit is decoded with `surrogateescape`, so that an error can name a byte that is not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cron.crontab.imported import Place

LINE_CHARS_MAX: Final = 1 << 20
"""A line with those that continue it; systemd reads no file with a longer one (LONG_LINE_MAX)."""
LINES_MAX: Final = 2_000
"""Lines of one file that are no comments: units of distributions have up to a hundred."""
BLANKS: Final = " \t\n\r"
_LINE_END: Final = re.compile(r"(?:\n\r?|\r\n?)\0?|\0")
_BOM: Final = "\ufeff"
_STRAY: Final = re.compile("[\udc80-\udcff]")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\\\"']")
_TRUE: Final = frozenset(("1", "yes", "y", "true", "t", "on"))
_FALSE: Final = frozenset(("0", "no", "n", "false", "f", "off"))


class Assignment(NamedTuple):
    """`key=value` of a section; the place is that of its first line."""

    section: str
    key: str
    value: str
    place: Place

    @property
    def name(self) -> str:
        """How the table of keys calls it."""
        return f"{self.section}.{self.key}"

    @property
    def shown(self) -> str:
        """How a note shows it."""
        return f"{self.key}={self.value}"


class Fault(NamedTuple):
    """A line that systemd ignores, or for which it reads no unit at all (`is_whole`)."""

    what: str
    place: Place
    is_whole: bool = False


class Unfit(Exception):
    """A construct that cannot mean the same here: its job is left out."""


class NotUnderstood(ValueError):
    """A value that systemd ignores, with a warning."""


class UnitText(NamedTuple):
    """The text of one file as systemd reads it."""

    assignments: list[Assignment]
    faults: list[Fault]


def read_unit(text: str, file: str, sections: frozenset[str]) -> UnitText:
    """Return the assignments of a file in these sections, and the lines that systemd ignores."""
    unit = UnitText([], [])
    section: str | None = None
    is_ignored = False
    for number, line in _logical_lines(text, file, unit.faults):
        place, line = Place(file, number), line.strip(BLANKS)
        if not line:
            continue
        if len(unit.assignments) + len(unit.faults) == LINES_MAX:
            what = f"the file has more than {LINES_MAX} lines that say something"
            unit.faults.append(Fault(what, place, is_whole=True))
            break
        if _STRAY.search(line):
            unit.faults.append(Fault("the line is not UTF-8, and systemd ignores it", place))
        elif line[0] == "[":
            name = line[1:-1]
            if line[-1] != "]" or len(line) == 1 or _UNSAFE.search(name):
                unit.faults.append(Fault(f"{line[:40]} begins no section", place, is_whole=True))
                break
            section, is_ignored = (name, False) if name in sections else (None, True)
            if is_ignored and not name.startswith("X-"):
                unit.faults.append(Fault(f"section [{name[:40]}] is not one of this unit", place))
        elif section is None:
            if not is_ignored:
                unit.faults.append(Fault(f"{line[:40]} is in no section", place))
        else:
            key, mark, value = line.partition("=")
            key = key.rstrip(BLANKS)
            if mark and key:
                unit.assignments.append(Assignment(section, key, value.strip(BLANKS), place))
            else:
                unit.faults.append(Fault(f"{line[:40]} is no KEY=VALUE", place))
    return unit


def _logical_lines(text: str, file: str, faults: list[Fault]) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, with those that continue them, and the first one's number.

    A comment may stand between a line and what continues it. A backslash continues a line only
    where it is the line's last character and itself not escaped.
    """
    parts: list[str] = []
    begin, length, has_mark = 0, 0, False
    for number, line in enumerate(_LINE_END.split(text), 1):
        if line.lstrip(BLANKS)[:1] in ("#", ";"):
            continue
        if not has_mark and line.startswith(_BOM):
            line, has_mark = line[1:], True
        begin, length = begin or number, length + len(line)
        if length > LINE_CHARS_MAX:
            what = f"the line is longer than {LINE_CHARS_MAX} characters"
            faults.append(Fault(what, Place(file, begin), is_whole=True))
            return
        if _is_escaped(line):
            parts.append(f"{line[:-1]} ")
        else:
            yield begin, "".join((*parts, line))
            parts, begin, length = [], 0, 0
    if parts:
        yield begin, "".join(parts)


def _is_escaped(line: str) -> bool:
    """Return whether a backslash escapes the end of a line."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


# ---- words

_SIMPLE: Final = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32,
}  # fmt: skip
_CODED: Final = re.compile(
    r"x(?P<hex>[0-9A-Fa-f]{2})|(?P<octal>[0-7]{3})|u(?P<short>[0-9A-Fa-f]{4})"
    r"|U(?P<long>[0-9A-Fa-f]{8})"
)
_SURROGATES: Final = range(0xD800, 0xE000)
_UNICODE: Final = 0x110000
_BYTES: Final = 256


class Word(NamedTuple):
    """A word without its quotes and escapes, and the place behind it and the blanks there."""

    text: str
    end: int


def next_word(text: str, at: int, *, is_strict: bool = False) -> Word | None:
    """Return the word at a place or behind the blanks there; None if there is none.

    An escape that is none stays as it stands, as systemd has it in commands, unless `is_strict`.

    Raises:
        Unfit: a quote is not closed, or the word is not UTF-8.
    """
    at = behind_blanks(text, at)
    if at == len(text):
        return None
    found, quote = bytearray(), ""
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            code, at = _escape(text, at, is_strict=is_strict)
            found += code
        elif quote:
            if char == quote:
                quote = ""
            else:
                found += char.encode()
        elif char in "\"'":
            quote = char
        elif char in BLANKS:
            break
        else:
            found += char.encode()
    if quote:
        raise Unfit("a quote is not closed")
    try:
        return Word(found.decode(), behind_blanks(text, at))
    except UnicodeDecodeError as error:
        raise Unfit("its escapes are no UTF-8, and a job is a text") from error


def split_words(text: str, *, is_strict: bool = False) -> list[str]:
    """Return all words of a text; see `next_word`."""
    words, at = [], 0
    while (word := next_word(text, at, is_strict=is_strict)) is not None:
        words.append(word.text)
        at = word.end
    return words


def _escape(text: str, at: int, *, is_strict: bool) -> tuple[bytes, int]:
    """Return the bytes that an escape means, and the place behind it."""
    char = text[at : at + 1]
    if char in _SIMPLE:
        return bytes((_SIMPLE[char],)), at + 1
    if match := _CODED.match(text, at):
        digits = match["hex"] or match["octal"] or match["short"] or match["long"]
        code = int(digits, 8 if match["octal"] else 16)
        if match["hex"] or match["octal"]:
            if 0 < code < _BYTES:
                return bytes((code,)), match.end()
        elif 0 < code < _UNICODE and code not in _SURROGATES:
            return chr(code).encode(), match.end()
    if is_strict:
        raise Unfit(f"\\{char} is no escape")
    return f"\\{char}".encode(), at + len(char)


def behind_blanks(text: str, at: int) -> int:
    """Return the place of the next character that is no blank."""
    while at < len(text) and text[at] in BLANKS:
        at += 1
    return at


# ---- values


def boolean(text: str) -> bool:
    """Return a switch.

    Raises:
        NotUnderstood: it is none.
    """
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise NotUnderstood


_SPAN: Final = re.compile(
    r"(?P<whole>[0-9]{0,15})(?P<dot>\.(?P<part>[0-9]{0,15}))?(?P<blanks>[ \t\n\r]*)"
    r"(?P<unit>seconds|second|sec|s|minutes|minute|min|months|month|M|msec|ms|m|hours|hour|hr|h"
    r"|days|day|d|weeks|week|w|years|year|y|usec|us|\u00b5s|\u03bcs)?"
)
_UNIT_US: Final = {
    "us": 1, "\u00b5s": 1, "\u03bcs": 1, "m": 60_000_000, "M": 2_629_800_000_000,
    "s": 1_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000,
    "y": 31_557_600_000_000, "ms": 1_000, "msec": 1_000, "usec": 1, "hr": 3_600_000_000,
    "month": 2_629_800_000_000, "months": 2_629_800_000_000,
}  # fmt: skip


def time_span_us(text: str) -> int | None:
    """Return a time span such as `1h 30min` in microseconds, None for `infinity`. A number without
    a unit is one of seconds.

    Raises:
        NotUnderstood: it is none.
    """
    text = text.strip(BLANKS)
    if text == "infinity":
        return None
    total, at = 0, 0
    while at < len(text):
        match = _SPAN.match(text, at)
        if match is None or not (match["whole"] or match["dot"]):
            raise NotUnderstood
        unit = match["unit"] or "s"
        if not (match["unit"] or match["blanks"]) and match.end() < len(text):
            raise NotUnderstood
        one_us = _UNIT_US.get(unit) or _UNIT_US[unit[0]]
        part = match["part"] or ""
        total += int(match["whole"] or 0) * one_us
        total += int(part or 0) * one_us // 10 ** len(part)
        at = behind_blanks(text, match.end())
    if not text:
        raise NotUnderstood
    return total
