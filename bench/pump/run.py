"""What one run of one queue told, and how a program that is measured beside ours is started."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import cpu_us
from bench.pump.fairness import Fairness

START_S: Final = 30.0
STOP_S: Final = 10.0
POLL_S: Final = 0.02
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: tasks that were reserved and completed in `seconds`, and what they cost.

    `server_us` and `client_us` are CPU time per task, `client_us` None where both are one.
    `transactions` are what the client counted, None where it counts tasks. `strangers` is how many
    cores were busy meanwhile with what does not belong to the bench.
    """

    name: str
    batch: int
    clients: int
    tasks: int
    seconds: float
    server_us: float
    client_us: float | None
    fairness: Fairness
    transactions: int | None = None
    fdatasync_per_second: int = 0
    strangers: float = 0.0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.tasks / self.seconds


class Cores:
    """What all processes of this machine use, beside those of the bench, since this was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._machine_us, self._ours_us = machine_us(), cpu_us(os.getpid())

    def strangers(self) -> float:
        """Return how many cores others kept busy, on the average."""
        machine = machine_us() - self._machine_us
        ours = cpu_us(os.getpid()) - self._ours_us
        return max(0.0, (machine - ours) / 1e6 / (time.monotonic() - self._began))


def machine_us(stat: str | None = None) -> int:
    """Return the CPU time of this machine that was not idle, stolen by its host or waited for a
    disk, from the first line of /proc/stat (proc(5))."""
    line = Path("/proc/stat").read_text().partition("\n")[0] if stat is None else stat
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq) * 1_000_000 // _TICKS_PER_S


class Absent(Exception):
    """A program that is not installed here; the message says which package has it."""


@contextmanager
def own_folder(login: str | None = None) -> Iterator[Path]:
    """A new folder that belongs to a user and is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-") as name:
        if login is not None:
            account = pwd.getpwnam(login)
            os.chown(name, account.pw_uid, account.pw_gid)
        yield Path(name)


@contextmanager
def running(
    argv: list[str], log: Path, answers: Callable[[], bool], stop: int = signal.SIGTERM
) -> Iterator[int]:
    """A server, from when it answers until the end: its process id.

    Raises:
        RuntimeError: it ended, or did not answer in time; with what it said last.
    """
    with (
        log.open("wb") as out,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as server,
    ):
        try:
            deadline = time.monotonic() + START_S
            while not answers():
                if server.poll() is not None or time.monotonic() > deadline:
                    told = log.read_text(errors="replace")[-2_000:]
                    raise RuntimeError(f"{argv[0]} does not answer: {told}")
                time.sleep(POLL_S)
            yield server.pid
        finally:
            server.send_signal(stop)
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
