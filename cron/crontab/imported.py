"""Jobs of other schedulers as tables of a job file, with what could not be carried over.

The readers (`import_dkron.py`, `import_kubernetes.py`, `import_systemd.py`) are pure: text in, an
`Imported` out. A table that is no valid job is left out, and a note says why.

What is carried over means the same here; what might not is left out, with a note that names the
file, the line and the construct. Each reader has one table of the keys of its source
(`docs/imports.md` shows them): a key that is in no table is a note.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cron.crontab import background
from cron.crontab.environment import DEFAULT_SHELL, MAILTO, OVERRIDDEN
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.written import table_text

NOT_OF_ITS_FORM: Final = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a value of another type than its place has, or another length, makes of reading it."""
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_NAME_CHARS: Final = 64


_SHOWN_CHARS: Final = 120


OWN_VARIABLES: Final = frozenset((*OVERRIDDEN, MAILTO, "SHELL", "LOGNAME", "CRON_TZ"))
"""Variables that mean something else in a job file: the command exports them itself."""
_SHELL_WORDS: Final = (
    "! . : [ alias bg break builtin case cd command continue declare do done echo elif else esac "
    "eval exec exit export fc fg fi for function getopts hash help history if jobs kill let local "
    "printf pwd read readonly return select set shift source test then time times trap type "
    "typeset ulimit umask unalias unset until wait while { }"
)
_OF_SHELL: Final = frozenset(_SHELL_WORDS.split())
"""First words of a command that a shell takes for its own, and not for a program."""


class Place(NamedTuple):
    """A line of a file of the source, or a file alone where `line` is 0."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


NOWHERE: Final = Place("")
"""The place of what has none."""


class Left(msgspec.Struct, frozen=True):
    """Something of a job that was not carried over. `is_whole`: the job is left out."""

    job: str
    what: str
    is_whole: bool = False
    place: Place = NOWHERE
    """Where it is, as far as the source has lines."""

    def __str__(self) -> str:
        mark = "left out" if self.is_whole else "not carried over"
        parts = [str(self.place), "" if self.job == self.place.file else self.job, mark, self.what]
        return ": ".join(filter(None, parts))


class Treatment(enum.Enum):
    """How an importer treats a key of its source. IRRELEVANT: it says nothing about the job."""

    CARRIED = "carried over"
    NOTED = "left, with a note"
    LEAVES_OUT = "the job is left out"
    IRRELEVANT = "irrelevant"


class Key(NamedTuple):
    """A row of an importer's table: its treatment, and what it becomes, or why it is left."""

    treatment: Treatment
    why: str


class Found(NamedTuple):
    """A key that a file of the source has, as its importer's table calls it, and how a note shows
    it."""

    key: str
    shown: str
    place: Place = NOWHERE


def keys(treatment: Treatment, why: str, *names: str) -> dict[str, Key]:
    """Return rows of an importer's table that have their treatment and reason in common."""
    return dict.fromkeys(names, Key(treatment, why))


class Imported(msgspec.Struct):
    """Tables of a job file, in their order, and what is not in them."""

    tables: list[dict[str, Any]] = []
    left: list[Left] = []
    names: set[str] = set()
    """The names of the tables."""

    def note(self, job: str, what: str, place: Place = NOWHERE) -> None:
        """Note what was not carried over of a job."""
        self.left.append(Left(job, what, place=place))

    def note_background(self, job: str, script: str, place: Place = NOWHERE) -> None:
        """Note that a command leaves a process in the background, if it seems to."""
        if how := background.background(script, DEFAULT_SHELL):
            self.note(job, f"{background.message(how)}: {background.HINT}", place)

    def leave_out(self, job: str, why: str, place: Place = NOWHERE) -> None:
        """Note that a job is left out."""
        self.left.append(Left(job, why, is_whole=True, place=place))

    def note_keys(self, job: str, table: Mapping[str, Key], found: Iterable[Found]) -> bool:
        """Note the keys of a job that are not carried over, also those that the table does not
        know; return whether none of them leaves the job out."""
        is_whole = False
        for key, shown, place in found:
            treatment, why = table.get(key) or Key(Treatment.NOTED, "this key is not known")
            if treatment in (Treatment.NOTED, Treatment.LEAVES_OUT):
                left = f"{shown[:_SHOWN_CHARS]}: {why}"
                self.left.append(Left(job, left, treatment is Treatment.LEAVES_OUT, place))
            is_whole = is_whole or treatment is Treatment.LEAVES_OUT
        return not is_whole

    def add(self, job: str, table: Mapping[str, Any], place: Place = NOWHERE) -> None:
        """Add a job as a table, unless it is not valid here. Values that are None are left out."""
        kept = {key: value for key, value in table.items() if value is not None}
        if kept["name"] in self.names:
            self.leave_out(job, f"another job is called {kept['name']}", place)
            return
        errors = read_jobs_toml(table_text(kept).encode(), file=job).errors
        if errors:
            self.leave_out(job, f"{errors[0].message}: {errors[0].hint}", place)
        else:
            self.tables.append(kept)
            self.names.add(kept["name"])

    def note_zone(self, job: str, schedule: str, zone: str | None, place: Place = NOWHERE) -> None:
        """Note that a schedule without a zone is read in UTC here, and there in that of a host."""
        is_everywhere = schedule.startswith("@every") or set(schedule.split()[1:]) == {"*"}
        if zone is None and not is_everywhere:
            self.note(job, f"{schedule} is in UTC here, if no zone is written", place)

    @property
    def text(self) -> str:
        """The job file."""
        return "\n".join(map(table_text, self.tables))


def program(words: Sequence[str]) -> str:
    """Return the command that runs a program with these words, already quoted for a shell: also one
    that is called like a command of the shell's own."""
    line = " ".join(words)
    return f"exec {line}" if words[0] in _OF_SHELL or "=" in words[0] else line


def exported(variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the lines that export the variables that mean something else in a job file, and the
    other variables."""
    own = sorted(OWN_VARIABLES & variables.keys())
    lines = [f"export {name}={shlex.quote(variables[name])}" for name in own]
    return lines, {name: value for name, value in variables.items() if name not in OWN_VARIABLES}


def plain_name(text: str) -> str:
    """Return a name that jobs may have, similar to a text."""
    return _STRANGE.sub("-", text).strip(".-")[:_NAME_CHARS] or "job"
