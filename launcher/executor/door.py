"""The Unix socket at which the workers of this host come in.

It lies in the executor's directory, which nobody else may enter; with a group, those of that group
may come as far as the socket, and no other file there may be read by them.
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
"""Before the next connection is taken where this process may open no more files."""


class Door:
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
