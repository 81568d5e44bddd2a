"""Files of task queues: TOML with a `[[queue]]` table for each, the keys as in job files.

[[queue]]
name = "billing"
handler = "billing.invoice"
waiting = 50_000
rate = 100
retries = 4
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

from cron.calendar.duration import parse_duration
from cron.crontab.jobfile import find_excess
from cron.crontab.options import BACKOFF_S_MAX, PRIORITY_MAX, RETRIES_MAX, read_retries
from cron.errors import CrontabError, InvalidInput, LimitExceeded, Problem
from cron.job import COMMAND, OnLost
from cron.limits import (
    DEADLINE_S_MAX,
    QUEUES_MAX,
    TASKS_SPILLED_MAX,
    TASKS_WAITING_MAX,
    TIMEOUT_S_MAX,
)
from cron.state.alerts import SELF
from cron.state.tasks import REMEMBER_S, REMEMBER_S_MAX, QueueSpec, TaskOptions
from launcher.protocol.names import BadName, parse_job_name

RATE_MAX: Final = 1_000_000


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{key} is not a text", f'write it in quotes, like {key} = "..."')
    return value


def _word(key: str, value: Any) -> str:
    text = _text(key, value)
    try:
        parse_job_name(text)
    except BadName as error:
        raise InvalidInput(f"{key} {text[:80]!r} is not a plain word") from error
    if "/" in text:
        raise InvalidInput(f"{key} {text[:80]!r} is not a plain word", "leave the tenant out")
    return text


def _handler(key: str, value: Any) -> str:
    if value == COMMAND:
        hint = "name a function that a worker serves; a job of a crontab runs commands"
        raise InvalidInput(f"handler {COMMAND!r} is what the pool of commands is called", hint)
    return _word(key, value)


def _number(low: int, high: int) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(f"{key} is not a whole number", f"choose one from {low} to {high:,}")
        if not low <= value <= high:
            raise InvalidInput(f"{key} {value} is not in {low} to {high:,}")
        return value

    return read


def _retries(key: str, value: Any) -> int:
    if isinstance(value, str):
        return read_retries(key, value)
    return _number(0, RETRIES_MAX)(key, value) + 1


def _seconds(low: int, high: int) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        return parse_duration(_text(key, value), what=key, least_s=low, most_s=high)

    return read


def _choice(*words: str) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        text = _text(key, value)
        if text not in words:
            raise InvalidInput(f"{key} {text[:40]!r} is not one of {', '.join(words)}")
        return words.index(text)

    return read


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "priority": ("priority", _number(0, PRIORITY_MAX)),
    "retries": ("tries", _retries),
    "backoff": ("backoff_ms", lambda key, value: 1000 * _seconds(1, BACKOFF_S_MAX)(key, value)),
    "deadline": ("deadline_s", _seconds(1, DEADLINE_S_MAX)),
    "timeout": ("timeout_s", _seconds(1, TIMEOUT_S_MAX)),
    "collection": ("collection", _word),
    "on-lost": ("on_lost", _choice(*(one.name.lower() for one in OnLost))),
}
"""The defaults of a queue's tasks: each key with its field of TaskOptions."""
_QUEUE: Final[Mapping[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "handler": ("handler", _handler),
    "waiting": ("waiting_max", _number(1, TASKS_WAITING_MAX + TASKS_SPILLED_MAX)),
    "rate": ("rate_per_s", _number(1, RATE_MAX)),
    "burst": ("burst", _number(1, RATE_MAX)),
    "remember": ("remember_s", _seconds(REMEMBER_S, REMEMBER_S_MAX)),
    "unknown-handler": (
        "waits_for_handler",
        lambda key, value: bool(_choice("refuse", "wait")(key, value)),
    ),
}
"""Limits of a queue itself: each key with its field of QueueSpec."""
DEFAULTS: Final = {key: field for key, (field, _) in _OPTIONS.items()}
"""The fields of TaskOptions by their keys."""
KEYS: Final = ("name", *_QUEUE, *_OPTIONS)


def read_queues(text: str, *, file: str) -> list[QueueSpec]:
    """Return the queues that a file declares, in its order.

    Raises:
        CrontabError: it has errors; all of them are named.
        LimitExceeded: it declares more queues than a cell has.
    """
    problems: list[Problem] = []

    def note(message: str, hint: str = "") -> None:
        problems.append(Problem(file, 0, 0, message, hint))

    document = _parse(text, file)
    tables = document.pop("queue", [])
    for key in document:
        note(f"table {key[:40]!r} is not known", "begin each queue with [[queue]]")
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        note("queue is not a list of tables", "begin each with [[queue]]")
        tables = []
    if len(tables) > QUEUES_MAX:
        raise LimitExceeded(f"{file} declares {len(tables):,} queues, at most {QUEUES_MAX:,}")
    found: dict[str, QueueSpec] = {}
    for number, table in enumerate(tables, 1):
        try:
            spec = _read_queue(table)
        except InvalidInput as error:
            note(f"queue {_named(table, number)}: {error}", error.hint)
            continue
        if spec.name in found:
            note(f"queue {_named(table, number)} is declared twice", "remove one of them")
        found[spec.name] = spec
    if not tables and not problems:
        note("no queue is declared", "begin each with [[queue]]")
    if problems:
        raise CrontabError(problems)
    return list(found.values())


def _parse(text: str, file: str) -> dict[str, Any]:
    excess = find_excess(text)
    if excess is not None:
        raise CrontabError([Problem(file, *excess)])
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        said = str(error)
        message = f"file is not TOML: {said[:1].lower()}{said[1:]}"
        hint = "see https://toml.io for the form"
        raise CrontabError([Problem(file, 0, 0, message, hint)]) from error


def _named(table: Mapping[str, Any], number: int) -> str:
    name = table.get("name")
    return name[:80] if isinstance(name, str) and name else f"number {number}"


def _read_queue(table: Mapping[str, Any]) -> QueueSpec:
    """Return the queue of one table.

    Raises:
        InvalidInput: it has no name or handler, or a value that cannot be.
    """
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        raise InvalidInput(f"key {unknown[0][:40]!r} is not known", f"there are {', '.join(KEYS)}")
    try:
        name = parse_job_name(_text("name", table.get("name")))
    except BadName as error:
        raise InvalidInput(str(error)) from error
    if name.startswith(f"{SELF}/"):
        raise InvalidInput(f"tenant {SELF} is the cell's own", "give the queue another tenant")
    if "handler" not in table:
        raise InvalidInput("handler is missing", "say which handler runs the queue's tasks")
    own = {field: read(key, table[key]) for key, (field, read) in _QUEUE.items() if key in table}
    given = {
        field: read(key, table[key]) for key, (field, read) in _OPTIONS.items() if key in table
    }
    if "burst" in table and "rate" not in table:
        raise InvalidInput("burst is said without a rate", "say rate, too")
    return QueueSpec(name=name, defaults=TaskOptions(**given), **own)
