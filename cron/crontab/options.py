"""Options of a job: `#: name=billing/invoices timeout=2h` above a line, or keys of a job file."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from cron import limits
from cron.access import USER_RULE
from cron.alert_rules import Condition, JobAlerts
from cron.calendar.duration import parse_duration
from cron.crontab.bounds import parse_calendar, parse_moment
from cron.crontab.conditions import OF_JOBS, parse_conditions, parse_remind
from cron.crontab.environment import GIVEN, OVERRIDDEN
from cron.crontab.reading import Problems
from cron.errors import InvalidInput, ScheduleError
from cron.job import (
    COMMAND,
    TRIES_UNLIMITED,
    UNLIMITED,
    Bounds,
    Catchup,
    Job,
    OnLost,
    Overlap,
    Retry,
)
from cron.where import BadWhere, parse_where
from launcher.protocol.names import DEFAULT_TENANT, NAME_PART_CHARS_MAX, BadName, parse_job_name
from launcher.protocol.work import NO_TIMEOUT_MS, WorkSpec

OPTION_MARK: Final = "#:"

_OPTION = re.compile(r"""(?P<key>[^ \t=]+)=(?P<value>"[^"]*"|'[^']*'|[^ \t"']*)(?=[ \t]|\Z)""")
_BLANK = re.compile(r"[ \t]")
_QUOTE = re.compile(r"[\"']")
_USER = re.compile(USER_RULE, re.ASCII)
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


_NUMBERS: Final = ("priority", "concurrency", "retries", "parts", "pause-after")
_LISTS: Final = ("retry-on", "fatal-on")
_JOBS: Final = ("after", "after-any")
_TEXTS: Final = ("alert", "to")
_MOMENTS: Final = ("start", "end")
_REPEATED: Final = ("secret",)
"""Options that a job may have several times: their values are put together."""
_SECRET: Final = re.compile(
    r"(?P<variable>[A-Za-z_][A-Za-z0-9_]*):(?P<name>[A-Za-z0-9_./-]+)", re.ASCII
)
_VARIABLE_HINT: Final = (
    "write VARIABLE:NAME like secret=PGPASSWORD:db/billing; a name has A-Z a-z 0-9 _ . - and / "
    "between its parts"
)
_CHANNEL: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Option(NamedTuple):
    """One `key=value` and its position."""

    key: str
    value: str
    line: int
    key_column: int
    value_column: int


class Arrival(msgspec.Struct):
    """How a job arrives that is new in the cell: its options are no part of the job."""

    paused: str = ""
    """Why it is paused, "" if it is not."""


class Known(NamedTuple):
    """An option that jobs have: the struct and the field that it sets, and what reads its value.

    `read` is called with the key and the text. It returns the value of the field, or raises
    InvalidInput.
    """

    owner: type[msgspec.Struct]
    field: str
    read: Callable[[str, str], Any]


class Policies(msgspec.Struct):
    """The options of one job: their values and their positions, by key."""

    values: dict[str, Any] = {}
    given: dict[str, Option] = {}

    def fields(self, owner: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the fields of `owner` that the options set."""
        return {
            KNOWN[key].field: value
            for key, value in self.values.items()
            if KNOWN[key].owner is owner
        }


def split_options(text: str, line: int, problems: Problems) -> list[Option]:
    """Return the options of one line with OPTION_MARK; report errors.

    Of words that are no options the first is reported. The options behind them are read as well.
    """
    found: list[Option] = []
    is_reported = False
    at = text.index(OPTION_MARK) + len(OPTION_MARK)
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        match = _OPTION.match(text, at)
        if match is None:
            word = _BLANK.split(text[at:], 1)[0]
            if not is_reported or "=" in word:
                problems.error(line, at + 1, *_not_an_option(word))
            if "=" in word and _QUOTE.search(word):
                return found  # all that follows may belong to the value
            is_reported = True
            at += len(word)
            continue
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


def _not_an_option(word: str) -> tuple[str, str]:
    if "=" in word and _QUOTE.search(word):
        return f"option {word[:40]!r} has a quote that does not close", "quote the whole value"
    hint = "write options like timeout=2h, or put a blank between # and : for a comment"
    if word.startswith("="):
        hint = "write key=value without blanks around the ="
    return f"option {word[:40]!r} is not key=value", hint


def read_options(options: Iterable[Option], tenant: str, problems: Problems) -> Policies:
    """Return the options of one job; report errors. `tenant` is added to a name without one."""
    policies = Policies()
    for option in options:
        earlier = policies.given.setdefault(option.key, option)
        if option.key not in KNOWN:
            problems.error(option.line, option.key_column, *unknown_key(option.key, KNOWN))
        elif earlier is not option and option.key not in _REPEATED:
            problems.error(
                option.line,
                option.key_column,
                f"option {option.key} is already given on line {earlier.line}",
                "remove one of the two",
            )
        else:
            _read_option(option, policies, problems)
    if (name := policies.values.get("name", "/")) and "/" not in name:
        policies.values["name"] = f"{tenant}/{name}"
    own = policies.values.get("name", tenant).partition("/")[0]
    for key in _JOBS:
        if key in policies.values:  # jobs of its own tenant, where they name none
            names = (name if "/" in name else f"{own}/{name}" for name in policies.values[key])
            policies.values[key] = tuple(names)
    return policies


def _read_option(option: Option, policies: Policies, problems: Problems) -> None:
    key = option.key
    try:
        if len(option.value) > limits.OPTION_VALUE_CHARS_MAX:
            message = f"{key} is longer than {limits.OPTION_VALUE_CHARS_MAX} characters"
            raise InvalidInput(message, "shorten it")
        value = KNOWN[key].read(key, option.value)
        if key in _REPEATED and key in policies.values:
            value = _checked_secrets((*policies.values[key], *value))
        policies.values[key] = value
    except ScheduleError as error:
        offset = max(error.column, 1) - 1
        if option.value_column == option.key_column and offset:
            # Values in a job file have no positions.
            message = f"{error} (column {error.column} of the value)"
            problems.error(option.line, option.key_column, message, error.hint)
        else:
            problems.error(option.line, option.value_column + offset, str(error), error.hint)
    except InvalidInput as error:
        problems.error(option.line, option.value_column, str(error), error.hint)


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


def _name(_: str, text: str) -> str:
    try:
        full = parse_job_name(text)
    except BadName as error:
        raise InvalidInput(
            f"name {text[:40]!r} is not a job's name",
            f"use up to {NAME_PART_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -, "
            "and at most one / between tenant and job",
        ) from error
    return full if "/" in text else full.removeprefix(f"{DEFAULT_TENANT}/")


def _names(key: str, text: str) -> tuple[str, ...]:
    """Return jobs as they are written, with or without a tenant."""
    names: list[str] = []
    for word in map(str.strip, text.split(",")):
        try:
            full = parse_job_name(word)
        except BadName as error:
            hint = "write jobs like tenant/job or job, with commas between"
            raise InvalidInput(f"{key} {word[:40]!r} is not a job's name", hint) from error
        names.append(full if "/" in word else full.removeprefix(f"{DEFAULT_TENANT}/"))
    if len(names) > limits.JOB_PREDECESSORS_MAX:
        most = limits.JOB_PREDECESSORS_MAX
        raise InvalidInput(f"{key} names more than {most} jobs", "follow a job that follows them")
    return tuple(names)


def _timeout_ms(key: str, text: str) -> int:
    if text == "none":
        return NO_TIMEOUT_MS
    return 1000 * parse_duration(text, what=key, least_s=1, most_s=limits.TIMEOUT_S_MAX)


def _duration_ms(most_s: int, key: str, text: str) -> int:
    return 1000 * parse_duration(text, what=key, least_s=1, most_s=most_s)


def _deadline_s(key: str, text: str) -> int:
    least_s, most_s = limits.DEADLINE_S_MIN, limits.DEADLINE_S_MAX
    return parse_duration(text, what=key, least_s=least_s, most_s=most_s)


def _jitter_s(key: str, text: str) -> int:
    return parse_duration(text, what=key, least_s=1, most_s=limits.JITTER_S_MAX)


def _cwd(_: str, text: str) -> str:
    if not text.startswith("/"):
        raise InvalidInput(f"cwd {text!r} is not an absolute path", "begin it with /")
    return text


def _choice(kind: type[enum.IntEnum], key: str, text: str) -> enum.IntEnum:
    names = [member.name.lower() for member in kind]
    if text not in names:
        near = difflib.get_close_matches(text.lower(), names, 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(f"{key} {text!r} is not known", f"{guess}known are {' '.join(names)}")
    return kind[text.upper()]


def _yes_or_no(key: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidInput(f"{key} {text[:40]!r} is neither yes nor no", f"write {key}=yes")
    return text == "yes"


def _word(key: str, text: str) -> str:
    if not _WORD.fullmatch(text):
        raise InvalidInput(f"{key} {text[:40]!r} is not a plain word", _WORD_HINT)
    return text


def _number(least: int, most: int, key: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        hint = f"write one from {least} to {most}"
        raise InvalidInput(f"{key} {text[:40]!r} is not a whole number", hint)
    if not least <= int(text) <= most:
        hint = f"choose one from {least} to {most}"
        raise InvalidInput(f"{key} {text} is not in {least} to {most}", hint)
    return int(text)


def read_retries(key: str, text: str) -> int:
    """Return the tries of a number of retries, or of the word `unlimited`.

    Raises:
        InvalidInput: it is neither.
    """
    if text == UNLIMITED:
        return TRIES_UNLIMITED
    try:
        return _number(0, RETRIES_MAX, key, text) + 1
    except InvalidInput as error:
        raise InvalidInput(str(error), f"{error.hint}, or write {UNLIMITED}") from error


def _handler(key: str, text: str) -> str:
    if text == COMMAND:
        hint = "leave the option out for a command, or give the handler another name"
        raise InvalidInput(f"handler {text!r} is what the pool of commands is called", hint)
    return _word(key, text)


def _where(key: str, text: str) -> str:
    """Return the executors that an option selects, in canonical form."""
    try:
        where = str(parse_where(text))
    except BadWhere as error:
        raise ScheduleError(f"{key}: {error.problem}", error.column, error.way_out) from error
    if not where:
        raise InvalidInput(f"{key} is empty", "leave it out for any executor")
    return where


def _codes(key: str, text: str) -> tuple[int, ...]:
    codes = [_number(0, EXIT_CODE_MAX, key, code.strip()) for code in text.split(",")]
    if 0 in codes:
        raise InvalidInput(f"{key} has exit code 0, which is success", "leave it out")
    return tuple(sorted(set(codes)))


def _cpu_milli(_: str, text: str) -> int:
    match = _CPU.fullmatch(text)
    if match is None:
        hint = "write CPUs like 2 or 0.5, with up to 3 decimals"
        raise InvalidInput(f"cpu {text[:40]!r} is not a number of CPUs", hint)
    milli = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))
    if not 1 <= milli <= CPUS_MAX * 1000:
        hint = "leave it out if it does not matter"
        raise InvalidInput(f"cpu {text} is not in 0.001 to {CPUS_MAX}", hint)
    return milli


def _memory_bytes(_: str, text: str) -> int:
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


def _alert(_: str, text: str) -> tuple[Condition, ...]:
    """Return the conditions of alerts about this job."""
    found = parse_conditions(text)
    if other := next((one for one in found if one.kind not in OF_JOBS), None):
        message = f"alert {other.kind.label} is not about a job"
        raise InvalidInput(message, "write a rule for it in alerts.toml: see docs/alerts.md")
    return found


def _remind_s(_: str, text: str) -> int:
    return parse_remind(text)


def _channels(key: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(map(str.strip, text.split(","))))
    if wrong := next((name for name in names if not _CHANNEL.fullmatch(name)), None):
        hint = "write channels of alerts.toml like to=ops, with commas between"
        raise InvalidInput(f"{key} {wrong[:40]!r} is not the name of a channel", hint)
    if len(names) > limits.RULE_CHANNELS_MAX:
        most = limits.RULE_CHANNELS_MAX
        raise InvalidInput(f"{key} names more than {most} channels", "leave some of them out")
    return names


def _secrets(_: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return variables, and the secrets that they are set to."""
    found: list[tuple[str, str]] = []
    for word in map(str.strip, text.split(",")):
        match = _SECRET.fullmatch(word)
        parts = match["name"].split("/") if match else [""]
        if match is None or not {"", ".", ".."}.isdisjoint(parts) or match["name"][0] == "-":
            raise InvalidInput(f"secret {word[:40]!r} is not a variable and a name", _VARIABLE_HINT)
        if len(match["name"]) > limits.SECRET_NAME_CHARS_MAX:
            most = limits.SECRET_NAME_CHARS_MAX
            raise InvalidInput(f"secret {word[:40]!r} has a name of more than {most}", "shorten it")
        if (variable := match["variable"]) in (*GIVEN, *OVERRIDDEN):
            message = f"secret sets {variable}, which each launch has of its own"
            raise InvalidInput(message, "choose another variable")
        found.append((variable, match["name"]))
    return _checked_secrets(tuple(found))


def _checked_secrets(secrets: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the secrets of a job, if there are not too many, and none is set twice."""
    variables = [variable for variable, _ in secrets]
    if twice := next((one for one in variables if variables.count(one) > 1), ""):
        raise InvalidInput(f"secret sets {twice} twice", "remove one of the two")
    if len(secrets) > limits.SECRETS_MAX:
        message = f"secret names more than {limits.SECRETS_MAX} secrets"
        raise InvalidInput(message, "put several values into one secret")
    return secrets


def _reason(key: str, text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > limits.NOTE_CHARS_MAX:
        hint = f"write why, in at most {limits.NOTE_CHARS_MAX} characters"
        raise InvalidInput(f"{key} is not a reason in one line", hint)
    return text


KNOWN: Final[dict[str, Known]] = {
    "name": Known(Job, "name", _name),
    "timeout": Known(WorkSpec, "timeout_ms", _timeout_ms),
    "overlap": Known(Job, "overlap", partial(_choice, Overlap)),
    "catchup": Known(Job, "catchup", partial(_choice, Catchup)),
    "deadline": Known(Job, "deadline_s", _deadline_s),
    "on-lost": Known(Job, "on_lost", partial(_choice, OnLost)),
    "user": Known(WorkSpec, "user", lambda _, text: read_user(text)),
    "cwd": Known(WorkSpec, "cwd", _cwd),
    "priority": Known(WorkSpec, "priority", partial(_number, 0, PRIORITY_MAX)),
    "collection": Known(Job, "collection", _word),
    "concurrency": Known(Job, "concurrency", partial(_number, 1, CONCURRENCY_MAX)),
    "retries": Known(Retry, "tries", read_retries),
    "backoff": Known(Retry, "backoff_ms", partial(_duration_ms, BACKOFF_S_MAX)),
    "backoff-max": Known(Retry, "backoff_max_ms", partial(_duration_ms, limits.DEADLINE_S_MAX)),
    "retry-on": Known(Retry, "retry_codes", _codes),
    "fatal-on": Known(Retry, "fatal_codes", _codes),
    "where": Known(Job, "where", _where),
    "parts": Known(Job, "parts", partial(_number, 1, limits.PARTS_MAX)),
    "each": Known(Job, "each", _where),
    "cpu": Known(WorkSpec, "cpu_milli", _cpu_milli),
    "memory": Known(WorkSpec, "memory_bytes", _memory_bytes),
    "handler": Known(WorkSpec, "handler", _handler),
    "heartbeat": Known(WorkSpec, "heartbeat_ms", partial(_duration_ms, HEARTBEAT_S_MAX)),
    "after": Known(Job, "after", _names),
    "after-any": Known(Job, "after_any", _names),
    "metrics": Known(Job, "metrics", _yes_or_no),
    "alert": Known(JobAlerts, "conditions", _alert),
    "to": Known(JobAlerts, "to", _channels),
    "remind": Known(JobAlerts, "remind_s", _remind_s),
    "start": Known(Bounds, "start_s", parse_moment),
    "end": Known(Bounds, "end_s", parse_moment),
    "calendar": Known(Bounds, "calendar", parse_calendar),
    "secret": Known(WorkSpec, "secrets", _secrets),
    "paused": Known(Arrival, "paused", _reason),
    "pause-after": Known(Job, "pause_after", partial(_number, 1, limits.PAUSE_AFTER_MAX)),
    "jitter": Known(Job, "jitter_s", _jitter_s),
}
"""Every option of a job, by key."""


def option_texts(key: str, value: Any) -> list[str]:
    """Return an option's value in a job file as the texts that a crontab would have: one, or of an
    option that may come several times one for each item.

    Raises:
        InvalidInput: the value has the wrong type for the option.
    """
    if key not in _REPEATED or isinstance(value, str):
        return [option_text(key, value)]
    if isinstance(value, dict) and all(type(one) is str for one in value.values()):
        value = [f"{variable}:{name}" for variable, name in value.items()]
    if isinstance(value, list) and value and all(type(one) is str for one in value):
        if wrong := next((one for one in value if "," in one), ""):
            raise InvalidInput(f"{key} {wrong[:40]!r} has a comma", "write each as an item")
        return value
    raise InvalidInput(f"{key} is not a list of texts", f'write {key} = ["PGPASSWORD:db/billing"]')


def option_text(key: str, value: Any) -> str:
    """Return an option's value as text: strings unchanged, numbers for numeric options.

    Raises:
        InvalidInput: the value has the wrong type for the option.
    """
    if isinstance(value, str):
        return value
    if key in _MOMENTS and isinstance(value, date):
        return value.isoformat()  # of a datetime, too
    if key == "metrics" and isinstance(value, bool):
        return "yes" if value else "no"
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
        return _list_text(key, [value] if is_whole else value, int, "a list of exit codes")
    if key in _JOBS:
        return _list_text(key, value, str, "a list of jobs")
    if key in _TEXTS and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    raise InvalidInput(f"{key} is not a text", f'write it in quotes, like {key} = "..."')


def _list_text(key: str, value: Any, kind: type, what: str) -> str:
    if isinstance(value, list) and value and all(type(one) is kind for one in value):
        return ",".join(map(str, value))
    sample = "[75, 111]" if kind is int else '["billing/import"]'
    raise InvalidInput(f"{key} is not {what}", f"write it like {key} = {sample}")
