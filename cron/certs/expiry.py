"""A certificate's end, told of in time: a replica runs for longer than its certificate is good."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from cron.clock import Clock
from launcher.renewal import Current
from launcher.tls import Credentials

_log = structlog.get_logger()

WARNED_DAYS: Final = 30
DAY_S: Final = 86_400
LOOK_EVERY_S: Final = DAY_S


def days_left(credentials: Credentials, now_ms: int) -> int:
    """Return how many whole days a certificate is good for; negative once it is not."""
    return (credentials.not_after_s - now_ms // 1000) // DAY_S


async def watch_expiry(current: Current, clock: Clock) -> None:
    """Write into the log, once a day, that the certificate ends within a month; for ever."""
    while True:
        credentials = current()
        days = days_left(credentials, clock.wall_ms())
        if days < WARNED_DAYS:
            _log.warning(
                "certificate.ends",
                file=credentials.files.cert,
                days_left=days,
                hint="`raftcron certs issue` makes a new one, which is taken without a restart",
            )
        await asyncio.sleep(LOOK_EVERY_S)
