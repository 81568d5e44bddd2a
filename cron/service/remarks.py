"""The warnings of `apply` about the jobs of a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cron.calendar.crowding import Crowding
from cron.errors import Problem
from cron.job import Job
from cron.service import crowd, limiting, placing, unserved
from cron.service.replica import Replica

LEFT_SHOWN: Final = 5


def warnings(
    replica: Replica,
    source: str,
    jobs: Sequence[Job],
    left: Sequence[str],
    crowding: Crowding | None,
) -> list[Problem]:
    """Return the warnings about a source: `jobs` are those that it declares, `left` those that it
    declares no more and that stay, `crowding` is the minute in which too many are due."""
    return [
        *_left_warning(source, left),
        *limiting.warnings(replica, jobs, source),
        *placing.account_warnings(replica, jobs, source),
        *unserved.warnings(replica, jobs, source),
        *crowd.warnings(replica, crowding, jobs, source),
    ]


def _left_warning(source: str, left: Sequence[str]) -> list[Problem]:
    if not left:
        return []
    count = len(left)
    what, verb = (
        ("1 job of this source is", "runs")
        if count == 1
        else (f"{count} jobs of this source are", "run")
    )
    message = f"{what} no longer declared and still {verb}: {placing.some_of(left, LEFT_SHOWN)}"
    hint = "apply with --prune to remove what a source has no more; a new name makes a new job"
    return [Problem(source, 0, 0, message, hint, is_warning=True)]
