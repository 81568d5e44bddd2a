"""One worker's connection: frames in and out of a Unix socket, and the process at its other end.

Theory of operation. The messages that a dead worker left in the socket must be read: they say what
it had begun, and without them that would run twice. So this is a plain socket and not a transport
of asyncio, which drops unread bytes when a write fails. Reading goes on until the end, or until the
process is known to be dead and nothing is left: a process that it forked may hold the socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from launcher.executor.commands.trees import start_ticks
from launcher.worker import wire
from launcher.worker.errors import BadFrame

READ_BYTES: Final = 256 << 10
READS_PER_TURN: Final = 4
"""Then other connections get their turn; a flood of one delays no other."""
_CREDENTIALS: Final = struct.Struct("3i")
_GID: Final = struct.Struct("I")
GROUPS_MAX: Final = 256
"""Groups of one process that count: as many as one answer of getsockopt has room for."""
_SO_PEERGROUPS: Final = 59
"""From Linux 4.13; Python has no name for it."""
_SO_PEERPIDFD: Final = 77
"""From Linux 6.5: proof against an id that is used again; Python 3.11 has no name for it."""


class Peer:
    """The process at the other end of a connection. It may be dead already."""

    def __init__(self, end: socket.socket) -> None:
        """Find the process that connected.

        Raises:
            OSError: it is gone, or cannot be seen from here.
        """
        raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, self.gid = _CREDENTIALS.unpack(raw)
        if self.pid <= 0:
            raise OSError("its process cannot be seen from here; share the process id namespace")
        try:
            self.pidfd = end.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            self.pidfd = os.pidfd_open(self.pid)
        try:
            raw = end.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, GROUPS_MAX * _GID.size)
        except OSError:  # a process that has more supplementary groups counts as one without
            raw = b""
        self.gids = frozenset((self.gid, *(gid for (gid,) in _GID.iter_unpack(raw))))
        self.ticks = start_ticks(self.pid)
        try:
            self._leads_group = os.getpgid(self.pid) == self.pid
        except ProcessLookupError:
            self._leads_group = False

    def kill(self) -> bool:
        """Send SIGKILL to it, and to its group if it leads one; return whether that was allowed."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        # While anybody is left in its group, no other can get the group's id.
        if self._leads_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return True

    def close(self) -> None:
        """Close its pidfd."""
        os.close(self.pidfd)


class WorkerConnection:
    """The messages of one connection. `receive` gets the messages of one read together. `over` is
    called once, when no more will come, with the reason if the other end is to blame."""

    def __init__(
        self,
        end: socket.socket,
        receive: Callable[[list[wire.FromChild]], None],
        over: Callable[[str], None],
    ) -> None:
        end.setblocking(False)
        self._end = end
        self._receive = receive
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._frames = wire.from_child()
        self._out: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self._is_deaf = False
        self._is_paused = False
        self.is_over = False
        self._loop.add_reader(end.fileno(), self._read)

    # ---- out

    def send(self, message: wire.ToChild) -> None:
        """Send a message; never waits. Nothing is sent to a process that is gone."""
        if self._is_deaf or self.is_over:
            return
        frame = wire.encode(message)
        self._out.append(memoryview(frame))
        self.unsent_bytes += len(frame)
        if len(self._out) == 1:
            self._write()

    def _write(self) -> None:
        try:
            while self._out:
                count = self._end.send(self._out[0])
                self.unsent_bytes -= count
                if count < len(self._out[0]):
                    self._out[0] = self._out[0][count:]
                else:
                    self._out.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._write)
            return
        except OSError:
            # It is gone, or going; what it sent before is still to be read.
            self._is_deaf = True
            self._out.clear()
            self.unsent_bytes = 0
        self._loop.remove_writer(self._end.fileno())

    # ---- in

    def pause(self) -> None:
        """Read no more until `resume`."""
        if not self._is_paused and not self.is_over:
            self._is_paused = True
            self._loop.remove_reader(self._end.fileno())

    def resume(self) -> None:
        """Read what has arrived, and go on."""
        if self._is_paused and not self.is_over:
            self._is_paused = False
            self._loop.add_reader(self._end.fileno(), self._read)
            self._read()

    def read_rest(self) -> None:
        """Read all that is left, then close: the process at the other end is dead."""
        while not self.is_over:
            if not self._read_once():
                self.close()

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            if self.is_over or self._is_paused or not self._read_once():
                return

    def _read_once(self) -> bool:
        """Read one piece; return whether there may be more."""
        try:
            received = self._end.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self.close()
            return False
        try:
            messages = self._frames.feed(received)
        except BadFrame as error:
            self.close(str(error))
            return False
        if messages:
            self._receive(messages)
        return len(received) == READ_BYTES

    def close(self, blame: str = "") -> None:
        """End the connection. With `blame` the other end is told why, if it still listens."""
        if self.is_over:
            return
        if blame:
            self.send(wire.Refused(blame))
        self.is_over = True
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())
        self._end.close()
        self._over(blame)
