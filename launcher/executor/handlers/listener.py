"""The Unix socket at which workers connect.

The socket is in the executor's directory, which no other user may enter. With a group, members of
that group may open the socket, and read no other file there.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from launcher import logs
from launcher.errors import BadConfig
from launcher.limits import WORKERS_MAX

log = logs.get()

SOCKET: Final = "workers.sock"
_FULL_S: Final = 1.0
"""How long no connection is accepted after this process could open no more files."""


class WorkerListener:
    """The listening socket. `enter` gets each connection, on the loop's thread."""

    def __init__(self, directory: Path, group: str, enter: Callable[[socket.socket], None]) -> None:
        """Listen at `directory`/workers.sock; `group` is empty for none.

        Raises:
            BadConfig: there can be no socket, or there is no such group.
        """
        self._enter = enter
        self._path = directory / SOCKET
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            # The lock of the directory is ours, so the process that made an older file is dead.
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
            if group:
                number = grp.getgrnam(group).gr_gid
                for path in directory.glob("journal*"):
                    path.chmod(0o600)
                os.chown(self._path, -1, number)
                os.chown(directory, -1, number)
                directory.chmod(0o710)
        except (OSError, KeyError) as error:
            self._socket.close()
            text = f"group {group} does not exist" if isinstance(error, KeyError) else str(error)
            raise BadConfig(
                f"socket {self._path} for workers: {text}",
                "mend that, or set `workers = false` where no worker is to be served",
            ) from error
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            end, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("worker.refused", error=f"cannot be let in: {error.strerror}")
            self._loop.remove_reader(self._socket.fileno())
            self._loop.call_later(_FULL_S, self._resume)
            return
        self._enter(end)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._path.unlink(missing_ok=True)
