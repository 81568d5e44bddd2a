"""Jobs of other schedulers as tables of a job file, with what could not be carried over.

The readers (`import_dkron.py`, `import_kubernetes.py`, `import_systemd.py`) are pure: text in, an
`Imported` out. A table that is no valid job is left out, and a note says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

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


class Left(msgspec.Struct, frozen=True):
    """Something of a job that was not carried over. `is_whole`: the job is left out."""

    job: str
    what: str
    is_whole: bool = False


class Imported(msgspec.Struct):
    """Tables of a job file, in their order, and what is not in them."""

    tables: list[dict[str, Any]] = []
    left: list[Left] = []
    names: set[str] = set()
    """The names of the tables."""

    def note(self, job: str, what: str) -> None:
        """Note what was not carried over of a job."""
        self.left.append(Left(job, what))

    def leave_out(self, job: str, why: str) -> None:
        """Note that a job is left out."""
        self.left.append(Left(job, why, is_whole=True))

    def add(self, job: str, table: Mapping[str, Any]) -> None:
        """Add a job as a table, unless it is not valid here. Values that are None are left out."""
        kept = {key: value for key, value in table.items() if value is not None}
        if kept["name"] in self.names:
            self.leave_out(job, f"another job is called {kept['name']}")
            return
        errors = read_jobs_toml(table_text(kept).encode(), file=job).errors
        if errors:
            self.leave_out(job, f"{errors[0].message}: {errors[0].hint}")
        else:
            self.tables.append(kept)
            self.names.add(kept["name"])

    def note_zone(self, job: str, schedule: str, zone: str | None) -> None:
        """Note that a schedule without a zone is read in UTC here, and there in that of a host."""
        is_everywhere = schedule.startswith("@every") or set(schedule.split()[1:]) == {"*"}
        if zone is None and not is_everywhere:
            self.note(job, f"{schedule} is in UTC here, if no zone is written")

    @property
    def text(self) -> str:
        """The job file."""
        return "\n".join(map(table_text, self.tables))


def plain_name(text: str) -> str:
    """Return a name that jobs may have, similar to a text."""
    return _STRANGE.sub("-", text).strip(".-")[:_NAME_CHARS] or "job"
