"""The calls that probes make, in this tree and in an older one whose client has a method for each.

Where there is no table of calls, the names that probes need are those of `cron.api.views`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from cron import limits

HAS_TABLE: Final = importlib.util.find_spec("cron.api.table") is not None
_LAUNCHES: Final = importlib.import_module("cron.api.launches" if HAS_TABLE else "cron.api.views")
HistoryQuery: Final = _LAUNCHES.HistoryQuery
CURSOR_AT: Final = getattr(_LAUNCHES, "cursor_at", None)
PAGE_MAX: Final = getattr(limits, "HISTORY_PAGE_MAX", None) or limits.HISTORY_ROWS_MAX
"""Before there were pages, one answer held up to HISTORY_ROWS_MAX launches."""


def status(client: Any) -> list[Any]:
    """Return the rows of `raftcron status`."""
    if not HAS_TABLE:
        return list(client.status())
    return list(client.ask(_table().STATUS).rows)


def history(client: Any, query: Any) -> list[Any]:
    """Return a page of history."""
    return list(client.ask(_table().HISTORY, query) if HAS_TABLE else client.history(query))


def audit(client: Any, job: str, since_ms: int) -> Any:
    """Return what an audit of a job finds."""
    if not HAS_TABLE:
        return client.audit(job, since_ms)
    return client.ask(_table().AUDIT, _LAUNCHES.AuditRequest(job=job, since_ms=since_ms))


def _table() -> Any:
    return importlib.import_module("cron.api.table")
