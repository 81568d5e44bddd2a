"""The page of dead letters: launches that were given up, to be launched again or forgotten."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cron.api import table as t
from cron.api.dead import DeadReport
from cron.web.console.frame import Page
from cron.web.console.launch_acts import dead_query
from cron.web.console.page_request import PageRequest

LISTED: Final = 50
_FIELDS: Final = ("jobs", "tenant", "pool", "reason")


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    filters = {name: asked.query.get(name, "").strip() for name in _FIELDS}
    report = await _asked(asked, filters)
    of_tasks = f"{filters['jobs']}:*"
    if not report.letters and filters["jobs"] and not set("*?[:") & set(filters["jobs"]):
        in_queue = {**filters, "jobs": of_tasks}
        found = await _asked(asked, in_queue)
        if found.letters:  # no job has that name, but a queue of tasks
            report, filters = found, in_queue
    values: dict[str, Any] = {
        "report": report,
        "filters": filters,
        "is_filtered": any(filters.values()),
    }
    return Page("dead.html", "Dead letters", values)


async def _asked(asked: PageRequest, filters: dict[str, str]) -> DeadReport:
    query = msgspec.structs.replace(dead_query(filters), limit=LISTED, is_newest=True)
    report: DeadReport = await asked.ask(t.DEAD, query)
    return report
