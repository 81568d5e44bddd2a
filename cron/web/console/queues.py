"""The page of queues: their depth, what holds them back, limits and gates."""

from __future__ import annotations

import math
from typing import Any, Final

from cron.api import table as t
from cron.api.checks import Listing
from cron.api.limits import LimitView
from cron.api.queues import QueueQuery
from cron.scopes import EACH_TENANT, scope_text
from cron.web.console.frame import Page
from cron.web.console.page_request import Missing, PageRequest

SHOWN: Final = 200
STARVED_MS: Final = 60_000
"""What waits for longer is pointed out, with the reason."""
STARVED_SHOWN: Final = 3


async def show(asked: PageRequest, _name: str) -> Page:
    """Return the page."""
    queues = await asked.maybe(t.QUEUES, QueueQuery())
    limits = await asked.maybe(t.LIMITS, Listing())
    gates = await asked.maybe(t.GATES, Listing())
    # What is held back first, then what waits for the longest time.
    rows = [] if isinstance(queues, Missing) else queues.queues
    now_ms = 0 if isinstance(queues, Missing) else queues.now_ms
    starved = [one for one in rows if one.oldest_ms and now_ms - one.oldest_ms > STARVED_MS]
    ordered = sorted(
        rows,
        key=lambda one: (
            not (one.blocked_by or one.gates),
            one.oldest_ms or math.inf,
            -one.waiting,
        ),
    )
    values: dict[str, Any] = {
        "limit_scope": _scope,
        "limit_text": lambda one: scope_text((one.tenant, one.pool, one.priority)),
        "queues": queues,
        "rows": ordered[:SHOWN],
        "starved": sorted(starved, key=lambda one: one.oldest_ms)[:STARVED_SHOWN],
        "hidden": max(0, len(ordered) - SHOWN),
        "waiting": sum(one.waiting for one in rows),
        "running": sum(one.running for one in rows),
        "limits": limits if isinstance(limits, Missing) else limits.limits[:SHOWN],
        "gates": gates if isinstance(gates, Missing) else gates.gates[:SHOWN],
    }
    return Page("queues.html", "Queues", values)


def _scope(limit: LimitView) -> str:
    """Return the scope in which a role must be to change a limit."""
    return f"{limit.tenant}/*" if limit.tenant not in ("", EACH_TENANT) else ""
