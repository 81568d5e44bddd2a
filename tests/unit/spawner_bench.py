"""A spawner process, and what a test says to it and hears from it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.clock import boot_ms, wall_ms
from launcher.executor.commands.children import _PROGRAM, _ROOT, decode, encode
from launcher.executor.commands.trees import SPAWNER_MARK

LONG_MS = 600_000
LEDGER = "66666666-2222-4333-8444-555555555555"
"""No other test ends what an executor with this ledger has started."""


class Bench:
    """A spawner process and the executor's end of its socket."""

    def __init__(self, directory: Path, slots: int = 64) -> None:
        self.directory = directory
        self.control, theirs = socket.socketpair()
        self.control.settimeout(60)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(slots)],
                stdin=theirs.fileno(),
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin", "SECRET": "of the spawner", SPAWNER_MARK: LEDGER},
            )
        self.news: list[list[Any]] = []
        self.send(["lease", boot_ms() + LONG_MS])

    @property
    def spawner(self) -> int:
        """The process that starts commands: the first child of its reaper."""
        self.send(["ping"])
        self.await_pong()
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def send(self, *messages: list[Any]) -> None:
        self.control.sendall(encode(list(messages)))

    def order(self, name: str, command: str, **fields: Any) -> dict[str, Any]:
        return {
            "name": name,
            "argv": ["/bin/sh", "-c", command],
            "env": {"PATH": "/usr/bin:/bin"},
            "cwd": str(self.directory),
            "stdin": "",
            "login": None,
            "timeout_ms": 0,
            "guarded": False,
            "not_after_ms": wall_ms() + LONG_MS,
            "output": str(self.directory / f"{name}.out"),
            "output_bytes_max": 1 << 16,
            "term_grace_ms": 10_000,
            **fields,
        }

    def start(self, name: str, command: str, **fields: Any) -> None:
        self.send(["start", self.order(name, command, **fields)])

    def start_deaf(self, name: str, **fields: Any) -> None:
        """Start a command that ignores TERM, and return once it does."""
        os.mkfifo(self.directory / "deaf")
        self.start(name, "trap '' TERM; echo > deaf; sleep 60", **fields)
        (self.directory / "deaf").read_text()

    def wait(self, verb: str, name: str) -> list[Any]:
        """Return the first such news, what follows its name; `verb` may be several words."""
        while True:
            for message in self.news:
                if message[0] in verb.split() and message[1] == name:
                    return message[2:]
            self._read()

    def await_pong(self) -> None:
        """Return once a ping more was answered."""
        count = self.news.count(["pong"])
        while self.news.count(["pong"]) == count:
            self._read()

    def _read(self) -> None:
        size = int.from_bytes(self._exactly(4), "big")
        self.news += decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.control.recv(size - len(data))
            assert piece, "the spawner is gone"
            data += piece
        return data

    def output(self, name: str) -> str:
        path = self.directory / f"{name}.out.new"
        return path.read_bytes()[8:].decode() if path.exists() else ""

    def close(self) -> None:
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def await_end(pid: int, wait_ms: int = 60_000) -> None:
    """Return once a process is gone; a pidfd becomes readable then."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([pidfd], [], [], wait_ms / 1000)
    os.close(pidfd)
    assert ready, f"process {pid} still runs"
