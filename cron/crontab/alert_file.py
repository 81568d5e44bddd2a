"""Files of alerts: TOML that declares all channels and rules of a cell. Pure.

[[channel]]
name = "ops"
kind = "mail"
to = ["ops@example.com"]

[[rule]]
name = "backups"
when = "failed:2"
jobs = ["acme/backup-*"]
to = ["ops"]
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from cron import limits
from cron.alert_rules import AlertFile, AlertKind, Channel, ChannelKind, Rule
from cron.crontab.conditions import OF_JOBS, parse_condition, parse_remind
from cron.crontab.jobfile import find_excess
from cron.errors import CrontabError, InvalidInput, Problem, ScheduleError
from launcher.protocol.names import DEFAULT_TENANT, NAME_PART_CHARS_MAX

CHANNEL_KEYS: Final = ("name", "kind", "to")
RULE_KEYS: Final = ("name", "when", "jobs", "queues", "to", "remind")
_KEYS: Final = {"channel": CHANNEL_KEYS, "rule": RULE_KEYS}
_MOST: Final = {"channel": limits.CHANNELS_MAX, "rule": limits.RULES_MAX}
_KINDS: Final = {kind.label: kind for kind in ChannelKind}
_OF_QUEUES: Final = frozenset({AlertKind.QUEUE_OLDER, AlertKind.DEAD})
_SUBJECTS: Final = {"jobs": OF_JOBS, "queues": _OF_QUEUES}

_NAME_CHARS_MAX: Final = 64
"""A channel's name is a part of the names of its deliveries."""
_NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{_NAME_CHARS_MAX - 1}}}", re.ASCII)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*?!\[\]-]+(?:/[A-Za-z0-9_.*?!\[\]-]+)?", re.ASCII)
_ADDRESS: Final = re.compile(r"[^\s,;:<>()@\"\\]+(?:@[A-Za-z0-9.-]+)?", re.ASCII)
_HEADER: Final = re.compile(r"[ \t]*\[\[[ \t]*\"?(channel|rule)\"?[ \t]*\]\]")
_KEY: Final = re.compile(r"""[ \t]*["']?([A-Za-z0-9_-]+)["']?[ \t]*=""")
_PLACE: Final = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)


class _Table(NamedTuple):
    """One table of the file: its values, and the lines where its header and its keys stand."""

    values: Mapping[str, Any]
    line: int
    lines: Mapping[str, int]


class _Wrong(Exception):
    """A value that cannot be: the key, what is wrong, and the way out."""

    def __init__(self, key: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.hint = hint


def parse_alert_file(text: str, *, file: str = "alerts.toml") -> AlertFile:
    """Return what a file declares: all of it.

    Raises:
        CrontabError: it has errors; all of them are named, each with line and way out.
    """
    problems: list[Problem] = []
    document = _parse(text, file)
    for key in document:
        if key not in _KEYS:
            hint = "the tables are [[channel]] and [[rule]]"
            problems.append(
                Problem(file, _line_of(text, key), 0, f"{key[:40]!r} is not known", hint)
            )
    channels: dict[str, Channel] = {}
    rules: dict[str, Rule] = {}
    for kind in ("channel", "rule"):  # rules name channels
        for number, table in enumerate(_tables(document, kind, text, file, problems), 1):
            name = table.values.get("name")
            shown = name[:80] if isinstance(name, str) and name else f"number {number}"
            what = f"{kind} {shown}"
            try:
                if kind == "channel":
                    _add(channels, _channel(table.values))
                else:
                    _add(rules, _rule(table.values, channels))
            except _Wrong as wrong:
                line = table.lines.get(wrong.key, table.line)
                problems.append(Problem(file, line, 0, f"{what}: {wrong}", wrong.hint))
    if problems:
        raise CrontabError(sorted(problems, key=lambda one: one.line))
    return AlertFile(tuple(channels.values()), tuple(rules.values()))


def _parse(text: str, file: str) -> dict[str, Any]:
    excess = find_excess(text)
    if excess is not None:
        raise CrontabError([Problem(file, *excess)])
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
        said, line, column = str(error), 0, 0
        if match := _PLACE.fullmatch(said):
            said, line, column = match[1], int(match[2]), int(match[3])
        message = f"file is not TOML: {said[:1].lower()}{said[1:]}"
        hint = "see https://toml.io for the form, and examples/alerts.toml"
        raise CrontabError([Problem(file, line, column, message, hint)]) from error


def _tables(
    document: Mapping[str, Any], kind: str, text: str, file: str, problems: list[Problem]
) -> Iterable[_Table]:
    """Return the tables of a kind, with their places; none if there are not tables but a value, or
    too many."""
    tables = document.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        message = f"{kind} is not a list of tables"
        problems.append(
            Problem(file, _line_of(text, kind), 0, message, f"begin each with [[{kind}]]")
        )
        return []
    if len(tables) > _MOST[kind]:
        message = f"{len(tables):,} tables [[{kind}]] are declared, at most {_MOST[kind]:,}"
        problems.append(Problem(file, 0, 0, message, "a pattern in `jobs` covers many jobs"))
        return []
    places = _places(text, kind)
    if len(places) != len(tables):  # it is written in another way, or in a text
        places = [(0, {})] * len(tables)
    return [_Table(one, *place) for one, place in zip(tables, places, strict=True)]


def _places(text: str, kind: str) -> list[tuple[int, dict[str, int]]]:
    """Return, for each table of a kind, the line of its header and those of its keys."""
    found: list[tuple[int, dict[str, int]]] = []
    is_inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            is_inside = header[1] == kind
            if is_inside:
                found.append((number, {}))
        elif is_inside and (key := _KEY.match(line)):
            found[-1][1].setdefault(key[1], number)
    return found


def _line_of(text: str, word: str) -> int:
    """Return the line where a key or table of the top stands, 0 if it is written otherwise."""
    shape = re.compile(rf"""[ \t]*(?:\[\[?[ \t]*)?["']?{re.escape(word)}["']?[ \t]*[]=.]""")
    lines = (number for number, line in enumerate(text.split("\n"), 1) if shape.match(line))
    return next(lines, 0)


def _add(known: dict[str, Any], one: Channel | Rule) -> None:
    if one.name in known:
        raise _Wrong("name", "is declared twice", "give one of them another name")
    known[one.name] = one


# ---- one table


def _channel(values: Mapping[str, Any]) -> Channel:
    """Return the channel of a table."""
    _check_keys(values, CHANNEL_KEYS)
    name = _name(values)
    said = _text(values, "kind", "mail, webhook or heartbeat")
    kind = _KINDS.get(said)
    if kind is None:
        raise _Wrong("kind", f"kind {said[:40]!r} is none of {', '.join(_KINDS)}")
    if kind is ChannelKind.MAIL:
        to = _texts(values, "to", limits.ADDRESSES_MAX, 'to = ["ops@example.com"]')
        for address in to:
            if len(address) > limits.ADDRESS_CHARS_MAX or not _ADDRESS.fullmatch(address):
                raise _Wrong("to", f"{address[:80]!r} is no address", "write ops@example.com")
        return Channel(name, kind, to)
    if "to" in values:
        hint = f"the target's configuration has the URL of channel {name}: see docs/alerts.md"
        raise _Wrong("to", f"a channel of kind {said} has no addresses", hint)
    return Channel(name, kind)


def _rule(values: Mapping[str, Any], channels: Mapping[str, Channel]) -> Rule:
    """Return the rule of a table."""
    _check_keys(values, RULE_KEYS)
    name = _name(values)
    try:
        condition = parse_condition(_text(values, "when", "failed:2"))
    except (InvalidInput, ScheduleError) as error:
        hint = error.hint
        if "," in str(values["when"]):
            hint = "write a [[rule]] for each condition"
        raise _Wrong("when", str(error), hint) from error
    subjects: tuple[str, ...] = ()
    for key, kinds in _SUBJECTS.items():
        if key not in values:
            continue
        if condition.kind not in kinds:
            hint = "remove it" if condition.kind not in OF_JOBS | _OF_QUEUES else ""
            other = next((one for one in _SUBJECTS if condition.kind in _SUBJECTS[one]), "")
            more = f"write {other} in place of it" if other else hint
            raise _Wrong(key, f"{condition.kind.label} does not watch {key}", more)
        patterns = _texts(values, key, limits.RULE_SUBJECTS_MAX, f'{key} = ["acme/*"]')
        subjects += tuple(_pattern(key, one) for one in patterns)
    if len(subjects) > limits.RULE_SUBJECTS_MAX:
        raise _Wrong("queues", f"has more than {limits.RULE_SUBJECTS_MAX} patterns")
    to = _texts(values, "to", limits.RULE_CHANNELS_MAX, 'to = ["ops"]')
    for one in to:
        _check_channel(one, channels)
    return Rule(name, condition, subjects, to, _remind_s(values))


def _remind_s(values: Mapping[str, Any]) -> int:
    if "remind" not in values:
        return 0
    try:
        return parse_remind(_text(values, "remind", "1h"))
    except ScheduleError as error:
        raise _Wrong("remind", str(error), error.hint) from error


def _check_channel(name: str, channels: Mapping[str, Channel]) -> None:
    known = [one.name for one in channels.values() if one.kind is not ChannelKind.HEARTBEAT]
    if name in known:
        return
    if name in channels:
        hint = "it is called each minute and carries no alerts: name another one"
        raise _Wrong("to", f"channel {name} is a heartbeat", hint)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "declare it with [[channel]] in this file"
    raise _Wrong("to", f"channel {name[:80]!r} does not exist", hint)


def _check_keys(values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in values:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
            raise _Wrong(key, f"key {key[:40]!r} is not known", hint)


def _name(values: Mapping[str, Any]) -> str:
    name = _text(values, "name", "ops")
    if not _NAME.fullmatch(name):
        hint = f"up to {_NAME_CHARS_MAX} of A-Z a-z 0-9 _ . - not beginning with . or -"
        raise _Wrong("name", f"name {name[:80]!r} is not a plain word", hint)
    return name


def _text(values: Mapping[str, Any], key: str, example: str) -> str:
    value = values.get(key)
    if key not in values:
        raise _Wrong("", f"{key} is missing", f'write {key} = "{example}"')
    if not isinstance(value, str) or not value:
        raise _Wrong(key, f"{key} is not a text", f'write it in quotes, like {key} = "{example}"')
    return value


def _texts(values: Mapping[str, Any], key: str, most: int, example: str) -> tuple[str, ...]:
    """Return a list of texts, or the one text that stands in place of a list."""
    if key not in values:
        raise _Wrong("", f"{key} is missing", f"write {example}")
    value = values[key]
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(_is_text(one) for one in found):
        raise _Wrong(key, f"{key} is not a list of texts", f"write {example}")
    if len(found) > most:
        raise _Wrong(key, f"{key} has {len(found)} entries, at most {most}")
    if len(set(found)) < len(found):
        raise _Wrong(key, f"{key} has an entry twice", "remove one of them")
    return tuple(found)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _pattern(key: str, text: str) -> str:
    """Return a pattern of names with its tenant."""
    if len(text) > 2 * NAME_PART_CHARS_MAX + 1 or not _PATTERN.fullmatch(text):
        hint = "write a name, or one with * ? [...] in it, such as 'billing*' or 'acme/*'"
        raise _Wrong(key, f"{text[:80]!r} is not a pattern of names", hint)
    if text == "*":
        return "*/*"
    return text if "/" in text else f"{DEFAULT_TENANT}/{text}"
