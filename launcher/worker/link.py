"""The child's end of the socket: frames in, frames out, and a bell that any thread may ring."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Final

from launcher.worker.wire import FromChild, ToChild, encode, to_child

_READ_BYTES: Final = 256 << 10


class LinkLost(Exception):
    """The connection ended: the executor is gone, or does not want this child."""


class Bell:
    """Wakes the thread that polls, once for any number of rings."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._has_rung = False

    def ring(self) -> None:
        """Wake it; from any thread, and from a signal handler."""
        if not self._has_rung:
            self._has_rung = True
            os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        """Have it ring again from now on; look afterwards at what was put down before a ring."""
        # In this order: who rings in between does not write, and need not, since the one who hears
        # looks afterwards. Who set the flag may not have written yet: that wakes once more.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._has_rung = False


class Link:
    """A connected socket that never blocks."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._frames = to_child()
        self._out = bytearray()
        self.fd = connected.fileno()

    @property
    def is_sent(self) -> bool:
        """Whether all that was said is with the kernel, and so survives this process."""
        return not self._out

    @property
    def mask(self) -> int:
        """What to poll for."""
        return select.EPOLLIN | (select.EPOLLOUT if self._out else 0)

    def receive(self) -> list[ToChild]:
        """Return the messages that have arrived.

        Raises:
            LinkLost: nothing more will.
            BadFrame: what arrived is no message.
        """
        try:
            received = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise LinkLost(str(error)) from error
        if not received:
            raise LinkLost("the executor closed it")
        return self._frames.feed(received)

    def say(self, message: FromChild) -> None:
        """Put a message behind what is to be sent; `flush` sends it."""
        self._out += encode(message)

    def flush(self) -> None:
        """Send what the socket takes.

        Raises:
            LinkLost: it takes nothing any more.
        """
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise LinkLost(str(error)) from error
            del self._out[:sent]

    def close(self) -> None:
        """Close the socket; what was sent is still delivered."""
        self._socket.close()
