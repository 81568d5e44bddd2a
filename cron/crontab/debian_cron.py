"""Crontabs of a machine as Debian's cron reads them (cron(8)): which files, and which lines.

Its cron reads nothing of a file that has an error, or no line end at its end. Options of ours are
comments to it, and schedules of ours errors.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cron.crontab.environment import split_assignment

LINES_MAX: Final = 10_000
_NAME: Final = re.compile("[A-Za-z0-9_-]+", re.ASCII)
_LSB_WORD: Final = re.compile("[a-z0-9][a-z0-9-]*", re.ASCII)
_LSB_HIERARCHY: Final = re.compile("_?(?:[a-z0-9_.]+-)+[a-z0-9]+", re.ASCII)
_OF_PACKAGES: Final = re.compile("[a-z0-9-].*dpkg-(?:old|dist)", re.ASCII)
_ITEM: Final = re.compile(
    r"(?:\*|([0-9]+|[a-z]{3})(?:-([0-9]+|[a-z]{3}))?)(?:/([0-9]+))?", re.ASCII
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun",
                  "jul", "aug", "sep", "oct", "nov", "dec")  # fmt: skip
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    (0, 59, ()), (0, 23, ()), (1, 31, ()), (1, 12, _MONTHS), (0, 7, _DAYS),
)  # fmt: skip
_WORDS: Final = frozenset(
    (
        *("@reboot", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight"),
        "@hourly",
    )
)
_DIGITS_MAX: Final = 9
_OPTION: Final = re.compile(rb"^([ \t]*)#:", re.MULTILINE)
_OTHERS_WRITE: Final = 0o022
_OF_USER: Final = 0o600
_PERMISSIONS: Final = 0o7777
_BLANKS: Final = " \t"
_SHOWN_CHARS: Final = 40


class Opened(NamedTuple):
    """A file that was opened: its mode, owner and number of names, and the owner of the link that
    led to it, None for none."""

    is_file: bool
    mode: int
    owner: int
    links: int
    link_owner: int | None = None


def is_read(name: str, *, is_lsb: bool) -> bool:
    """Return whether cron reads a file of /etc/cron.d that is called so; `is_lsb`: with `-l`."""
    if not is_lsb:
        return _NAME.fullmatch(name) is not None
    if _LSB_HIERARCHY.fullmatch(name):
        return _OF_PACKAGES.fullmatch(name) is None
    return _LSB_WORD.fullmatch(name) is not None


def refusal(file: Opened, *, owner: int | None, root: int = 0) -> str:
    """Return why cron does not read a file, "" if it does. `owner` is the user of a crontab in the
    spool, None for the crontabs of the system."""
    if file.link_owner is not None and owner is not None:
        return "it is a link, and a user's crontab is none"
    if file.link_owner not in (None, root):
        return "it is a link that is not root's"
    if file.owner not in ({root} if owner is None else {root, owner}):
        return f"it is not {'root' if owner is None else 'the user'}'s own"
    if not file.is_file:
        return "it is no regular file"
    if owner is None and file.mode & _OTHERS_WRITE:
        return "its group or others may write it"
    if owner is not None and file.mode & _PERMISSIONS != _OF_USER:
        return f"its mode is {file.mode & _PERMISSIONS:04o}, and not 0600"
    if file.links != 1:
        return "it has several names (hard links)"
    return ""


def without_options(content: bytes) -> bytes:
    """Return a crontab whose lines `#: ...` are the comments that they are to cron."""
    return _OPTION.sub(rb"\1##", content)


def first_fault(content: bytes) -> tuple[int, str] | None:
    """Return the line for which cron reads nothing of a file, and why; None if it reads it."""
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[-1]:
        return len(lines), "its last line has no line end"
    if len(lines) - 1 > LINES_MAX:
        return 0, f"it has more than {LINES_MAX} lines"
    for number, line in enumerate(lines, 1):
        text = line.lstrip(_BLANKS)
        named = split_assignment(line)
        if named is not None and named[0] == "CRON_TZ":
            return number, "CRON_TZ sets a zone for cronie, and not for Debian's cron"
        if text and not text.startswith("#") and named is None and not _is_entry(text):
            return number, f"{text[:_SHOWN_CHARS]!r} is no line of it"
    return None


def _is_entry(text: str) -> bool:
    """Return whether a line begins with a schedule."""
    words = text.split(None, len(_FIELDS))
    if text.startswith("@"):
        return words[0] in _WORDS and len(words) > 1
    return len(words) > len(_FIELDS) and all(
        _is_field(word.lower(), *field) for word, field in zip(words, _FIELDS, strict=False)
    )


def _is_field(text: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    """Return whether a word is a field: a list of numbers, names, and ranges with steps."""
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            return False
        ends = [_number(one, low, names) for one in match.groups()[:2] if one is not None]
        if ends and not low <= ends[0] <= ends[-1] <= high:
            return False
        if match[3] is not None and not match[3].strip("0"):
            return False
    return True


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    """Return a number or the number of a name, -1 if it is none."""
    if text.isdigit():
        return int(text) if len(text) <= _DIGITS_MAX else -1
    return names.index(text) + low if text in names else -1
