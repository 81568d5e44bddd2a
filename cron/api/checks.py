"""Bounds and forms of what a client sends.

A check is a function that returns a value in its canonical form, or raises InvalidInput. The fields
of a request name their checks in their types (`Annotated`), and `checked` applies them. A pattern
of job names is a plain name, or a shell-like one with `*`, `?` and `[...]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import compress
from operator import is_not
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from cron import limits
from cron.access import GRANTS_EACH_MAX
from cron.api.rpc import Fields, Request
from cron.errors import InvalidInput, LimitExceeded, UnknownJob
from cron.job import COMMAND
from cron.launch_state import LaunchState
from launcher.address import split_address
from launcher.protocol.names import (
    DEFAULT_TENANT,
    NAME_PART_CHARS_MAX,
    SCHEDULED_S_MAX,
    TASK_MARK,
    BadName,
    parse_job_name,
    parse_job_or_task_name,
    parse_launch_name,
    short_job_name,
)

PATTERN_CHARS_MAX: Final = 2 * NAME_PART_CHARS_MAX + 1
_LEGAL = re.compile(r"[A-Za-z0-9_.:*?!\[\]-]+(?:/[A-Za-z0-9_.:*?!\[\]-]+)?")
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
        return parse_job_or_task_name(text)
    except BadName as error:
        raise InvalidInput(str(error)) from error


def no_such_job(pattern: str) -> UnknownJob:
    """Return the error for a name or pattern that no job has."""
    if not is_wild(pattern):
        return unknown_job(pattern)
    return UnknownJob(f"pattern {pattern!r} matches no job", "`raftcron jobs` lists them")


def unknown_job(name: str) -> UnknownJob:
    """Return the error for a job that does not exist, or for a task."""
    if TASK_MARK in name:
        text = f"task {short_job_name(name)} does not exist, or is forgotten"
        return UnknownJob(text, "`raftcron task list` lists them")
    return UnknownJob(f"job {short_job_name(name)} does not exist", "`raftcron jobs` lists them")


NAME_CHARS_MAX: Final = 300
"""Longest launch name: two parts of 100, a time, a trigger and an attempt."""
PERSON_CHARS_MAX: Final = 200
SOURCE_CHARS_MAX: Final = 255
"""A file's name."""
FILES_MAX: Final = 1_000
NEXT_MAX: Final = 10_000
OUTPUT_BYTES_MAX: Final = 1 << 20
PLACE_CHARS_MAX: Final = 300
"""A host's name has at most 253."""
_WORD: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}"
_WORD_HINT: Final = f"up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -"


def job_name(text: str) -> str:
    """Return `tenant/job`."""
    try:
        return parse_job_name(_short(text, "job name", NAME_CHARS_MAX))
    except BadName as error:
        raise InvalidInput(str(error)) from error


def job_or_task(text: str) -> str:
    """Return `tenant/job`, or the full name of a task."""
    try:
        return parse_job_or_task_name(_short(text, "name", NAME_CHARS_MAX))
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


def place(text: str, what: str) -> str:
    """Return `host:port` or `[v6]:port`, or "" for ""; whether it may be used is not asked."""
    if not text:
        return ""
    if split_address(line(what, PLACE_CHARS_MAX)(text)) is None:
        raise InvalidInput(f"{what} {text!r} is not host:port", "such as 127.0.0.1:7400")
    return text


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


def handler(text: str) -> str:
    """Return the name of a handler."""
    if text == COMMAND:
        hint = "give the handler another name; a job of a crontab runs commands"
        raise InvalidInput(f"handler {text!r} is what the pool of commands is called", hint)
    return _handler(text)


def second(what: str) -> Callable[[int], int]:
    """Return the check of seconds since the epoch, between the years 1970 and 9999."""
    return partial(_instant, what=what, unit="s", most=SCHEDULED_S_MAX)


def instant(what: str) -> Callable[[int], int]:
    """Return the check of milliseconds since the epoch, between the years 1970 and 9999."""
    return partial(_instant, what=what, unit="ms", most=SCHEDULED_S_MAX * 1000 + 999)


def _instant(number: int, what: str, unit: str, most: int) -> int:
    if not 0 <= number <= most:
        text = f"{what} {number} {unit} since 1970 is not between the years 1970 and 9999"
        raise InvalidInput(text)
    return number


def priority(number: int) -> int:
    """Return a priority, or -1 for any."""
    if not -1 <= number <= 9:
        raise InvalidInput(f"priority {number} is not in 0 to 9")
    return number


def line(what: str, chars_max: int) -> Callable[[str], str]:
    """Return the check of a text for people: one line of printable text, or ""."""

    def check(text: str) -> str:
        if not all(char.isprintable() for char in _short(text, what, chars_max)):
            raise InvalidInput(f"{what} has characters that cannot be printed: {text[:80]!r}")
        return text

    return check


def matching(pattern: str, message: str, hint: str = "") -> Callable[[str], str]:
    """Return the check of a text that a pattern has to match as a whole; `{}` in the message stands
    for a text that does not."""
    matches = re.compile(pattern, re.ASCII).fullmatch

    def check(text: str) -> str:
        if not matches(text):
            raise InvalidInput(message.format(repr(text[:80])), hint)
        return text

    return check


def source(text: str) -> str:
    """Return the name of a source: one line of printable text, not empty."""
    if not text:
        raise InvalidInput("source is empty", "leave it out to use the file's name")
    return line("source", SOURCE_CHARS_MAX)(text)


def states(labels: list[str]) -> list[str]:
    """Return labels of launch states, each once, in the table's order."""
    known = [state.label for state in LaunchState]
    for label in labels:
        if label not in known:
            raise InvalidInput(
                f"state {label[:40]!r} is not one of {', '.join(known)}",
            )
    return [label for label in known if label in labels]


def scopes(patterns: list[str]) -> list[str]:
    """Return patterns of names, each once, in order."""
    between(len(patterns), 0, GRANTS_EACH_MAX, "number of scopes")
    return sorted({parse_pattern(one) for one in patterns})


def _short(text: str, what: str, chars_max: int) -> str:
    if len(text) > chars_max:
        raise InvalidInput(f"{what} has {len(text)} characters, at most {chars_max} are allowed")
    return text


FullJob = Annotated[str, job_name]
JobOrTask = Annotated[str, job_or_task]
LaunchText = Annotated[str, launch_name]
Pattern = Annotated[str, parse_pattern]
Within = Annotated[list[str], scopes]
"""Patterns of jobs and queues to which an answer or a change is limited; none is no limit. The
guard of a replica writes what the caller's roles cover, whatever the request says."""
Payloads = Within
"""Patterns of jobs and queues whose payloads an answer may have; else as Within."""
NamedPattern = Annotated[str, named_pattern]
Person = Annotated[str, line("name of who asks", PERSON_CHARS_MAX)]
Note = Annotated[str, line("reason", limits.NOTE_CHARS_MAX)]
Source = Annotated[str, source]
Tenant = Annotated[str, matching(_WORD, "tenant {} is not a plain word", _WORD_HINT)]
LimitedTenant = Annotated[
    str, matching(rf"\*|{_WORD}", "tenant {} is not a plain word", _WORD_HINT)
]
"""As Tenant, or `*`, which stands for each tenant by itself."""
Pool = Annotated[str, matching(_WORD, "pool {} is not a plain word", _WORD_HINT)]
_handler: Final = matching(_WORD, "handler {} is not a plain word", _WORD_HINT)
Handler = Annotated[str, handler]
Collection = Annotated[str, matching(_WORD, "collection {} is not a plain word", _WORD_HINT)]
Priority = Annotated[int, priority]
ReplicaId = Annotated[
    str,
    matching(r"\w[\w.-]{0,63}", "replica {} is not an id", "`raftcron status` lists the replicas"),
]
ExecutorId = Annotated[
    str, matching(r"\w[\w.-]{0,99}", "executor {} is not an id", "`raftcron executors` lists them")
]
RequestId = Annotated[
    str,
    matching(
        r"(?=.{1,100}\Z)-*[A-Za-z0-9][A-Za-z0-9-]*",
        "request id is not 1 to 100 letters, digits and -",
    ),
]
FileName = Annotated[str, matching("[0-9a-z.-]{1,80}", "{} is not the name of a file that is kept")]

Q = TypeVar("Q", bound=Fields)


class Listing(Request, frozen=True, kw_only=True):
    """A question for all that there is; the answer is of what its caller may see."""

    within: Within = []


def checked(request: Q) -> Q:
    """Return a request in its canonical form. A field that has its default value is not checked.

    Raises:
        InvalidInput, LimitExceeded: a field, or all of them together, cannot be.
    """
    changed = {}
    fields, defaults = _checks(type(request))
    values = msgspec.structs.astuple(request)
    # Most fields of most requests have their defaults, and small values are the same objects.
    for place in compress(range(len(values)), map(is_not, values, defaults)):
        value = values[place]
        if value is None or value == defaults[place]:
            continue
        name, checks = fields[place]
        for check in checks:
            better = check(value)
            if better is not value:
                changed[name] = better
    canonical = msgspec.structs.replace(request, **changed) if changed else request
    canonical.check()
    return canonical


@cache
def _checks(
    request: type[Fields],
) -> tuple[list[tuple[str, tuple[Callable[[Any], Any], ...]]], list[Any]]:
    """All fields, in order: name and checks; and their defaults."""
    fields = msgspec.structs.fields(request)
    checks = [(field.name, tuple(_checks_of(field.type))) for field in fields]
    return checks, [*map(_default_of, fields)]


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    factory = field.default_factory
    return factory() if isinstance(factory, type) else field.default


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
