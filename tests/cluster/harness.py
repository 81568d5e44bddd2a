"""Real processes under a test's control."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from cron.dev.files import HOST, Ports
from cron.dev.ports import taken


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_gone(pid: int, within_s: float = 10) -> None:
    """Return once a process has ended."""
    deadline = time.monotonic() + within_s
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there after {within_s} s"
        time.sleep(0.01)


def wait_until(condition: Callable[[], Any], within_s: float = 15) -> Any:
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{condition} is not true after {within_s} s"
        time.sleep(0.02)
    return value


def free_ports() -> Ports:
    """Six free ports as `dev` uses them: P, P+1, P+2 and P+10 to P+12."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            first = probe.getsockname()[1]
        # Below the range from which the kernel takes ports for connections, where it can be had.
        ports = Ports.from_first(10_000 + first % 20_000)
        if not taken(ports):
            return ports
