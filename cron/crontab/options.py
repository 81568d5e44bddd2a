"""Options of a job: `#: name=billing/invoices timeout=2h` above a line, or keys of a job file."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from cron import limits
from cron.calendar.duration import parse_duration
from cron.crontab.conflicts import check_together
from cron.crontab.pool_options import POOL_READERS, Reader
from cron.crontab.reading import Problems
from cron.errors import InvalidInput, ScheduleError
from cron.job import Catchup, OnLost, Overlap
from launcher.names import DEFAULT_TENANT, NAME_PART_CHARS_MAX, BadName, parse_job_name
from launcher.work import NO_TIMEOUT_MS

OPTION_MARK: Final = "#:"

_OPTION = re.compile(r"""(?P<key>[^ \t=]+)=(?P<value>"[^"]*"|'[^']*'|[^ \t"']*)(?=[ \t]|\Z)""")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
USER_HINT: Final = "write a user's name, up to 32 of A-Z a-z 0-9 _ . -"


class Option(NamedTuple):
    """One `key=value` and where it stands."""

    key: str
    value: str
    line: int
    key_column: int
    value_column: int


class Policies(msgspec.Struct):
    """What a job's options say. 0 and "" are "not given"; `name` is without a tenant added."""

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
    """Return the options of one line, which holds OPTION_MARK; what cannot be read is reported."""
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
    """Return what the options of one job say together; what cannot be read is reported."""
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
            # A job file's values have no places of their own.
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
    """Return the message and hint for a key that is none of `known`."""
    near = difflib.get_close_matches(key.lower().replace("_", "-"), list(known), 1, 0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"option {key[:40]!r} is not known", f"{guess}known are {' '.join(known)}"


def read_user(text: str) -> str:
    """Return the name of a user of the executor's machine.

    Raises:
        InvalidInput: it cannot be one.
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


def _read_overlap(text: str) -> tuple[str, Any]:
    return "overlap", _choice("overlap", text, Overlap)


def _read_catchup(text: str) -> tuple[str, Any]:
    return "catchup", _choice("catchup", text, Catchup)


def _read_on_lost(text: str) -> tuple[str, Any]:
    return "on_lost", _choice("on-lost", text, OnLost)


def _read_user(text: str) -> tuple[str, Any]:
    return "user", read_user(text)


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


READERS: Final[dict[str, Reader]] = {
    "name": _read_name,
    "timeout": _read_timeout,
    "overlap": _read_overlap,
    "catchup": _read_catchup,
    "deadline": _read_deadline,
    "on-lost": _read_on_lost,
    "user": _read_user,
    "cwd": _read_cwd,
    **POOL_READERS,
}
