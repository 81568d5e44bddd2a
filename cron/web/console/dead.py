"""The page of dead letters: launches that were given up, to be launched again or forgotten."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cron.api import table as t
from cron.api.dead import DeadReport
from cron.web.console.frame import Page
from cron.web.console.launch_acts import dead_query
from cron.web.console.page_request import PageRequest, Pages, count_of

LISTED: Final = 50
PAGES: Final = 200
_FIELDS: Final = ("jobs", "queue", "key", "tenant", "pool", "reason")


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    filters = {name: asked.query.get(name, "").strip() for name in _FIELDS}
    number = count_of(asked.query.get("page", ""), 1, PAGES)
    report = await _asked(asked, filters, number)
    is_one = filters["jobs"] and not filters["queue"] and not set("*?[:") & set(filters["jobs"])
    if not report.letters and is_one:
        in_queue = {**filters, "jobs": "", "queue": filters["jobs"]}
        found = await _asked(asked, in_queue, number)
        if found.letters:  # no job has that name, but a queue of tasks
            report, filters = found, in_queue
    values: dict[str, Any] = {
        "report": report,
        "pages": Pages("/dead", filters, "page", number, LISTED, min(report.total, LISTED * PAGES)),
        "letters": report.letters[(number - 1) * LISTED :],
        "filters": filters,
        "is_filtered": any(filters.values()),
    }
    return Page("dead.html", "Dead letters", values)


async def _asked(asked: PageRequest, filters: dict[str, str], number: int) -> DeadReport:
    """Return the dead letters that fit, the newest first, up to the end of a page."""
    query = msgspec.structs.replace(dead_query(filters), limit=LISTED * number, is_newest=True)
    report: DeadReport = await asked.ask(t.DEAD, query)
    return report
