"""The Unix socket at which workers connect, and their connections until they said hello in time.

The socket lies in the executor's directory, which nobody else may enter; with a group, those of
that group may come as far as the socket, and no other file there may be read by them.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from launcher import logs
from launcher.errors import BadConfig
from launcher.executor.handlers.connection import Line, Peer
from launcher.executor.handlers.worker import Worker
from launcher.limits import WORKERS_MAX
from launcher.worker import wire

log = logs.get()

HELLO_WITHIN_S: Final = 10.0
SOCKET: Final = "workers.sock"
_FULL_S: Final = 1.0
"""Before the next connection is taken where this process may open no more files."""


class HandshakeHost(Protocol):
    """Who takes workers in, and hears what they say from then on."""

    def refusal(self, hello: wire.Hello, pid: int) -> str:
        """Why a process that greets so is not fed, or nothing."""

    def join(self, worker: Worker) -> None:
        """Take a worker in."""

    def take(self, worker: Worker, messages: Sequence[wire.FromChild]) -> None:
        """Hear what it says."""

    def over(self, worker: Worker, blame: str) -> None:
        """Its connection is over; `blame` is why, if that is its fault."""


class Handshake:
    """Where connections wait for their Hello."""

    def __init__(self, handshake_host: HandshakeHost) -> None:
        self.handshake_host = handshake_host
        self.visitors: set[Visitor] = set()
        self._noted = ""

    def enter(self, end: socket.socket) -> None:
        """Take a new connection."""
        if len(self.visitors) >= WORKERS_MAX:
            self.note(0, f"{len(self.visitors)} connections wait to say hello already")
            end.close()
            return
        try:
            peer = Peer(end)
        except OSError as error:
            self.note(0, f"it cannot be watched: {error}")
            end.close()
            return
        self.visitors.add(Visitor(self, end, peer))

    def close(self) -> None:
        """Send away all that have said nothing yet."""
        for visitor in list(self.visitors):
            visitor.line.close()

    def note(self, pid: int, text: str) -> None:
        """Log a refusal that a person has to end, once: a worker tries again and again."""
        if text != self._noted:
            self._noted = text
            log.warning("worker.refused", pid=pid, error=text)


class Visitor:
    """One connection, before and after its Hello."""

    def __init__(self, handshake: Handshake, end: socket.socket, peer: Peer) -> None:
        self._handshake = handshake
        self._peer = peer
        self._worker: Worker | None = None
        self.line = Line(end, self._take, self._over)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HELLO_WITHIN_S, self.line.close, "it did not say hello")

    def _take(self, messages: list[wire.FromChild]) -> None:
        if self._worker is None:
            first, messages = messages[0], messages[1:]
            if not isinstance(first, wire.Hello):
                self.line.close("its first message is no hello")
                return
            if refusal := self._handshake.handshake_host.refusal(first, self._peer.pid):
                self.line.close(refusal)
                return
            self._leave_handshake()
            self._worker = Worker(first, self._peer, self.line)
            self._handshake.handshake_host.join(self._worker)
        if any(isinstance(one, wire.Hello) for one in messages):
            self.line.close("it said hello twice")
        elif messages:
            self._handshake.handshake_host.take(self._worker, messages)

    def _over(self, blame: str) -> None:
        if self._worker is not None:
            self._handshake.handshake_host.over(self._worker, blame)
            return
        if blame:
            self._handshake.note(self._peer.pid, blame)
        self._leave_handshake()
        self._peer.close()

    def _leave_handshake(self) -> None:
        self._timer.cancel()
        self._handshake.visitors.discard(self)


class WorkerListener:
    """The socket, listening. `enter` gets each connection, on the loop's thread."""

    def __init__(self, directory: Path, group: str, enter: Callable[[socket.socket], None]) -> None:
        """Listen at `directory`/workers.sock; `group` is empty for none.

        Raises:
            BadConfig: that cannot be, or there is no such group.
        """
        self._enter = enter
        self._path = directory / SOCKET
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._listen(directory)
            if group:
                _open_to(directory, group)
        except (OSError, KeyError) as error:
            self._socket.close()
            text = f"group {group} does not exist" if isinstance(error, KeyError) else str(error)
            raise BadConfig(
                f"socket {self._path} for workers: {text}",
                "mend that, or set `workers = false` where no worker is to be served",
            ) from error
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _listen(self, directory: Path) -> None:
        # The lock of the directory is ours: whoever made the file that is there is dead.
        self._path.unlink(missing_ok=True)
        # Through the directory's descriptor: an address has 108 bytes at most, a path has not.
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.close(folder)
        self._path.chmod(0o660)
        self._socket.setblocking(False)
        self._socket.listen(WORKERS_MAX)

    def _accept(self) -> None:
        try:
            end, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("worker.refused", error=f"cannot be let in: {error.strerror}")
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(_FULL_S, self._again)
            return
        self._enter(end)

    def _again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Let nobody in any more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._path.unlink(missing_ok=True)


def _open_to(directory: Path, group: str) -> None:
    number = grp.getgrnam(group).gr_gid
    for path in directory.glob("journal*"):
        path.chmod(0o600)
    os.chown(directory / SOCKET, -1, number)
    os.chown(directory, -1, number)
    directory.chmod(0o710)
