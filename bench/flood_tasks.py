"""The handlers of bench.flood, of two apps: one is flooded, the other is not.

`raftcron worker bench.flood_tasks:flooded`, and `:other`: each worker is a group of its own.
"""

from __future__ import annotations

import time
from typing import Final

from launcher.worker.registry import Registry

LENGTH_S: Final = 0.02

flooded: Final = Registry()
other: Final = Registry()


@flooded.handler("flooded")
def _flooded() -> None:
    """Take a while, as waiting for somebody else does."""
    time.sleep(LENGTH_S)


@other.handler("other")
def _other() -> None:
    """Take as long."""
    time.sleep(LENGTH_S)
