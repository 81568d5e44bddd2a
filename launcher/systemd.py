"""What systemd is told of a process that it has started with `Type=notify`.

The protocol is that of sd_notify(3): datagrams of `KEY=value` lines to a Unix socket. Without
`NOTIFY_SOCKET` nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from typing import Final

from launcher import logs

log = logs.get()

READY: Final = b"READY=1"
ALIVE: Final = b"WATCHDOG=1"
STOPPING: Final = b"STOPPING=1"
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Systemd:
    """The service manager of this process, or nobody.

    `alive_every_s` is how often the manager is told that the event loop runs: half as long as it
    waits for that. None where it does not wait.
    """

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        self._address = address
        self.alive_every_s = watchdog_us / 2_000_000 if address and watchdog_us > 0 else None

    @classmethod
    def of(cls, environment: MutableMapping[str, str], pid: int) -> Systemd:
        """Return the manager that an environment names. Its variables are removed: commands that
        this process starts must not speak for it."""
        address, watchdog, watched = (environment.pop(name, "") for name in _VARIABLES)
        is_watched = watchdog.isdecimal() and watched in ("", str(pid))
        return cls(address, int(watchdog) if is_watched else 0)

    def tell(self, what: bytes) -> None:
        """Send a message. A manager that cannot be reached is logged: the process goes on."""
        if not self._address:
            return
        # A name that begins with @ is one of Linux' abstract sockets.
        at = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(what, at)
        except OSError as error:
            log.warning("systemd.unreachable", error=str(error))

    async def watch(self) -> None:
        """Say that the process is ready, and then, for ever, that its event loop runs."""
        self.tell(READY)
        while self.alive_every_s is not None:
            self.tell(ALIVE)
            await asyncio.sleep(self.alive_every_s)


def here() -> Systemd:
    """Return the manager of this process."""
    return Systemd.of(os.environ, os.getpid())
