"""Handlers of a small shop. Start `raftcron worker tasks --threads 8` in this directory.

A job names a handler instead of a command, with a payload in JSON. Handlers can be tested without a
cell, with `from raftcron import testing`.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from raftcron import Context, Fatal, Retry, Snooze, current, handler

log = logging.getLogger(__name__)


class Invoice(msgspec.Struct):
    """The payload of an invoice job. A payload that does not match never reaches the handler."""

    customer: str
    cents: int
    currency: str = "EUR"


@handler("shop.invoice", timeout="5m")
def invoice(payload: Invoice, context: Context) -> str:
    """Pay an invoice. The launch's name is the idempotency key, the same in every attempt."""
    if payload.cents <= 0:
        raise Fatal(f"nothing to pay for {payload.customer}")
    log.warning("paying %s by key %s", payload.customer, context.launch)
    return f"{payload.cents / 100:.2f} {payload.currency} from {payload.customer}"


@handler("shop.fetch", timeout="30s")
async def fetch(payload: dict[str, str], context: Context) -> None:
    """Fetch something that may be unavailable; each retry waits longer."""
    await asyncio.sleep(0)
    if payload.get("state") == "busy":
        raise Retry(after=30 * context.attempt, reason="busy")
    if payload.get("state") == "closed":
        raise Snooze("1h", "closed for the night")


@handler("shop.reindex", heartbeat="30s")
def reindex(payload: int | None, context: Context) -> str:
    """Process many rows, report progress, and stop when the launch is cancelled."""
    rows = payload or 1000
    for row in range(rows):
        context.check()
        if row % 100 == 0:
            context.heartbeat(f"{row} of {rows}")
    return f"{rows} rows"


@handler("shop.ping")
def ping() -> None:
    """Log a line. `current()` returns the context of the running handler."""
    current().log("pong")
