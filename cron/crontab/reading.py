"""What came of reading a file: its jobs, and everything that is wrong or odd about it."""

from __future__ import annotations

import msgspec

from cron import limits
from cron.errors import CrontabError, Problem
from cron.job import Job


class Reading(msgspec.Struct):
    """A file that was read: `jobs` in the file's order, `problems` in the order of their lines.

    Schedules with `?` are not placed. The jobs are not to be used while there are errors: a file
    with an error changes nothing.
    """

    jobs: list[Job]
    problems: list[Problem]

    @property
    def errors(self) -> list[Problem]:
        """The problems that are not warnings."""
        return [problem for problem in self.problems if not problem.is_warning]

    @property
    def warnings(self) -> list[Problem]:
        """The problems that do not keep the file from being used."""
        return [problem for problem in self.problems if problem.is_warning]

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
        self._errors: list[Problem] = []
        self._warnings: list[Problem] = []
        self._dropped = [0, 0]

    def error(self, line: int, column: int, message: str, hint: str) -> None:
        """Note an error: its place (from 1), what is wrong, and the way out."""
        if len(self._errors) < limits.CRONTAB_ERRORS_MAX:
            self._errors.append(Problem(self._file, line, column, message, hint))
        else:
            self._dropped[0] += 1

    def warn(self, line: int, column: int, message: str, hint: str) -> None:
        """Note a warning."""
        if len(self._warnings) < limits.CRONTAB_ERRORS_MAX:
            problem = Problem(self._file, line, column, message, hint, is_warning=True)
            self._warnings.append(problem)
        else:
            self._dropped[1] += 1

    def listed(self) -> list[Problem]:
        """Return all problems by place, and last how many more there are."""
        found = sorted([*self._errors, *self._warnings])
        more, more_warnings = self._dropped
        if more:
            hint = "correct these first, then read the file again"
            found.append(Problem(self._file, 0, 0, f"{more} more errors", hint))
        if more_warnings:
            hint = "see the first of them"
            found.append(
                Problem(self._file, 0, 0, f"{more_warnings} more warnings", hint, is_warning=True)
            )
        return found
