"""Environment lines of a crontab: `NAME = value`, as crontab(5) of Debian's cron reads them.

Values may be quoted to keep blanks; variables are not expanded. A line applies to the jobs below
it. CRON_TZ is not passed to commands; LOGNAME may not be set and is ignored.
"""

from __future__ import annotations

import re
from typing import Final

from cron import limits
from cron.calendar.zones import zone, zone_names
from cron.crontab.reading import Problems
from cron.crontab.secretive import HINT, secret_in
from cron.errors import ScheduleError

DEFAULT_SHELL: Final = "/bin/sh"
MAILTO: Final = "MAILTO"
SERVE_MAIL: Final = "MAILTO sends mail only if an executor serves mail"
SERVE_HINT: Final = "write targets = ... into its configuration (docs/alerts.md)"
MAILTO_HINT: Final = 'write MAILTO=ops@example.com, several with commas between, or MAILTO=""'
TZ_HINT: Final = "TZ is only passed to the command: CRON_TZ sets the time zone of schedules"
DELAY_HINT: Final = "write ? for the minute: raftcron chooses one where the load is least"
LOGNAME_HINT: Final = "it is always the user of the job: remove the line"

_EMPTY: Final = {"CRON_TZ": "CRON_TZ=UTC", "SHELL": f"SHELL={DEFAULT_SHELL}"}
"""Hints for variables that must not be empty."""
EXPAND_HINT: Final = "write it out, or set it in the command, where the shell reads it"

OVERRIDDEN: Final = (
    "RAFTCRON_LAUNCH",
    "RAFTCRON_JOB",
    "RAFTCRON_SCHEDULED_TIME",
    "RAFTCRON_ATTEMPT",
    "RAFTCRON_PART",
    "RAFTCRON_EPOCH",
    "RAFTCRON_FENCE",
    "RAFTCRON_LEDGER",
)
"""Variables that each launch sets, after the crontab's lines."""
GIVEN: Final = ("SHELL", "PATH", "HOME", "LOGNAME", "USER")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ADDRESS: Final = re.compile(r"[^\s,;:<>()@\"\\$%&|]+(?:@[A-Za-z0-9.-]+)?", re.ASCII)
_COMMENT = re.compile(r"[ \t]+#")
_HOME_MARK = re.compile(r"(?:\A|:)~")

_LINE = re.compile(
    r"""[ \t]*("[^"]*"|'[^']*'|[^\s=*?@0-9"'][^\s="']*)[ \t]*=[ \t]*(.*)""", re.DOTALL
)


def split_assignment(text: str) -> tuple[str, str, int] | None:
    """Return (name, value as written, column of the value) of an environment line, or None."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    name = match[1][1:-1] if match[1][0] in "\"'" else match[1]
    return name, match[2], match.start(2) + 1


def mail_addresses(value: str) -> tuple[tuple[str, ...], str]:
    """Return the addresses of a `MAILTO`, each once, and why others of it get no mail, or "".

    A crontab of another host may say anything here, so a wrong address is none that is refused.
    """
    words = list(dict.fromkeys(value.replace(",", " ").split()))
    good = [
        one
        for one in words
        if len(one) <= limits.ADDRESS_CHARS_MAX and _ADDRESS.fullmatch(one) is not None
    ]
    problem = next((f"{one[:40]!r} is no address" for one in words if one not in good), "")
    if not problem and len(good) > limits.ADDRESSES_MAX:
        problem = f"{len(good)} addresses are more than {limits.ADDRESSES_MAX}"
    return tuple(good[: limits.ADDRESSES_MAX]), problem


class Environment:
    """The environment at one point of a crontab, and the zone of the schedules there."""

    def __init__(self, zone_name: str, problems: Problems) -> None:
        self.zone_name = zone_name
        self.lines: tuple[tuple[str, str], ...] = ()
        self.shell = DEFAULT_SHELL
        self._values: dict[str, str] = {}
        self._problems = problems
        self._zone_line = 0
        self._tz_line = 0
        self._tz_without_zone: tuple[int, str] | None = None

    def read(self, name: str, written: str, line: int, column: int) -> None:
        """Apply one environment line; `column` is that of the value. Errors are reported."""
        value = self._unquoted(name, written, line, column)
        if value is None:
            return
        first, *rest = value.split(None, 1)[:2] or [""]
        if rest and name in ("CRON_TZ", "TZ") and first in zone_names():
            message = f"{name}={first} has more behind it on its line"
            hint = f"write {name}={first} on a line of its own, and on the next one: {rest[0]}"
            self._problems.error(line, column + len(first), message, hint)
            return
        if name == "CRON_TZ":
            self._zone_line = self._zone_line or line
            try:
                zone(value)
            except ScheduleError as error:
                self._problems.error(line, column, str(error), error.hint)
            else:
                self.zone_name = value
        else:
            self.set(name, value, line, column)

    def set(self, name: str, value: str, line: int, column: int) -> None:
        """Set a variable for the jobs that follow; CRON_TZ is not one."""
        if not name:
            self._problems.error(line, 1, "variable has no name", "write NAME=value")
            return
        if name == "LOGNAME":
            self._problems.warn(line, 1, "LOGNAME cannot be set and is ignored", LOGNAME_HINT)
            return
        if name == "SHELL" and not value.startswith("/"):
            message = f"SHELL {value[:40]!r} is not an absolute path"
            self._problems.error(line, column, message, "write one like /bin/bash")
            return
        if name == MAILTO and (problem := mail_addresses(value)[1]):
            message = f"MAILTO does not send all mail: {problem}"
            self._problems.warn(line, column, message, MAILTO_HINT)
        if name == MAILTO and mail_addresses(value)[0]:
            self._problems.note_once(line, column, SERVE_MAIL, SERVE_HINT)
        if name == "TZ":
            self._tz_line = line
        if name == "RANDOM_DELAY":
            self._problems.warn(line, 1, "RANDOM_DELAY delays nothing", DELAY_HINT)
        self._warn_of_likely_mistakes(name, value, line)
        if name not in self._values and len(self._values) == limits.ENVIRONMENT_LINES_MAX:
            message = f"more than {limits.ENVIRONMENT_LINES_MAX} variables are set"
            self._problems.error(line, 1, message, "set them in a script that the job runs")
            return
        self._values[name] = value
        self.lines = tuple(self._values.items())
        self.shell = self._values.get("SHELL", DEFAULT_SHELL)

    def _warn_of_likely_mistakes(self, name: str, value: str, line: int) -> None:
        """Warn about settings that have no effect, or another one than they seem to have."""
        if name in OVERRIDDEN:
            hint = "remove it: each launch has its own"
            self._problems.warn(line, 1, f"{name} is set anew for each launch", hint)
        elif found := secret_in(name, value):
            message = f"{name} holds what looks like {found}"
            self._problems.warn(line, 1, message, HINT.format(name=name))
        elif name == "USER":
            message = "USER does not change who the job runs as"
            hint = "set the option user of the job, or use the user column of a system crontab"
            self._problems.warn(line, 1, message, hint)
        # A value may contain a plain $, such as a password: warn only about names of variables.
        known = {name, *GIVEN, *self._values}
        for match in _REFERENCE.finditer(value):
            if (match[1] or match[2]) in known:
                message = f"{name} keeps {match[0]} as it stands: nothing is expanded here"
                self._problems.warn(line, 1, message, EXPAND_HINT)
                return
        if (name == "HOME" or name.endswith("PATH")) and _HOME_MARK.search(value):
            message = f"{name} keeps ~ as it stands: nothing is expanded here"
            self._problems.warn(line, 1, message, EXPAND_HINT)

    def note_job(self) -> None:
        """Record a job for `warn_of_tz`."""
        if self._tz_line and not self._zone_line and self._tz_without_zone is None:
            self._tz_without_zone = (self._tz_line, self.zone_name)

    def warn_of_tz(self) -> None:
        """Warn, at the end of the file, about a TZ without a CRON_TZ, which sets the schedules'
        zone.
        """
        line, zone_name = self._tz_without_zone or (self._tz_line, self.zone_name)
        if not line or (self._zone_line and self._tz_without_zone is None):
            return
        message = f"TZ does not move schedules, which are in {zone_name}"
        if self._zone_line:
            message += f" as far as CRON_TZ on line {self._zone_line}"
        self._problems.warn(line, 1, message, TZ_HINT)

    def _unquoted(self, name: str, written: str, line: int, column: int) -> str | None:
        written = written.rstrip(" \t")
        if not written:
            hint = f'write {name}="" to set it empty'
            if name in _EMPTY:
                hint = f"write {_EMPTY[name]}, or remove the line"
            self._problems.error(line, column, f"{name} has no value", hint)
            return None
        quote = written[0]
        if quote not in "\"'":
            match = _COMMENT.search(written)
            if match and name != "CRON_TZ":
                message = f"{name} has a value with what looks like a comment"
                marks = "'" if '"' in written else '"'
                hint = (
                    f"write {name}={written[: match.start()]} and the comment on a line of its "
                    f"own; if it belongs to the value, write {name}={marks}{written}{marks}"
                )
                self._problems.warn(line, column + match.start(), message, hint)
            return written
        end = written.find(quote, 1)
        if end < 0:
            message = f"{name} has a quote that does not close"
            self._problems.error(line, column, message, f"end the value with {quote}")
            return None
        if end != len(written) - 1:
            message = f"{name} goes on after the closing quote"
            hint = "quote the whole value with the other kind of quotes"
            if written[end + 1 :].lstrip(" \t").startswith("#"):
                hint = f"write {name}={written[: end + 1]}, and the comment on a line of its own"
            self._problems.error(line, column + end + 1, message, hint)
            return None
        return written[1:-1]
