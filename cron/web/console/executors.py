"""The page of executors: what they offer, what runs there, and drains."""

from __future__ import annotations

from typing import Any, Final

from cron.api import table as t
from cron.api.executors import ExecutorQuery
from cron.api.rpc import Request
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest
from launcher.pool.lease import LeaseTimes

SHOWN: Final = 100
RUNS: Final = 100


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    report = await asked.maybe(t.EXECUTORS, Request())
    text = asked.query.get("text", "").strip()
    found = []
    if not isinstance(report, Missing):
        found = [one for one in report.executors if _has(text, one.id, one.host, *one.labels)]
    # Those that need a person come first.
    found.sort(key=lambda one: (one.gets_work, one.id))
    values: dict[str, Any] = {
        "report": report,
        "rows": found[:SHOWN],
        "total": len(found),
        "connected": sum(one.role == "connected" for one in found),
        "running": sum(one.running for one in found),
        "slots": sum(one.slots_in_all for one in found if one.gets_work),
        "duplicates": [] if isinstance(report, Missing) else report.duplicate_ids[:SHOWN],
        "has_certificates": any(one.certificate_ends_ms for one in found),
        "text": text,
    }
    return Page("executors.html", "Executors", values)


async def show_one(asked: PageRequest, name: str) -> Page:
    """Return the page of one executor: what it offers, its lease, and what runs there."""
    report = await asked.maybe(t.EXECUTOR, ExecutorQuery(executor=name, limit=RUNS))
    lease_ms = LeaseTimes().give_up_ms
    values: dict[str, Any] = {
        "id": name,
        "report": report,
        "runs": RUNS,
        "lease_ms": lease_ms,
    }
    return Page("executor.html", name, values)


def _has(text: str, *places: str) -> bool:
    return not text or any(text.casefold() in one.casefold() for one in places)
