"""Crontabs: crontab(5) of Debian's cron, with options in `#:` lines, `?` and `@every`.

Each line is a comment, options for the job below, an environment line, or a job. The whole file is
read in spite of errors, so that all errors are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cron.calendar.misread import is_field_like, is_prose, misread
from cron.crontab.conflicts import check_together
from cron.crontab.default_name import Unnamed
from cron.crontab.environment import Environment, split_assignment
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.jobs import REBOOT_LEFT_OUT, Declaration, JobList, is_reboot, read_schedule
from cron.crontab.options import (
    OPTION_MARK,
    Option,
    Policies,
    read_options,
    read_user,
    split_options,
)
from cron.crontab.payload import read_payload
from cron.crontab.reading import Problems, Reading, split_lines
from cron.errors import InvalidInput, ScheduleError
from cron.job import cycle_of
from launcher.protocol.names import short_job_name

_BLANKS: Final = " \t"
_JOB = re.compile(
    r"(?P<schedule>@every[ \t]+[^ \t]+|@[^ \t]*|(?:[^ \t]+[ \t]+){4}[^ \t]+)"
    r"(?:[ \t]+(?P<rest>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_USER_COLUMN = re.compile(r"(?P<user>[^ \t]+)(?:[ \t]+(?P<command>.*))?", re.DOTALL)
_PERCENT = re.compile(r"\\(?P<escaped>.)|(?P<end>%)", re.DOTALL)
_WORD = re.compile(r"[^ \t]+")
_FORMAT = re.compile(r"%[A-Za-z](?![A-Za-z])")
_SHELL_PAIR = re.compile(r"\\.|\"[^\"]*\"|'[^']*'|`[^`]*`|\$\([^()]*\)", re.DOTALL)
_SHELL_OPEN = re.compile(r"[\"'`]|\$\(")
_CYCLE_SHOWN: Final = 8
_PERCENT_HINT: Final = r"write \% for a percent sign; the first plain % begins the standard input"


def read_file(
    name: str, content: bytes, *, system: bool = False, zone: str = "UTC", tenant: str = "default"
) -> Reading:
    """Return the contents of a file: a job file if its name ends with `.toml`, else a crontab."""
    if name.lower().endswith(".toml"):
        return read_jobs_toml(content, file=name, system=system, zone=zone, tenant=tenant)
    return read_crontab(content, file=name, system=system, zone=zone, tenant=tenant)


def read_crontab(
    text: bytes, *, file: str, system: bool = False, zone: str = "UTC", tenant: str = "default"
) -> Reading:
    """Return the jobs and problems of a crontab; does not raise for any content.

    `system` reads the format of /etc/crontab, with a user before the command. `zone` is used until
    a CRON_TZ line. `tenant` is the default for jobs whose name has none.
    """
    problems = Problems(file)
    crontab = _Crontab(problems, system=system, zone=zone, tenant=tenant)
    last = 0
    for number, line in split_lines(text, problems):
        if number > last + 1:
            crontab.miss_line()
        crontab.read_line(number, line)
        last = number
    if last < text.count(b"\n") + (not text.endswith(b"\n")):
        crontab.miss_line()
    crontab.end()
    return problems.reading(crontab.jobs.jobs, crontab.jobs.unnamed, crontab.jobs.paused)


def split_percent(text: str) -> tuple[str, str]:
    r"""Return (script, standard input) of a command: the first `%` divides them.

    In the input each `%` is a newline, and a missing final newline is added. `\%` is a plain `%` in
    both. In the script `\\` is one backslash, as in Debian's cron; other backslashes stay.
    """
    for match in _PERCENT.finditer(text):
        if match["end"]:
            script, given = text[: match.start()], text[match.end() :]
            break
    else:
        script, given = text, ""
    stdin = re.sub(r"\\?%", lambda match: "%" if len(match[0]) > 1 else "\n", given)
    if stdin and not stdin.endswith("\n"):
        stdin += "\n"
    return _PERCENT.sub(_unescape, script), stdin


def _unescape(match: re.Match[str]) -> str:
    return match["escaped"] if match["escaped"] in ("%", "\\") else match[0]


class _Crontab:
    """The state while reading a crontab: environment, options for the next job, jobs so far."""

    def __init__(self, problems: Problems, *, system: bool, zone: str, tenant: str) -> None:
        self.jobs = JobList(tenant, problems)
        self._problems = problems
        self._is_system = system
        self._tenant = tenant
        self._environment = Environment(zone, problems)
        self._options: list[Option] = []
        self._option_line = 0

    def read_line(self, number: int, line: str) -> None:
        text = line.lstrip(_BLANKS)
        if text.startswith(OPTION_MARK):
            self._options += split_options(line, number, self._problems)
            self._option_line = number
            return
        if not text or text.startswith("#"):
            self._expect_no_options(number, "a blank line" if not text else "a comment")
            return
        assignment = split_assignment(line)
        if assignment is not None:
            self._expect_no_options(number, "an environment line")
            name, value, column = assignment
            self._environment.read(name, value, number, column)
            return
        self._read_job(number, line, len(line) - len(text))
        self._options = []
        self._option_line = 0

    def miss_line(self) -> None:
        """Drop the collected options after an invalid line, which may be their job."""
        self._read_options()
        self._options = []
        self._option_line = 0

    def end(self) -> None:
        """Report errors that only the end of the file shows."""
        self._expect_no_options(self._option_line, "the end of the file")
        self._environment.warn_of_tz()

    def _expect_no_options(self, number: int, what: str) -> None:
        if self._option_line:
            self._problems.error(
                number,
                1,
                f"{what} follows the options of line {self._option_line}",
                "put option lines directly above their job",
            )
            self.miss_line()

    def _read_options(self) -> Policies:
        policies = read_options(self._options, self._tenant, self._problems)
        check_together(policies, self._problems)
        return policies

    def _read_job(self, number: int, line: str, start: int) -> None:
        policies = self._read_options()
        match = _JOB.fullmatch(line, start)
        if match is None or is_prose(line[start:]):
            self._report_no_schedule(number, line, start)
            return
        schedule = match["schedule"]
        if is_reboot(schedule):
            self._problems.warn(number, start + 1, *REBOOT_LEFT_OUT)
            return
        zone = self._environment.zone_name
        place = (number, start + 1)
        expression = read_schedule(schedule, zone, place, self._problems, whole=line[start:])
        if expression is None:
            return  # After an invalid schedule it is unknown where the command begins.
        is_handler = any(option.key == "handler" for option in self._options)
        if not is_handler and self._has_sixth_field(match["rest"] or "", line, place):
            return
        column = len(line) + 1 if match["rest"] is None else match.start("rest") + 1
        command, column = self._read_command(match["rest"] or "", number, column, policies)
        is_handler = "handler" in policies.values
        payload = self._read_payload(command, number, column) if is_handler else b""
        if payload is None or not (command or is_handler):
            return
        self._environment.note_job()
        script, stdin = ("", "") if is_handler else split_percent(command)
        self.jobs.add(
            Declaration(
                line=number,
                expression=expression,
                zone=zone,
                policies=policies,
                command=command,
                script=script,
                stdin=stdin,
                shell=self._environment.shell,
                env=() if is_handler else self._environment.lines,
                payload=payload,
            )
        )

    def _read_payload(self, text: str, number: int, column: int) -> bytes | None:
        """Return the payload of a handler; None after reporting an error."""
        try:
            return read_payload(text)
        except ScheduleError as error:
            begin = len(text) - len(text.lstrip(_BLANKS))
            self._problems.error(number, column + begin + error.column - 1, str(error), error.hint)
            return None

    def _read_command(
        self, rest: str, number: int, column: int, policies: Policies
    ) -> tuple[str, int]:
        """Return the command behind a schedule and its column; "" after reporting that it is
        missing. The payload of a handler may be empty.

        In a system crontab, the user is stored in `policies`.
        """
        command, user = rest, ""
        if self._is_system:
            user, command, column = self._split_user(rest, number, column)
            if user and "user" in policies.values:
                message = "user is given as an option and as a column"
                self._problems.error(number, column, message, "remove the option")
            policies.values["user"] = user
        if "handler" in policies.values:
            return command, column
        if not split_percent(command)[0].strip(_BLANKS):
            if self._is_system and not rest:
                hint = "write the user and then the command after the schedule"
                self._problems.error(number, column, "job has no user and command", hint)
            else:
                hint = "write the command after the schedule"
                if self._is_system:
                    hint = "a system crontab has a user between schedule and command"
                self._problems.error(number, column, "job has no command", hint)
            return "", column
        if self._is_system and not user:
            return "", column
        self._warn_of_likely_mistakes(number, column, command)
        return command, column

    def _split_user(self, rest: str, number: int, column: int) -> tuple[str, str, int]:
        """Return user, command and the command's column; "" for an invalid user."""
        match = _USER_COLUMN.fullmatch(rest)
        if match is None:
            return "", "", column
        user = ""
        try:
            user = read_user(match["user"])
        except InvalidInput as error:
            hint = "a system crontab has a user between schedule and command"
            self._problems.error(number, column, str(error), hint)
        begin = len(rest) if match["command"] is None else match.start("command")
        return user, match["command"] or "", column + begin

    def _report_no_schedule(self, number: int, line: str, start: int) -> None:
        text = line[start:]
        if is_prose(text):
            message = "line is not a job, an environment line or a comment"
            hint = "write a schedule and a command, NAME=value, or # before a comment"
            self._problems.error(number, start + 1, message, hint)
            return
        # Too few words for five fields; but an invalid word gives the better message.
        read_schedule(text, "UTC", (number, start + 1), self._problems, whole=text)

    def _has_sixth_field(self, rest: str, line: str, place: tuple[int, int]) -> bool:
        """Return whether the command looks like a field of a schedule, and report it."""
        words = [(match.group(), match.start() + 1) for match in _WORD.finditer(line)]
        first = rest.split(None, 1)[:1]
        is_named = line[place[1] - 1] == "@"
        if not first or not is_field_like(first[0]) or (is_named and first[0][0] not in "*?"):
            return False
        number, _ = place
        error = misread(words, has_command=not self._is_system)
        if error is not None:
            self._problems.error(number, error.column, str(error), error.hint)
        else:
            message = f"command begins with {first[0]}, which looks like a field of a schedule"
            hint = f"remove it, or write '{first[0]}' in quotes if the command begins with it"
            self._problems.error(number, line.index(rest) + 1, message, hint)
        return True

    def _warn_of_likely_mistakes(self, number: int, column: int, command: str) -> None:
        if not self._is_system and command.startswith(("root ", "root\t")):
            message = "command begins with a user's name"
            self._problems.warn(number, column, message, "read a system crontab with --system")
        end = next((match.start() for match in _PERCENT.finditer(command) if match["end"]), -1)
        script = command if end < 0 else command[:end]
        if "\\\\" in script:
            message = r"\\ in the command becomes one backslash, as in Debian's cron"
            hint = r"write \\\\ where the shell is to get two"
            self._problems.note(number, column + script.index("\\\\"), message, hint)
        if end < 0:
            return
        is_open = _SHELL_OPEN.search(_SHELL_PAIR.sub("", script))
        if is_open or script.endswith("+") or _FORMAT.match(command, end):
            message = "% ends the command, and what follows is its standard input"
            self._problems.warn(number, column + end, message, _PERCENT_HINT)


def read_together(
    files: Iterable[tuple[str, bytes]], *, system: bool, zone: str, tenant: str
) -> list[tuple[str, Reading]]:
    """Return each file's name and its contents as from `read_file`, in order.

    A file that is given twice, a job that is in two files, and jobs that follow each other in a
    cycle are errors of the later file.
    """
    readings: list[tuple[str, Reading]] = []
    followed: dict[str, tuple[str, ...]] = {}
    places: dict[str, tuple[str, int]] = {}
    names: set[str] = set()
    unnamed: dict[str, Unnamed] = {}
    for name, content in files:
        problems = Problems(name)
        if name in names:
            problems.error(0, 0, "file is given twice", "give it once")
            readings.append((name, problems.reading([])))
            continue
        names.add(name)
        reading = read_file(name, content, system=system, zone=zone, tenant=tenant)
        unnamed |= _apart(reading, unnamed)
        followed.update((job.name, job.follows) for job in reading.jobs if job.follows)
        for job in reading.jobs:
            file, line = places.setdefault(job.name, (name, job.line))
            if file != name:
                where = f"{file}, line {line}" if line else file
                message = f"job {job.name} stands in {where} as well"
                hint = "give one of them another name, or remove one"
                problems.error(job.line, min(job.line, 1), message, hint)
        followers = [job.name for job in reading.jobs if job.follows]
        cycle = cycle_of(followers, lambda one: followed.get(one, ()))
        for job in [one for one in reading.jobs if one.name in cycle][:1]:
            problems.error(job.line, min(job.line, 1), *cycle_problem(cycle))
        found = problems.reading([])
        reading.problems += found.problems
        reading.error_count += found.error_count
        readings.append((name, reading))
    return readings


def _apart(reading: Reading, before: Mapping[str, Unnamed]) -> dict[str, Unnamed]:
    """Give the jobs without a name long names that only look like those of files before, and
    return all that there are by name."""
    given: dict[str, Unnamed] = {}
    for place, job in enumerate(reading.jobs):
        if (names := reading.unnamed.get(job.name)) is None:
            continue
        name = job.name
        if (other := before.get(name)) is not None and other.long != names.long:
            name = names.long
            reading.jobs[place] = msgspec.structs.replace(job, name=name)
        given[name] = names
    reading.unnamed = given
    return given


def cycle_problem(cycle: Sequence[str]) -> tuple[str, str]:
    """Return the message and hint for jobs that follow each other in a cycle."""
    shown = [*cycle[:_CYCLE_SHOWN], "...", cycle[-1]] if len(cycle) > _CYCLE_SHOWN + 1 else cycle
    names = " follows ".join(map(short_job_name, shown))
    return f"jobs wait for each other: {names}", "take one of them out of after, or after-any"
