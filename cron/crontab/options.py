"""Options of a job: `#: name=billing/invoices timeout=2h` above a line, or keys of a job file."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from cron import limits
from cron.calendar.duration import parse_duration
from cron.crontab.conflicts import check_together
from cron.crontab.reading import Problems
from cron.errors import InvalidInput, ScheduleError
from cron.job import COMMAND, Catchup, OnLost, Overlap
from cron.where import BadWhere, parse_where
from launcher.protocol.names import DEFAULT_TENANT, NAME_PART_CHARS_MAX, BadName, parse_job_name
from launcher.protocol.work import NO_TIMEOUT_MS

OPTION_MARK: Final = "#:"

_OPTION = re.compile(r"""(?P<key>[^ \t=]+)=(?P<value>"[^"]*"|'[^']*'|[^ \t"']*)(?=[ \t]|\Z)""")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
USER_HINT: Final = "write a user's name, up to 32 of A-Z a-z 0-9 _ . -"


PRIORITY_MAX: Final = 9
CONCURRENCY_MAX: Final = 1_000_000
RETRIES_MAX: Final = 1_000
EXIT_CODE_MAX: Final = 255
BACKOFF_S_MAX: Final = 86_400
HEARTBEAT_S_MAX: Final = 86_400
CPUS_MAX: Final = 10_000
MEMORY_BYTES_MIN: Final = 1 << 20
"""Less memory than a shell needs is probably a wrong unit."""
MEMORY_BYTES_MAX: Final = 1 << 50

_WORD: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}", re.ASCII)
_WORD_HINT: Final = (
    f"use up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -"
)
_CPU: Final = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,3}))?", re.ASCII)
_MEMORY: Final = re.compile(r"([0-9]{1,12})([KMGT])", re.ASCII)
_UNITS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


_NUMBERS: Final = ("priority", "concurrency", "retries", "parts")
_LISTS: Final = ("retry-on", "fatal-on")


Reader = Callable[[str], tuple[str, Any]]
"""Reads a value: returns the field of Policies and its value, or raises InvalidInput."""


class Option(NamedTuple):
    """One `key=value` and its position."""

    key: str
    value: str
    line: int
    key_column: int
    value_column: int


class Policies(msgspec.Struct):
    """The options of a job. 0 and "" mean "not given"; no tenant was added to `name`."""

    name: str = ""
    name_line: int = 0
    name_column: int = 0
    timeout_ms: int = 0
    overlap: Overlap = Overlap.ALLOW
    catchup: Catchup = Catchup.LAST
    on_lost: OnLost = OnLost.SKIP
    deadline_s: int = 0
    user: str = ""
    cwd: str = ""
    priority: int = 5
    collection: str = ""
    concurrency: int = 0
    tries: int = 1
    backoff_ms: int = 0
    backoff_max_ms: int = 0
    retry_codes: tuple[int, ...] = ()
    fatal_codes: tuple[int, ...] = ()
    where: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    handler: str = ""
    heartbeat_ms: int = 0
    parts: int = 1
    each: str = ""


def split_options(text: str, line: int, problems: Problems) -> list[Option]:
    """Return the options of one line with OPTION_MARK; report errors."""
    found: list[Option] = []
    at = text.index(OPTION_MARK) + len(OPTION_MARK)
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        match = _OPTION.match(text, at)
        if match is None:
            problems.error(line, at + 1, *_not_an_option(text[at:]))
            return found
        value = match["value"]
        value_column = match.start("value") + 1
        if value[:1] in ("'", '"'):
            value, value_column = value[1:-1], value_column + 1
        found.append(Option(match["key"], value, line, at + 1, value_column))
        at = match.end()
    if not found and not text.split(OPTION_MARK, 1)[1].strip(" \t"):
        problems.error(
            line,
            text.index(OPTION_MARK) + 1,
            "option line has no options",
            "write one like #: name=backup, or put a blank between # and : for a comment",
        )
    return found


def _not_an_option(rest: str) -> tuple[str, str]:
    word = rest.replace("\t", " ").split(" ", 1)[0]
    if "=" not in word:
        return (
            f"option {word[:40]!r} is not key=value",
            "write options like timeout=2h, or put a blank between # and : for a comment",
        )
    return f"option {word[:40]!r} has a quote that does not close", "quote the whole value"


def read_options(options: Iterable[Option], tenant: str, problems: Problems) -> Policies:
    """Return the options of one job; report errors."""
    policies = Policies()
    seen: dict[str, Option] = {}
    for option in options:
        reader = READERS.get(option.key)
        earlier = seen.setdefault(option.key, option)
        if reader is None:
            problems.error(option.line, option.key_column, *unknown_key(option.key, READERS))
        elif earlier is not option:
            problems.error(
                option.line,
                option.key_column,
                f"option {option.key} is already given on line {earlier.line}",
                "remove one of the two",
            )
        else:
            _read_option(option, reader, policies, problems)
    check_together(policies, seen, problems)
    if policies.name and "/" not in policies.name:
        policies.name = f"{tenant}/{policies.name}"
    return policies


def _read_option(option: Option, reader: Reader, policies: Policies, problems: Problems) -> None:
    try:
        if len(option.value) > limits.OPTION_VALUE_CHARS_MAX:
            raise InvalidInput(
                f"{option.key} is longer than {limits.OPTION_VALUE_CHARS_MAX} characters",
                "shorten it",
            )
        field, value = reader(option.value)
    except ScheduleError as error:
        offset = max(error.column, 1) - 1
        if option.value_column == option.key_column and offset:
            # Values in a job file have no positions.
            message = f"{error} (column {error.column} of the value)"
            problems.error(option.line, option.key_column, message, error.hint)
        else:
            problems.error(option.line, option.value_column + offset, str(error), error.hint)
        return
    except InvalidInput as error:
        problems.error(option.line, option.value_column, str(error), error.hint)
        return
    setattr(policies, field, value)
    if field == "name":
        policies.name_line, policies.name_column = option.line, option.value_column


def unknown_key(key: str, known: Iterable[str]) -> tuple[str, str]:
    """Return the message and hint for a key that is not in `known`."""
    near = difflib.get_close_matches(key.lower().replace("_", "-"), list(known), 1, 0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"option {key[:40]!r} is not known", f"{guess}known are {' '.join(known)}"


def read_user(text: str) -> str:
    """Return the name of a user of the executor's machine.

    Raises:
        InvalidInput: it is not a valid user name.
    """
    if not _USER.fullmatch(text):
        raise InvalidInput(f"user {text[:40]!r} is not a user's name", USER_HINT)
    return text


def _read_name(text: str) -> tuple[str, Any]:
    try:
        full = parse_job_name(text)
    except BadName as error:
        raise InvalidInput(
            f"name {text[:40]!r} is not a job's name",
            f"use up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -, "
            "and at most one / between tenant and job",
        ) from error
    return "name", full if "/" in text else full.removeprefix(f"{DEFAULT_TENANT}/")


def _read_timeout(text: str) -> tuple[str, Any]:
    if text == "none":
        return "timeout_ms", NO_TIMEOUT_MS
    seconds = parse_duration(text, what="timeout", least_s=1, most_s=limits.TIMEOUT_S_MAX)
    return "timeout_ms", seconds * 1000


def _read_deadline(text: str) -> tuple[str, Any]:
    return "deadline_s", parse_duration(
        text, what="deadline", least_s=limits.DEADLINE_S_MIN, most_s=limits.DEADLINE_S_MAX
    )


def _read_cwd(text: str) -> tuple[str, Any]:
    if not text.startswith("/"):
        raise InvalidInput(f"cwd {text!r} is not an absolute path", "begin it with /")
    return "cwd", text


def _choice(key: str, text: str, kind: type[enum.IntEnum]) -> enum.IntEnum:
    names = [member.name.lower() for member in kind]
    if text not in names:
        near = difflib.get_close_matches(text.lower(), names, 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(f"{key} {text!r} is not known", f"{guess}known are {' '.join(names)}")
    return kind[text.upper()]


def read_word(what: str, text: str) -> str:
    """Return a plain word, such as the name of a handler or a collection.

    Raises:
                InvalidInput: it is not valid; the message begins with `what`.
    """
    if not _WORD.fullmatch(text):
        raise InvalidInput(f"{what} {text[:40]!r} is not a plain word", _WORD_HINT)
    return text


def read_number(what: str, text: str, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`.

    Raises:
                InvalidInput: it is not valid; the message begins with `what`.
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
        InvalidInput: it is not a valid name for a handler.
    """
    if text == COMMAND:
        hint = "leave the option out for a command, or give the handler another name"
        raise InvalidInput(f"handler {text!r} is what the pool of commands is called", hint)
    return read_word("handler", text)


def read_where(key: str, text: str) -> str:
    """Return the executors that the option `key` selects, in canonical form.

    Raises:
        ScheduleError: it is not valid; `column` counts characters of the text from 1.
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
        hint = "leave it out if it does not matter"
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


READERS: Final[dict[str, Reader]] = {
    "name": _read_name,
    "timeout": _read_timeout,
    "overlap": lambda text: ("overlap", _choice("overlap", text, Overlap)),
    "catchup": lambda text: ("catchup", _choice("catchup", text, Catchup)),
    "deadline": _read_deadline,
    "on-lost": lambda text: ("on_lost", _choice("on-lost", text, OnLost)),
    "user": lambda text: ("user", read_user(text)),
    "cwd": _read_cwd,
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


def option_text(key: str, value: Any) -> str:
    """Return an option's value as text: strings unchanged, numbers for numeric options.

    Raises:
        InvalidInput: the value has the wrong type for the option.
    """
    if isinstance(value, str):
        return value
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _NUMBERS:
        if is_whole:
            return str(value)
        raise InvalidInput(f"{key} is not a whole number", f"write it like {key} = 3")
    if key == "cpu":
        if is_whole or isinstance(value, float):
            return str(value)
        raise InvalidInput("cpu is not a number", "write it like cpu = 0.5")
    if key in _LISTS:
        codes = [value] if is_whole else value
        if isinstance(codes, list) and codes and all(type(code) is int for code in codes):
            return ",".join(map(str, codes))
        raise InvalidInput(f"{key} is not a list of exit codes", f"write it like {key} = [75, 111]")
    raise InvalidInput(f"{key} is not a text", f'write it in quotes, like {key} = "..."')
