"""Reading a file: its lines, and the result with jobs, errors, warnings and notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from cron import limits
from cron.crontab.default_name import Unnamed
from cron.errors import CrontabError, Note, Problem
from cron.job import Job


class Reading(msgspec.Struct):
    """The contents of a file: `jobs` in the file's order, `problems` in the order of their lines.

    Values for `?` are not chosen yet. Do not use the jobs if there are errors: a file with an error
    changes nothing.
    """

    jobs: list[Job]
    problems: list[Problem]
    error_count: int = 0
    warning_count: int = 0
    """The number of all errors, including those that are not in `problems`."""
    unnamed: dict[str, Unnamed] = {}
    """The jobs that have no name in the file, by the name that they got."""
    paused: dict[str, str] = {}
    """The jobs that arrive paused where they are new, each with the reason."""

    @property
    def errors(self) -> list[Problem]:
        """The errors."""
        return [problem for problem in self.problems if not problem.is_warning]

    @property
    def warnings(self) -> list[Problem]:
        """The warnings, without notes."""
        return [one for one in self.problems if one.is_warning and not one.is_note]

    @property
    def notes(self) -> list[Problem]:
        """The notes: syntax that other cron implementations reject."""
        return [problem for problem in self.problems if problem.is_note]

    def raise_for_errors(self) -> None:
        """Raise the errors, if there are any.

        Raises:
            CrontabError: there are errors; it contains all of them.
        """
        if self.errors:
            raise CrontabError(self.errors)


class Problems:
    """Collects the problems of one file; errors above the limit are only counted."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._kept: list[Problem] = []
        self._noted: set[str] = set()
        self._counts = {"error": 0, "warning": 0, "note": 0}

    def error(self, line: int, column: int, message: str, hint: str) -> None:
        """Record an error: its position (from 1), message and hint."""
        self._keep("error", Problem(self._file, line, column, message, hint))

    @property
    def is_full(self) -> bool:
        """Return whether further errors are only counted, so that their messages are not needed."""
        return self._counts["error"] >= limits.CRONTAB_ERRORS_MAX

    def warn(self, line: int, column: int, message: str, hint: str) -> None:
        """Record a warning: the file is valid, but may not mean what it seems to mean."""
        problem = Problem(self._file, line, column, message, hint, is_warning=True)
        self._keep("warning", problem)

    def note(self, line: int, column: int, message: str, hint: str) -> None:
        """Record a note: the file is valid, and other cron implementations reject it, or the cell
        needs something for it."""
        self._keep("note", Note(self._file, line, column, message, hint, is_warning=True))

    def note_once(self, line: int, column: int, message: str, hint: str) -> None:
        """Record a note about something that a file may say at many places: at the first one."""
        if message not in self._noted:
            self._noted.add(message)
            self.note(line, column, message, hint)

    def _keep(self, what: str, problem: Problem) -> None:
        self._counts[what] += 1
        if self._counts[what] <= limits.CRONTAB_ERRORS_MAX:
            self._kept.append(problem)

    def reading(
        self,
        jobs: list[Job],
        unnamed: dict[str, Unnamed] | None = None,
        paused: dict[str, str] | None = None,
    ) -> Reading:
        """Return the jobs with all problems found so far."""
        counts = self._counts["error"], self._counts["warning"]
        return Reading(jobs, self.listed(), *counts, unnamed or {}, paused or {})

    def listed(self) -> list[Problem]:
        """Return all problems by position, and finally a count if not all are shown."""
        found = sorted(self._kept, key=lambda one: (one.line, one.column, one.message))
        for what, count in self._counts.items():
            if count <= limits.CRONTAB_ERRORS_MAX:
                continue
            message = f"{count:,} {what}s; the first {limits.CRONTAB_ERRORS_MAX} are shown"
            hint = "correct these first, then read the file again"
            kind = Note if what == "note" else Problem
            found.append(kind(self._file, 0, 0, message, hint, is_warning=what != "error"))
        return found


_UTF8_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_ENCODING_HINT: Final = "save the file as UTF-8"
_COMMENT = re.compile(rb"[ \t]*#(?!:)")


def split_lines(content: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each valid line; the last one needs no line end.

    A byte order mark and carriage returns at the ends of lines are removed, with one warning.
    """
    if not is_readable(content, problems):
        return
    if content.startswith(_UTF8_MARK):
        content = content.removeprefix(_UTF8_MARK)
        problems.warn(1, 1, "file begins with a byte order mark", "save it as UTF-8 without one")
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    has_returns = False
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\r"):
            line = line[:-1]
            if not has_returns:
                problems.warn(
                    number,
                    len(line) + 1,
                    "line ends with a carriage return, which is removed",
                    "save the file with Unix line ends (line feed only)",
                )
            has_returns = True
        text = _decode(line, number, problems)
        if text is not None:
            yield number, text


def is_readable(content: bytes, problems: Problems) -> bool:
    """Return whether the file can be read; otherwise report why not."""
    if len(content) > limits.CRONTAB_BYTES_MAX:
        message = f"file has {len(content)} bytes, more than {limits.CRONTAB_BYTES_MAX}"
        problems.error(0, 0, message, "split it into several files")
        return False
    if content.startswith(_UTF16_MARKS):
        problems.error(1, 1, "file is UTF-16, not UTF-8", _ENCODING_HINT)
        return False
    return True


def _decode(line: bytes, number: int, problems: Problems) -> str | None:
    if len(line) > limits.CRONTAB_LINE_BYTES_MAX:
        message = f"line has {len(line)} bytes, more than {limits.CRONTAB_LINE_BYTES_MAX}"
        hint = "put a command into a script, a payload into a job file (.toml)"
        problems.error(number, limits.CRONTAB_LINE_BYTES_MAX + 1, message, hint)
        return None
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        if _COMMENT.match(line):
            problems.warn(number, column, "comment is not UTF-8", _ENCODING_HINT)
            return "#"
        message = f"byte 0x{line[error.start]:02x} is not UTF-8"
        problems.error(number, column, message, _ENCODING_HINT)
        return None
    if "\0" in text:
        problems.error(number, text.index("\0") + 1, "line holds a NUL byte", "remove it")
        return None
    return text
