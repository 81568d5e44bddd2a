"""Handlers of a small shop: `raftcron worker tasks --threads 8`, started in this directory.

A job names one of them instead of a command, with its payload in JSON. Each is tested without a
cluster, with `from raftcron import testing`.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from raftcron import Context, Fatal, Retry, Snooze, current, handler

log = logging.getLogger(__name__)


class Invoice(msgspec.Struct):
    """What a job says of an invoice; what does not fit never reaches the handler."""

    customer: str
    cents: int
    currency: str = "EUR"


@handler("shop.invoice", timeout="5m")
def invoice(payload: Invoice, context: Context) -> str:
    """Send an invoice, once: the launch's name is the key by which the bank knows it."""
    if payload.cents <= 0:
        raise Fatal(f"nothing to pay for {payload.customer}")
    log.warning("paying %s by key %s", payload.customer, context.launch)
    return f"{payload.cents / 100:.2f} {payload.currency} from {payload.customer}"


@handler("shop.fetch", timeout="30s")
async def fetch(payload: dict[str, str], context: Context) -> None:
    """Fetch something that is not always there: wait longer from try to try."""
    await asyncio.sleep(0)
    if payload.get("state") == "busy":
        raise Retry(after=30 * context.attempt, reason="busy")
    if payload.get("state") == "closed":
        raise Snooze("1h", "closed for the night")


@handler("shop.reindex", heartbeat="30s")
def reindex(payload: int | None, context: Context) -> str:
    """Work through many rows, say so, and leave off when told to."""
    rows = payload or 1000
    for row in range(rows):
        context.check()
        if row % 100 == 0:
            context.heartbeat(f"{row} of {rows}")
    return f"{rows} rows"


@handler("shop.ping")
def ping() -> None:
    """Do nothing. What is called from here asks for the context itself."""
    current().log("pong")
