"""Ports for servers of tests: free now, and drawn by nobody else while their server is not up.

A port of the range from which the kernel takes those of outgoing connections may be gone before a
server listens on it, or while a server that is to come back is down. So these are below it. Each
process draws from a part of its own, whatever run of the tests it belongs to: it holds the lock of
that part until it ends. It draws no port again before it has drawn all others: a port whose server
is not up yet looks free.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

HOST = "127.0.0.1"
_FIRST, _COUNT = 10_000, 20_000
PART: Final = 500
"""Ports of one part. A cell has ports behind the first one, so the last ones are not drawn."""
_DRAWN: Final = PART - 100
_STEP: Final = 97
"""Further than the last port of a cell is from its first one, and no divisor of `_DRAWN`."""
_STEPS = itertools.count(random.SystemRandom().randrange(_DRAWN))


@cache
def _part(_pid: int) -> int:
    """The first port of this process's part; of any part if all are taken."""
    folder = Path(tempfile.gettempdir()) / f"raftcron-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    parts = list(range(_FIRST, _FIRST + _COUNT, PART))
    random.SystemRandom().shuffle(parts)
    for part in parts:
        lock = os.open(folder / str(part), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return part  # the system lets go of the lock when the process ends
    return parts[0]


def draw() -> int:
    """A port of this process's part; it may be in use."""
    return _part(os.getpid()) + next(_STEPS) * _STEP % _DRAWN


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
