"""Whom a cell with certificates believes in object storage: its own replicas."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cron.clock import Clock
from launcher.identity import REPLICA, SCHEME
from launcher.renewal import Current
from snapshots.signed import Credentials, Trust


def trust_of(
    cell: str,
    current: Current,
    clock: Clock,
    *,
    revoked: Callable[[], Collection[str]] = tuple,
    takes_unsigned: bool,
) -> Trust:
    """Return the trust of a replica: it signs with the certificate that it has at that time."""

    def credentials() -> Credentials:
        ours = current()
        return Credentials(ours.authority, ours.certificate, ours.key)

    signers = f"{SCHEME}{cell}/{REPLICA}/"
    return Trust(credentials, signers, clock.wall_ms, revoked, takes_unsigned)
