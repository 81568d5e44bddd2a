"""Job files in TOML: `[[job]]` tables with the options of a crontab under the same names.

A command is passed to the shell unchanged: `%` has no meaning here, standard input is `stdin`. Each
job has its own zone and environment; no setting applies to later jobs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cron import limits
from cron.calendar.zones import zone as zone_of
from cron.crontab.conflicts import check_together
from cron.crontab.environment import Environment
from cron.crontab.jobs import (
    REBOOT_LEFT_OUT,
    Declaration,
    JobList,
    is_reboot,
    read_schedule,
)
from cron.crontab.options import KNOWN, Option, option_texts, read_options, unknown_key
from cron.crontab.payload import dump_payload, read_payload
from cron.crontab.reading import Problems, Reading, is_readable
from cron.errors import InvalidInput, ScheduleError

KEYS: Final = ("schedule", "command", "payload", "payload-json", "zone", "stdin", "env", *KNOWN)
_PAYLOADS: Final = ("payload", "payload-json")
_OF_COMMANDS: Final = {
    "command": "remove the command, or the handler",
    "stdin": "hand it over in the payload",
    "env": "it has the environment of its worker",
}

_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_HEADER = re.compile(r"[ \t]*\[\[[ \t]*job[ \t]*\]\]")
_KEY = re.compile(r"""[ \t]*["']?(?P<key>[A-Za-z0-9_-]+)["']?[ \t]*=""")
_TOP = re.compile(
    r"""[ \t]*(?P<header>\[\[?[ \t]*)?"""
    r"""(?:"(?P<double>[^"\\]*)"|'(?P<single>[^']*)'|(?P<bare>[A-Za-z0-9_-]+))[ \t]*[].=]"""
)
_QUOTED = re.compile(r"#|\"\"\"|'''|\"(?:\\.|[^\"\\])*\"|'[^']*'")
_SUBTABLE = re.compile(r"[ \t]*\[[ \t]*job[ \t]*\.[ \t]*(?P<key>[A-Za-z0-9_-]+)[ \t]*\]")


def read_jobs_toml(
    text: bytes, *, file: str, system: bool = False, zone: str = "UTC", tenant: str = "default"
) -> Reading:
    """Return the jobs and problems of a job file; does not raise for any content.

    `zone` and `tenant` are the defaults for jobs that name none. `system` has no effect, because a
    job file has no user column.
    """
    problems = Problems(file)
    jobs = JobList(tenant, problems)
    if is_readable(text, problems):
        _JobFile(jobs, problems, zone=zone, tenant=tenant).read(text)
    return problems.reading(jobs.jobs, jobs.unnamed, jobs.paused)


class _JobFile:
    """One job file: the settings of all its jobs."""

    def __init__(self, jobs: JobList, problems: Problems, *, zone: str, tenant: str) -> None:
        self._jobs = jobs
        self._problems = problems
        self._zone = zone
        self._tenant = tenant

    def read(self, content: bytes) -> None:
        """Read all jobs, and report all errors."""
        text = self._decode(content)
        document = None if text is None else self._parse(text)
        if text is None or document is None:
            return
        tables = document.get("job", [])
        is_list = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
        if len(document) > ("job" in document) or not is_list:
            self._report_tables(document, _top_places(text), is_list=is_list)
        if not is_list:
            return
        for table, places in zip(tables, _places(text, len(tables)), strict=True):
            job = _JobTable(self._problems, table, places)
            job.check_keys()
            self._read_job(job)

    def _report_tables(
        self, document: dict[str, Any], places: dict[str, tuple[int, int]], *, is_list: bool
    ) -> None:
        for key, value in document.items():
            line, column = places.get(key, (0, 0))
            if key != "job":
                what = "table" if isinstance(value, dict | list) else "key"
                _, hint = unknown_key(key, ("job",))
                if key in KEYS:
                    hint = "put it below a line [[job]]"
                self._problems.error(line, column, f"{what} {key[:40]!r} is not known", hint)
            elif not is_list:
                hint = "begin each with [[job]]"
                self._problems.error(line, column, "job is not a list of tables", hint)

    def _decode(self, content: bytes) -> str | None:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            begin = content.rfind(b"\n", 0, error.start) + 1
            column = len(content[begin : error.start].decode("utf-8", "replace")) + 1
            message = f"byte 0x{content[error.start]:02x} is not UTF-8"
            self._problems.error(line, column, message, "save the file as UTF-8")
            return None

    def _parse(self, text: str) -> dict[str, Any] | None:
        excess = find_excess(text)
        if excess is not None:
            self._problems.error(*excess)
            return None
        try:
            return tomllib.loads(text)
        except ValueError as error:  # TOMLDecodeError, and numbers too long for Python
            match = _PLACE.fullmatch(str(error))
            message = match[1] if match else str(error)
            last_line = text[text.rfind("\n") + 1 :]
            line, column = text.count("\n") + 1, len(last_line) + 1
            if match and match[2]:
                line, column = int(match[2]), int(match[3])
            message = f"file is not TOML: {message[:1].lower()}{message[1:]}"
            self._problems.error(line, column, message, "see https://toml.io for the form")
        return None

    def _read_job(self, table: _JobTable) -> None:
        policies = read_options(table.options(), self._tenant, self._problems)
        check_together(policies, self._problems)
        schedule = table.text("schedule", 'is missing: write one like schedule = "@hourly"')
        zone = self._read_zone(table)
        environment = self._read_environment(table, zone)
        is_handler = table.has("handler")
        payload = table.payload()
        command = "" if payload is None else payload.decode()
        if not is_handler:
            command = table.text(
                "command", "is missing: write the command for the shell, or name a handler"
            )
        if not schedule or payload is None or not (command or is_handler):
            return
        if is_reboot(schedule):
            self._problems.warn(*table.place("schedule"), *REBOOT_LEFT_OUT)
            return
        expression = read_schedule(schedule, zone, table.place("schedule"), self._problems)
        if expression is None:
            return
        self._jobs.add(
            Declaration(
                line=table.line,
                expression=expression,
                zone=zone,
                policies=policies,
                command=command,
                script="" if is_handler else command,
                stdin=table.text("stdin"),
                shell=environment.shell,
                env=environment.lines,
                payload=payload,
            )
        )

    def _read_zone(self, table: _JobTable) -> str:
        name = table.text("zone")
        if not name:
            return self._zone
        try:
            zone_of(name)
        except ScheduleError as error:
            table.error("zone", str(error), error.hint)
            return self._zone
        return name

    def _read_environment(self, table: _JobTable, zone: str) -> Environment:
        environment = Environment(zone, self._problems)
        line, column = table.place("env")
        for name, value in table.environment():
            if name == "CRON_TZ":
                message = "CRON_TZ is not a variable of a job file"
                table.error("env", message, "write zone = ... in the job")
            else:
                environment.set(name, value, line, column)
        if not table.has("zone"):
            environment.warn_of_tz()
        return environment


class _JobTable:
    """One `[[job]]`: access to its values by type, and the positions of its keys."""

    def __init__(
        self, problems: Problems, table: dict[str, Any], places: dict[str, tuple[int, int]]
    ) -> None:
        self._problems = problems
        self._table = table
        self._places = places

    @property
    def line(self) -> int:
        """The line of its header; 0 if unknown."""
        return self.place("")[0]

    def has(self, key: str) -> bool:
        """Return whether the job has the key."""
        return key in self._table

    def place(self, key: str) -> tuple[int, int]:
        """Return line and column of a key, or of the header if the key was not found."""
        return self._places.get(key) or self._places.get("", (0, 0))

    def error(self, key: str, message: str, hint: str) -> None:
        """Report an error at a key."""
        self._problems.error(*self.place(key), message, hint)

    def check_keys(self) -> None:
        """Report unknown keys, and strings that cannot be passed to a program."""
        for key, value in self._table.items():
            if key not in KEYS:
                self.error(key, *unknown_key(key, KEYS))
            elif key in _PAYLOADS or not isinstance(value, str):
                continue  # JSON can hold any text, and has a bound of its own
            elif fault := _fault(value):
                self.error(key, f"{key} {fault[0]}", fault[1])

    def text(self, key: str, missing: str = "") -> str:
        """Return a string; "" if it is missing, which is reported with the hint `missing`."""
        value = self._table.get(key)
        if isinstance(value, str) and "\0" in value:
            return ""
        if isinstance(value, str) and (value.strip() or not missing):
            return value
        if value is not None and not isinstance(value, str):
            self.error(key, f"{key} is not a text", f'write it in quotes, like {key} = "..."')
        elif missing:
            message, _, hint = missing.partition(": ")
            self.error(key, f"{key} {message}", hint)
        return ""

    def options(self) -> Iterator[Option]:
        """Yield the options that a crontab would have in `#:` lines."""
        for key in KNOWN:
            if not self.has(key):
                continue
            line, column = self.place(key)
            try:
                values = option_texts(key, self._table[key])
            except InvalidInput as error:
                self.error(key, str(error), error.hint)
                continue
            for value in values:
                yield Option(key, "" if "\0" in value else value, line, column, column)

    def payload(self) -> bytes | None:
        """Return the payload of a handler, empty for a command; None after reporting an error."""
        if not self.has("handler"):
            for key in _PAYLOADS:
                if self.has(key):
                    hint = "write the handler's name beside it"
                    self.error(key, f"{key} is for handlers", hint)
            return b""
        for key, hint in _OF_COMMANDS.items():
            if self.has(key):
                self.error(key, f"{key} is for commands, and this is a handler's job", hint)
        if self.has("payload-json"):
            return self._json()
        if not self.has("payload"):
            return b""
        try:
            return dump_payload(self._table["payload"])
        except InvalidInput as error:
            self.error("payload", str(error), error.hint)
            return None

    def _json(self) -> bytes | None:
        """Return the payload that is given as JSON, unchanged; None after reporting an error."""
        key = "payload-json"
        if self.has("payload"):
            self.error(key, "payload and payload-json both say the payload", "remove one of them")
            return None
        try:
            return read_payload(self.text(key, "is empty: leave it out for null"))
        except ScheduleError as error:
            self.error(key, str(error), error.hint)
            return None

    def environment(self) -> Iterator[tuple[str, str]]:
        """Yield the variables of `env`; report invalid ones."""
        table = self._table.get("env", {})
        if not isinstance(table, dict):
            self.error("env", "env is not a table", 'write env = { NAME = "value" }')
            return
        for name, value in table.items():
            if not name or "=" in name or "\0" in name:
                self.error("env", f"variable {name[:40]!r} is not a name", "use A-Z a-z 0-9 _")
            elif not isinstance(value, str):
                self.error("env", f"variable {name} is not a text", "write its value in quotes")
            elif fault := _fault(value):
                self.error("env", f"variable {name} {fault[0]}", fault[1])
            else:
                yield name, value


def _fault(text: str) -> tuple[str, str] | None:
    """Return why a text cannot be passed to a program, and the hint; None if it can."""
    if "\0" in text:
        return "holds a NUL character", "remove it"
    if len(text.encode()) > limits.CRONTAB_LINE_BYTES_MAX:
        bound = limits.CRONTAB_LINE_BYTES_MAX
        return f"is longer than {bound} bytes", "put it into a script or a file"
    return None


def _places(text: str, count: int) -> list[dict[str, tuple[int, int]]]:
    """Return, per job, the positions of its header ("") and its keys, as far as lines show them.

    tomllib keeps no positions. Lines inside multi-line strings are skipped. If the number of
    headers differs from the number of jobs (an inline list), no positions are returned.
    """
    found: list[dict[str, tuple[int, int]]] = []
    in_job = False
    for number, line in _plain_lines(text):
        header, subtable, key = _HEADER.match(line), _SUBTABLE.match(line), _KEY.match(line)
        if header:
            found.append({"": (number, line.index("[") + 1)})
            in_job = True
        elif line.lstrip().startswith("["):
            in_job = False
            if subtable and found:
                found[-1].setdefault(subtable["key"], (number, line.index("[") + 1))
        elif key and in_job:
            found[-1].setdefault(key["key"], (number, key.start("key") + 1))
    return found if len(found) == count else [{} for _ in range(count)]


def _top_places(text: str) -> dict[str, tuple[int, int]]:
    """Return the first position of each table and each top-level key, as far as lines show it."""
    found: dict[str, tuple[int, int]] = {}
    is_inside = False
    for number, line in _plain_lines(text):
        match = _TOP.match(line)
        is_header = line.lstrip(" \t").startswith("[")
        if match and (match["header"] or not is_inside):
            name = match["double"] or match["single"] or match["bare"] or ""
            found.setdefault(name, (number, len(line) - len(line.lstrip(" \t")) + 1))
        is_inside = is_inside or is_header
    return found


def _plain_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that do not begin inside a multi-line string."""
    quotes = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not quotes:
            yield number, line
        quotes = _open_quotes(line, quotes)


def _open_quotes(line: str, quotes: str) -> str:
    """Return which triple quotes are open after the line, given those open before it."""
    at = 0
    while True:
        if quotes:
            at = line.find(quotes, at) + len(quotes)
            if at < len(quotes):
                return quotes
            quotes = ""
        match = _QUOTED.search(line, at)
        if match is None or match[0] == "#":
            return ""
        at = match.end()
        quotes = match[0] if match[0] in ('"""', "'''") else ""


_TOKEN = re.compile(
    # Possessive, and also ended by the end of the text: no character is scanned twice.
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+(?:"""+|\\?\Z)'
    r"|'''(?:[^']++|'{1,2}(?!'))*+(?:'''+|\Z)"
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*"
    r"|(?P<line>\n)"
    r"|(?P<open>[\[{])"
    r"|(?P<close>[\]}])"
    r"|(?P<end>[=,])"
    r"|(?P<dot>\.)"
    r"|(?P<word>[^\s\"'#\[\]{}=,.]+)",
    re.DOTALL,
)
_HINT: Final = "write plain [[job]] tables, with at most env and payload below them"


class Excess(NamedTuple):
    """A violation of a limit: its position (line and column from 1), and a hint."""

    line: int
    column: int
    message: str
    hint: str


def find_excess(text: str) -> Excess | None:
    """Return the first violation of a limit in a TOML text, or None.

    Takes time linear in the length of the text. A text that is not TOML may pass.
    """
    if len(text) > limits.JOB_FILE_CHARS_MAX:
        message = f"job file has {len(text)} characters, more than {limits.JOB_FILE_CHARS_MAX}"
        return Excess(0, 0, message, "split it into several files")
    depth = dots = all_dots = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "dot":
            dots += 1
            all_dots += 1
            if all_dots > limits.JOB_FILE_ALL_DOTS_MAX:
                message = f"keys have more than {limits.JOB_FILE_ALL_DOTS_MAX:,} dots together"
                return _at(text, token.start(), message, "write tables instead of dotted keys")
            if dots > limits.JOB_FILE_DOTS_MAX:
                message = f"key has more than {limits.JOB_FILE_DOTS_MAX} dots"
                return _at(text, token.start(), message, _HINT)
        elif kind == "word":
            if token.end() - token.start() > limits.JOB_FILE_WORD_CHARS_MAX:
                message = f"word is longer than {limits.JOB_FILE_WORD_CHARS_MAX} characters"
                return _at(text, token.start(), message, "put a text into quotes; shorten a number")
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "open":
            depth += 1
            dots = 0
            if depth > limits.JOB_FILE_DEPTH_MAX:
                message = f"file is nested more than {limits.JOB_FILE_DEPTH_MAX} deep"
                return _at(text, token.start(), message, _HINT)
        elif kind is not None:  # the end of a line, a key or a value
            dots = 0
    return None


def _at(text: str, place: int, message: str, hint: str) -> Excess:
    begin = text.rfind("\n", 0, place) + 1
    return Excess(text.count("\n", 0, place) + 1, place - begin + 1, message, hint)
