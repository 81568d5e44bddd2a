"""Bounds and forms of what a client sends.

A check is a function that returns a value in its canonical form, or raises InvalidInput. The fields
of a request name their checks in their types (`Annotated`), and `checked` applies them. A pattern
of job names is a plain name, or a shell-like one with `*`, `?` and `[...]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import cache, partial
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from cron import limits
from cron.api.rpc import Request
from cron.errors import InvalidInput, LimitExceeded, UnknownJob
from cron.launch_state import LaunchState
from launcher.protocol.names import (
    DEFAULT_TENANT,
    NAME_PART_CHARS_MAX,
    SCHEDULED_S_MAX,
    BadName,
    parse_job_name,
    parse_launch_name,
    short_job_name,
)

PATTERN_CHARS_MAX: Final = 2 * NAME_PART_CHARS_MAX + 1
_LEGAL = re.compile(r"[A-Za-z0-9_.*?!\[\]-]+(?:/[A-Za-z0-9_.*?!\[\]-]+)?")
EVERYTHING: Final = "*/*"
_WILD = frozenset("*?[")


def is_wild(pattern: str) -> bool:
    """Whether a pattern may match more than one name."""
    return not _WILD.isdisjoint(pattern)


def parse_pattern(text: str) -> str:
    """Return the pattern with its tenant: `tenant/pattern`; "" stays "", which matches all.

    Raises:
        InvalidInput: it is too long or has a character that no name has.
    """
    if not text:
        return ""
    if len(text) > PATTERN_CHARS_MAX or not _LEGAL.fullmatch(text):
        raise InvalidInput(
            f"pattern {text[:PATTERN_CHARS_MAX]!r} is not one of job names",
            "a job name, or one with * ? [...] in it, such as 'billing*' or 'acme/*'",
        )
    if text == "*":
        return EVERYTHING  # of every tenant: whoever stops everything must not be taken by the word
    if is_wild(text):
        return text if "/" in text else f"{DEFAULT_TENANT}/{text}"
    try:
        return parse_job_name(text)
    except BadName as error:
        raise InvalidInput(str(error)) from error


def select(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the full names that a parsed pattern matches, sorted."""
    if not pattern:
        return sorted(names)
    match = re.compile(translate(pattern)).match
    return sorted(name for name in names if match(name))


def no_such_job(pattern: str) -> UnknownJob:
    """Return the error for a name or pattern that no job has."""
    if not is_wild(pattern):
        return unknown_job(pattern)
    return UnknownJob(f"pattern {pattern!r} matches no job", "`raftcron jobs` lists them")


def unknown_job(name: str) -> UnknownJob:
    """Return the error for a job that does not exist."""
    return UnknownJob(f"job {short_job_name(name)} does not exist", "`raftcron jobs` lists them")


NAME_CHARS_MAX: Final = 300
"""Longest launch name: two parts of 100, a time, a trigger and an attempt."""
PERSON_CHARS_MAX: Final = 200
SOURCE_CHARS_MAX: Final = 255
"""A file's name."""
FILES_MAX: Final = 1_000
NEXT_MAX: Final = 10_000
OUTPUT_BYTES_MAX: Final = 1 << 20
REQUEST_ID_CHARS_MAX: Final = 100
PLACE_CHARS_MAX: Final = 300
"""A host's name has at most 253."""
INSTANT_MS_MAX: Final = SCHEDULED_S_MAX * 1000 + 999
_WORD: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}", re.ASCII)
_REPLICA: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def job_name(text: str) -> str:
    """Return `tenant/job`."""
    try:
        return parse_job_name(_short(text, "job name", NAME_CHARS_MAX))
    except BadName as error:
        raise InvalidInput(str(error)) from error


def pattern_or_all(text: str) -> str:
    """Return a pattern with its tenant; "" for all jobs."""
    pattern = parse_pattern(text)
    return "" if pattern == EVERYTHING else pattern


def named_pattern(text: str) -> str:
    """Return a pattern that is not empty: a change of all jobs has to be asked for."""
    if not text:
        raise InvalidInput("pattern is empty", "'*/*' is every job of every tenant")
    return parse_pattern(text)


def launch_name(text: str) -> str:
    """Return the launch name with its tenant; one with an attempt is refused."""
    try:
        return str(parse_launch_name(_short(text, "launch name", NAME_CHARS_MAX)))
    except BadName as error:
        raise InvalidInput(str(error), "`raftcron history` prints the names of launches") from error


def replica_name(text: str) -> str:
    """Return the id of a replica: 1 to 64 letters, digits, _ . and -, not beginning with . or -."""
    if not _REPLICA.fullmatch(text):
        raise InvalidInput(
            f"replica {text[:80]!r} is not an id", "`raftcron status` lists the replicas"
        )
    return text


def place(text: str, what: str) -> str:
    """Return `host:port` or `[v6]:port`, or "" for ""; whether it may be used is not asked."""
    if not text:
        return ""
    host, colon, port = _line(text, what, PLACE_CHARS_MAX).rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not host or not colon or not is_port or (":" in host and not host.startswith("[")):
        raise InvalidInput(f"{what} {text!r} is not host:port", "such as 127.0.0.1:7400")
    return text


def instant_s(seconds: int, what: str = "time") -> int:
    """Return seconds since the epoch between 1970 and 9999."""
    if not 0 <= seconds <= SCHEDULED_S_MAX:
        raise InvalidInput(f"{what} {seconds} s since 1970 is not between the years 1970 and 9999")
    return seconds


def instant_ms(milliseconds: int, what: str = "time") -> int:
    """Return milliseconds since the epoch between 1970 and 9999."""
    if not 0 <= milliseconds <= INSTANT_MS_MAX:
        raise InvalidInput(
            f"{what} {milliseconds} ms since 1970 is not between the years 1970 and 9999"
        )
    return milliseconds


def between(number: int, low: int, high: int, what: str) -> int:
    """Return a number from low to high."""
    if number < low:
        raise InvalidInput(f"{what} {number} is below {low}")
    if number > high:
        raise LimitExceeded(f"{what} {number} is above {high}")
    return number


def bound(low: int, high: int, what: str) -> Callable[[int], int]:
    """Return the check of a number from low to high."""
    return partial(between, low=low, high=high, what=what)


def instant(what: str) -> Callable[[int], int]:
    """Return the check of milliseconds since the epoch."""
    return partial(instant_ms, what=what)


def second(what: str) -> Callable[[int], int]:
    """Return the check of seconds since the epoch."""
    return partial(instant_s, what=what)


def priority(number: int) -> int:
    """Return a priority, or -1 for any."""
    if not -1 <= number <= 9:
        raise InvalidInput(f"priority {number} is not in 0 to 9")
    return number


def person(text: str) -> str:
    """Return who asks, as the client says: one line of printable text, or ""."""
    return _line(text, "name of who asks", PERSON_CHARS_MAX)


def note(text: str) -> str:
    """Return a reason for people: one line of printable text, or ""."""
    return _line(text, "reason", limits.NOTE_CHARS_MAX)


def source(text: str) -> str:
    """Return the name of a source: one line of printable text, not empty."""
    if not text:
        raise InvalidInput("source is empty", "leave it out to use the file's name")
    return _line(text, "source", SOURCE_CHARS_MAX)


def request_id(text: str) -> str:
    """Return the id of a request: 1 to 100 letters, digits and -."""
    is_plain = text.isascii() and text.replace("-", "").isalnum()
    if not is_plain or len(text) > REQUEST_ID_CHARS_MAX:
        raise InvalidInput("request id is not 1 to 100 letters, digits and -")
    return text


def word(text: str, what: str) -> str:
    """Return the name of a tenant, handler or collection, or ""."""
    if text and not _WORD.fullmatch(text):
        raise InvalidInput(
            f"{what} {text[:80]!r} is not a plain word",
            f"up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -",
        )
    return text


def states(labels: list[str]) -> list[str]:
    """Return labels of launch states, each once, in the table's order."""
    known = [state.label for state in LaunchState]
    for label in labels:
        if label not in known:
            raise InvalidInput(
                f"state {label[:40]!r} is not one of {', '.join(known)}",
            )
    return [label for label in known if label in labels]


FullJob = Annotated[str, job_name]
LaunchText = Annotated[str, launch_name]
Pattern = Annotated[str, parse_pattern]
NamedPattern = Annotated[str, named_pattern]
Person = Annotated[str, person]
Note = Annotated[str, note]
Tenant = Annotated[str, partial(word, what="tenant")]
Pool = Annotated[str, partial(word, what="pool")]
Collection = Annotated[str, partial(word, what="collection")]

Q = TypeVar("Q", bound=Request)


def checked(request: Q) -> Q:
    """Return a request in its canonical form. A field that has its default value is not checked.

    Raises:
        InvalidInput, LimitExceeded: a field, or all of them together, cannot be.
    """
    changed = {}
    for name, default, check in _checks(type(request)):
        value = getattr(request, name)
        if value is not None and value != default:
            changed[name] = check(value)
    canonical = msgspec.structs.replace(request, **changed)
    canonical.check()
    return canonical


@cache
def _checks(request: type[Request]) -> tuple[tuple[str, Any, Callable[[Any], Any]], ...]:
    """The fields that are checked: name, default, and check."""
    return tuple(
        (field.name, field.default, check)
        for field in msgspec.structs.fields(request)
        for check in _checks_of(field.type)
    )


def _checks_of(annotation: Any) -> Iterator[Callable[[Any], Any]]:
    yield from getattr(annotation, "__metadata__", ())
    if _is_request(annotation):
        yield checked
    elif any(map(_is_request, get_args(annotation))):  # a list of them, or one that may be missing
        yield (
            lambda value: (
                [checked(one) for one in value] if isinstance(value, list) else (checked(value))
            )
        )


def _is_request(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Request)


def _short(text: str, what: str, chars_max: int) -> str:
    if len(text) > chars_max:
        raise InvalidInput(f"{what} has {len(text)} characters, at most {chars_max} are allowed")
    return text


def _line(text: str, what: str, chars_max: int) -> str:
    _short(text, what, chars_max)
    if not all(char.isprintable() for char in text):
        raise InvalidInput(f"{what} has characters that cannot be printed: {text[:80]!r}")
    return text
