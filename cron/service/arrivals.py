"""Jobs that arrive paused (`paused` in their file): only those that are new in the cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cron.api.jobs import JobChange
from cron.errors import LimitExceeded
from cron.state import commands as c

PAUSED_AT_ONCE: Final = 5_000
"""Jobs that arrive paused with one change: their names are in its last entry."""


def paused(changes: Iterable[JobChange], reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the new jobs that arrive paused, by the reason, and say so in their changes; `reasons`
    are those of all jobs of the source.

    Raises:
        LimitExceeded: there are too many for one change.
    """
    found: dict[str, list[str]] = {}
    new = [one for one in changes if one.action == "added" and one.job in reasons]
    for change in new:
        found.setdefault(reasons[change.job], []).append(change.job)
        change.what.append("paused")
        change.next_after_s.clear()
    if len(new) > PAUSED_AT_ONCE:
        text = f"more than {PAUSED_AT_ONCE:,} jobs arrive paused; nothing was changed"
        raise LimitExceeded(text, "apply them in several files")
    return found


def pauses(found: Mapping[str, list[str]], by: str) -> list[c.Pause]:
    """Return what pauses the new jobs, in the entry that adds them: so none of them is ever due."""
    return [c.Pause(tuple(names), reason, 0, by) for reason, names in found.items()]
