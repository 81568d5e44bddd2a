"""Lines of a file as text: what is not UTF-8, holds NUL or is too long is reported and left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cron import limits
from cron.crontab.reading import Problems

_UTF8_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_ENCODING_HINT: Final = "save the file as UTF-8"
_COMMENT = re.compile(rb"[ \t]*#(?!:)")


def split_lines(content: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line that can be read; the last needs no line end.

    A byte order mark and carriage returns at the ends of lines are taken off, with one warning.
    """
    if not is_readable(content, problems):
        return
    if content.startswith(_UTF8_MARK):
        content = content.removeprefix(_UTF8_MARK)
        problems.warn(1, 1, "file begins with a byte order mark", "save it as UTF-8 without one")
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    has_returns = False
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\r"):
            line = line[:-1]
            if not has_returns:
                problems.warn(
                    number,
                    len(line) + 1,
                    "line ends with a carriage return, which is taken off",
                    "save the file with line feeds alone (Unix)",
                )
            has_returns = True
        text = _decode(line, number, problems)
        if text is not None:
            yield number, text


def is_readable(content: bytes, problems: Problems) -> bool:
    """Return whether the file is worth reading at all; if not, that was reported."""
    if len(content) > limits.CRONTAB_BYTES_MAX:
        message = f"file has {len(content)} bytes, more than {limits.CRONTAB_BYTES_MAX}"
        problems.error(0, 0, message, "split it into several files")
        return False
    if content.startswith(_UTF16_MARKS):
        problems.error(1, 1, "file is UTF-16, not UTF-8", _ENCODING_HINT)
        return False
    return True


def _decode(line: bytes, number: int, problems: Problems) -> str | None:
    if len(line) > limits.CRONTAB_LINE_BYTES_MAX:
        message = f"line has {len(line)} bytes, more than {limits.CRONTAB_LINE_BYTES_MAX}"
        hint = "put a command into a script, a payload into a job file (.toml)"
        problems.error(number, limits.CRONTAB_LINE_BYTES_MAX + 1, message, hint)
        return None
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        if _COMMENT.match(line):
            problems.warn(number, column, "comment is not UTF-8", _ENCODING_HINT)
            return "#"
        message = f"byte 0x{line[error.start]:02x} is not UTF-8"
        problems.error(number, column, message, _ENCODING_HINT)
        return None
    if "\0" in text:
        problems.error(number, text.index("\0") + 1, "line holds a NUL byte", "remove it")
        return None
    return text
