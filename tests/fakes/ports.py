"""Ports for servers of tests: free now, and drawn by nobody else while their server is not up.

A port of the range from which the kernel takes those of outgoing connections may be gone before a
server listens on it, or while a server that is to come back is down. So these are below it, and
the processes of one run of the tests draw from parts of their own. A process draws no port again
before it has drawn all others: a port whose server is not up yet looks free.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from typing import Final

HOST = "127.0.0.1"
_FIRST, _COUNT = 10_000, 20_000
_STEP: Final = 97
"""Further than the last port of a cell is from its first one, and a divisor of no part's size."""
_STEPS = itertools.count(random.SystemRandom().randrange(_COUNT))


def draw() -> int:
    """A port of this process's part; it may be in use."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = _COUNT // workers
    return _FIRST + number * width + next(_STEPS) * _STEP % width


def free_ports(count: int) -> list[int]:
    """So many different ports on which nobody listens."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = draw()
            probe = held.enter_context(socket.socket())
            # As servers do: connections that are over are no reason not to listen.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                probe.listen(1)
                ports.append(port)
        return ports


def free_address() -> str:
    """An address on which nobody listens."""
    return f"{HOST}:{free_ports(1)[0]}"
