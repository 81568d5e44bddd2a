"""What came of reading a file: its jobs, and everything that is wrong or odd about it."""

from __future__ import annotations

import msgspec

from cron import limits
from cron.errors import CrontabError, Note, Problem
from cron.job import Job


class Reading(msgspec.Struct):
    """A file that was read: `jobs` in the file's order, `problems` in the order of their lines.

    Schedules with `?` are not placed. The jobs are not to be used while there are errors: a file
    with an error changes nothing.
    """

    jobs: list[Job]
    problems: list[Problem]
    error_count: int = 0
    warning_count: int = 0
    """All that were found, also those that are not kept in `problems`."""

    @property
    def errors(self) -> list[Problem]:
        """The problems that are not warnings."""
        return [problem for problem in self.problems if not problem.is_warning]

    @property
    def warnings(self) -> list[Problem]:
        """The problems that do not keep the file from being used, without notes."""
        return [one for one in self.problems if one.is_warning and not one.is_note]

    @property
    def notes(self) -> list[Problem]:
        """What other crons would not read."""
        return [problem for problem in self.problems if problem.is_note]

    def raise_for_errors(self) -> None:
        """Return if there is no error.

        Raises:
            CrontabError: there is; it carries all of them.
        """
        if self.errors:
            raise CrontabError(self.errors)


class Problems:
    """Collects the problems of one file; what exceeds the limit is counted, not kept."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._kept: list[Problem] = []
        self._counts = {"error": 0, "warning": 0, "note": 0}

    def error(self, line: int, column: int, message: str, hint: str) -> None:
        """Keep an error: its place (from 1), what is wrong, and what to do."""
        self._keep("error", Problem(self._file, line, column, message, hint))

    @property
    def is_full(self) -> bool:
        """Whether a further error is counted only: then what it says is not worth working out."""
        return self._counts["error"] >= limits.CRONTAB_ERRORS_MAX

    def warn(self, line: int, column: int, message: str, hint: str) -> None:
        """Keep a warning: the file can be used, and may not mean what it looks like."""
        problem = Problem(self._file, line, column, message, hint, is_warning=True)
        self._keep("warning", problem)

    def note(self, line: int, column: int, message: str, hint: str) -> None:
        """Keep a note: the file means what it looks like, here if not elsewhere."""
        self._keep("note", Note(self._file, line, column, message, hint, is_warning=True))

    def _keep(self, what: str, problem: Problem) -> None:
        self._counts[what] += 1
        if self._counts[what] <= limits.CRONTAB_ERRORS_MAX:
            self._kept.append(problem)

    def reading(self, jobs: list[Job]) -> Reading:
        """Return the jobs with all problems found so far."""
        return Reading(jobs, self.listed(), self._counts["error"], self._counts["warning"])

    def listed(self) -> list[Problem]:
        """Return all problems by place, and last how many there are if not all are shown."""
        found = sorted(self._kept, key=lambda one: (one.line, one.column, one.message))
        for what, count in self._counts.items():
            if count <= limits.CRONTAB_ERRORS_MAX:
                continue
            message = f"{count:,} {what}s; the first {limits.CRONTAB_ERRORS_MAX} are shown"
            hint = "correct these first, then read the file again"
            kind = Note if what == "note" else Problem
            found.append(kind(self._file, 0, 0, message, hint, is_warning=what != "error"))
        return found
