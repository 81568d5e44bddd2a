"""Real processes under a test's control."""

from __future__ import annotations

import time


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
