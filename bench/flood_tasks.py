"""The handlers of bench.flood, of one app: one is flooded, the other is not.

`raftcron worker bench.flood_tasks:shared`: both share a group of workers.
"""

from __future__ import annotations

import time
from typing import Final

from launcher.worker.registry import Registry

LENGTH_S: Final = 0.02

shared: Final = Registry()


@shared.handler("flooded")
def _flooded() -> None:
    """Take a while, as waiting for somebody else does."""
    time.sleep(LENGTH_S)


@shared.handler("other")
def _other() -> None:
    """Take as long."""
    time.sleep(LENGTH_S)
