"""Crontabs of a machine as Debian's cron reads them (cron(8)): which files, and which lines.

Its cron reads nothing of a file that has an error, or no line end at its end. Options of ours are
comments to it, and schedules of ours errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
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
_READ: Final = re.compile(
    r"(?:\*|([0-9A-Za-z]+)(?:(/)|-([0-9A-Za-z]*))?)(?:/([0-9A-Za-z]*))?", re.ASCII
)
"""An item as cron reads it. A slash behind a number alone is an error."""
_ASSIGNMENT: Final = re.compile(
    r"""[ \t]*(?:"[^"=]*"|'[^'=]*'|[^\s="'][^\s=]*)?\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'].*)\s*""",
    re.ASCII,
)
_BLANK: Final = re.compile("[ \t]+")
_LONG_MAX: Final = (1 << 63) - 1
_HALF: Final = 1 << 31
_DIGITS_OF_LONG: Final = 20
_COMMAND_BYTES_MAX: Final = 998
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun",
                  "jul", "aug", "sep", "oct", "nov", "dec")  # fmt: skip
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_Field = tuple[int, int, tuple[str, ...]]
_FIELDS: Final[tuple[_Field, ...]] = (
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
_NOTHING: Final = "Debian's cron reads no line of a file with an error"
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


def without_lines(content: bytes, numbers: Iterable[int]) -> bytes:
    """Return a crontab whose lines with these numbers, from 1, are comments."""
    lines = content.split(b"\n")
    for number in numbers:
        lines[number - 1] = b"#"
    return b"\n".join(lines)


class Lines(NamedTuple):
    """How cron reads the lines of a file."""

    fault: tuple[int, str] | None = None
    """The line for which a file is left out, and why, mostly since cron reads nothing of it; None
    if it is read."""
    strange: Mapping[int, str] = MappingProxyType({})
    """Lines that cron reads, and that are no lines here, with the reason."""


def lines_of(content: bytes, is_user: Callable[[str], bool] | None = None) -> Lines:
    """Return how cron reads a file. `is_user` is of a crontab of the system, whose lines have a
    user, and returns whether the machine has one."""
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[-1]:
        return Lines((len(lines), f"{_NOTHING}: its last line has no line end"))
    if len(lines) - 1 > LINES_MAX:
        return Lines((0, f"{_NOTHING}: it has more than {LINES_MAX} lines"))
    strange: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.lstrip(_BLANKS)
        if not text or text.startswith("#"):
            continue
        if "\0" in text:
            return Lines((number, f"{_NOTHING}: it has a NUL"))
        shown = repr(text[:_SHOWN_CHARS])
        is_variable = _ASSIGNMENT.fullmatch(line) is not None
        named = split_assignment(line)
        if not is_variable and (why := _wrong_entry(text, is_user)):
            return Lines((number, f"{_NOTHING}: {shown} {why}"))
        if is_variable and named is not None and named[0] == "CRON_TZ":
            return Lines((number, "CRON_TZ sets a zone for cronie, and not for Debian's cron"))
        if named is None if is_variable else not _is_entry(text):
            strange[number] = f"{shown} is not understood here"
    return Lines(None, strange)


def _wrong_entry(text: str, is_user: Callable[[str], bool] | None) -> str:
    """Return why a line is no schedule with a command to cron, "" if it is one."""
    if text.startswith("@"):
        word, _, rest = text.replace("\t", " ").partition(" ")
        if word not in _WORDS:
            return "is no line of it"
        rest = rest.lstrip(_BLANKS)
    else:
        *words, rest = [*_BLANK.split(text, len(_FIELDS)), ""][: len(_FIELDS) + 1]
        if len(words) < len(_FIELDS) or not all(map(_is_read, words, _FIELDS)):
            return "is no line of it"
        if rest.startswith("*"):
            return "has six fields"
    if is_user is not None:
        user, *others = _BLANK.split(rest, 1)
        if not is_user(user):
            return f"is of the user {user[:_SHOWN_CHARS]!r}, which this machine does not have"
        rest = "".join(others)
    is_long = len(rest.encode()) > _COMMAND_BYTES_MAX
    return f"has a command of more than {_COMMAND_BYTES_MAX} bytes" if is_long else ""


def _is_read(word: str, field: _Field) -> bool:
    """Return whether cron reads a word as a field: it ignores what follows the items."""
    low, high, names = field
    at = 0
    while (match := _READ.match(word, at)) is not None:
        first, slash, last, step = match.groups()
        ends = [_value(one.lower(), low, names) for one in (first, last) if one is not None]
        if slash or any(one is None or not low <= one <= high for one in ends):
            return False
        if step is not None and not _value(step, 0, ()):
            return False
        at = match.end() + 1
        if word[match.end() : at] != ",":
            return True
    return False


def _value(text: str, low: int, names: tuple[str, ...]) -> int | None:
    """Return a number as cron's machine counts, or the number of a name; None if it is none."""
    if text in names:
        return names.index(text) + low
    if not text.isdigit():
        return None
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= _DIGITS_OF_LONG else _LONG_MAX
    return (min(number, _LONG_MAX) + _HALF) % (2 * _HALF) - _HALF


def _is_entry(text: str) -> bool:
    """Return whether a line that cron reads has a schedule of ours and a command."""
    words = text.split(None, len(_FIELDS))
    if text.startswith("@"):
        return len(words) > 1
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
