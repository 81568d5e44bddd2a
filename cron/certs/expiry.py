"""A certificate's end, told of in time: a replica runs for longer than its certificate is good."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from cron.clock import Clock
from launcher.tls import Credentials

_log = structlog.get_logger()

WARNED_DAYS: Final = 30
DAY_S: Final = 86_400


def days_left(credentials: Credentials, now_ms: int) -> int:
    """Return how many whole days a certificate is good for; negative once it is not."""
    return (credentials.not_after_s - now_ms // 1000) // DAY_S


async def watch_expiry(credentials: Credentials, clock: Clock) -> None:
    """Write into the log, once a day, that the certificate ends within a month; for ever."""
    while True:
        days = days_left(credentials, clock.wall_ms())
        if days < WARNED_DAYS:
            _log.warning(
                "certificate.ends",
                file=credentials.files.cert,
                days_left=days,
                hint="issue a new one with `raftcron certs issue`, and restart",
            )
        await asyncio.sleep(DAY_S)
