"""Who still answers where the cell lives that is to be restored: a running cell needs no other."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cron.config import ReplicaConfig

TIMEOUT_S: Final = 2.0


def living(config: ReplicaConfig) -> list[str]:
    """Return the ids of the replicas at whose addresses somebody listens, in their order."""
    ids = sorted(config.peers)
    with ThreadPoolExecutor(len(ids)) as threads:
        found = threads.map(lambda name: _answers(config.peers[name].raft), ids)
        return [name for name, answers in zip(ids, found, strict=True) if answers]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S).close()
        return True
    return False
