"""Ends the connections of certificates that are revoked; a new connection is refused anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cron.access import DIGEST_CHARS, RevokedCertificate

LOOK_EVERY_S: Final = 2.0

Disconnect = Callable[[str, str], None]
"""Ends the connections of the executor or replica of that name, for that reason."""


async def watch_revoked(
    revoked: Callable[[], dict[str, RevokedCertificate]], disconnect: dict[str, Disconnect]
) -> None:
    """Disconnect each owner of a certificate that was revoked, by the owner's kind; runs for ever.
    An owner that has another certificate comes back with it."""
    known: frozenset[str] = frozenset()
    while True:
        now = revoked()
        for digest in now.keys() - known:
            one = now[digest]
            if one.kind in disconnect:
                reason = f"its certificate {digest[:DIGEST_CHARS]} was revoked"
                disconnect[one.kind](one.name, reason)
        known = frozenset(now)
        await asyncio.sleep(LOOK_EVERY_S)
