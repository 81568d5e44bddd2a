"""Warns before a certificate expires: a replica may run longer than its certificate is valid."""

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
    """Return for how many whole days a certificate is valid; negative once it has expired."""
    return (credentials.not_after_s - now_ms // 1000) // DAY_S


async def watch_expiry(current: Current, clock: Clock) -> None:
    """Log once a day that the certificate expires within a month; runs for ever."""
    while True:
        credentials = current()
        days = days_left(credentials, clock.wall_ms())
        if days < WARNED_DAYS:
            _log.warning(
                "certificate.ends",
                file=credentials.files.cert,
                days_left=days,
                hint="`raftcron certs issue` makes a new one, which is loaded without a restart",
            )
        await asyncio.sleep(LOOK_EVERY_S)
