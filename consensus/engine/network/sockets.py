"""The Network of a real replica: non-blocking sockets in one selector, plain or with TLS 1.3.

Everything happens in `poll`, in the tick thread, except lookups of names (`lookups`) and the
handshakes of incoming connections (`handshakes`), which have threads of their own. Without TLS,
only loopback addresses are used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from consensus.config import TlsFiles, parse_address
from consensus.engine.network.handshakes import Handshakes
from consensus.engine.network.net import Connection, Owner
from consensus.engine.network.streams import Stream, Streams
from consensus.engine.network.tls import Contexts
from consensus.errors import BadConfig, ConsensusError

BACKLOG: Final = 1_024
"""The backlog of the listening socket."""
CALLERS_MAX: Final = 8
"""How many incoming connections one `poll` accepts: half of STRANGERS_MAX, so that those of the
previous poll are read before they may have to be closed.
"""
FOUND_WITHIN_S: Final = 5.0
"""How long the start waits for the lookup of the listen address."""


class SocketNetwork(Streams):
    """A Network of TCP connections; it works only during `poll`."""

    def __init__(
        self,
        tls: TlsFiles | None,
        cell: str,
        is_revoked: Callable[[str], bool] = lambda digest: False,
    ) -> None:
        """Read the certificates, if there are any; `is_revoked` as in `tls.Contexts`.

        Raises:
            BadConfig: see `tls.Contexts`.
        """
        contexts = Contexts(tls, cell, self.mono, is_revoked) if tls is not None else None
        super().__init__(contexts)
        self._handshakes: Handshakes | None = None
        self._accept: Callable[[Connection], None] | None = None

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        """Pass every incoming connection to `accept`. The lookup of a name may take 5 s.

        Raises:
            ConsensusError: it cannot listen on the address.
        """
        host, port = parse_address(address, is_tls=self.contexts is not None)
        listener: socket.socket | None = None
        try:
            ip = self._wait_for(host)
            listener = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((ip, port))
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            what = (error.strerror or str(error)).lower()
            raise ConsensusError(f"cannot listen on {address}: {what}") from error
        self._accept = accept
        self._handshakes = Handshakes(self, listener)

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        """Start to connect to the replica `expected` at `address`."""
        stream = Stream(self, owner, expected)
        self.streams.add(stream)
        try:
            host, port = parse_address(address, is_tls=self.contexts is not None)
        except BadConfig as error:
            stream.fail_soon(str(error))
        else:
            stream.dial(host, port)
        return stream

    def close(self) -> None:
        """Close everything at once, without further events."""
        if self._handshakes is not None:
            self._handshakes.close()
        super().close()

    def take_callers(self) -> None:
        """Accept connections that have passed their handshakes."""
        if self._handshakes is None or self._accept is None:
            return
        if self._handshakes.failure is not None:
            raise self._handshakes.failure
        for _ in range(min(CALLERS_MAX, len(self._handshakes.ready))):
            sock, proven = self._handshakes.ready.popleft()
            stream = Stream(self)
            self.streams.add(stream)
            stream.accepted(sock, proven)
            self._accept(stream)
            stream.greet()
        if self._handshakes.ready:
            self.soon.append(lambda: None)  # the next poll does not wait

    def _wait_for(self, host: str) -> str:
        until = self.mono() + FOUND_WITHIN_S
        while (ip := self.lookups.find(host)) is None:
            if self.mono() > until:
                raise OSError(f"{host} is not found in {FOUND_WITHIN_S:g} s")
            self.selector.select(0.1)
            self.take_wake_up(0)
        return ip
