"""One HTTP connection: uvicorn's protocol, with bounds of time and with the peer's certificate.

uvicorn ends connections that are idle after an answer. It has no bound for a client that opens a
connection and sends nothing, sends its headers byte by byte, or does not read its answer.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cron.web.exchange import PEER
from cron.web.problems import Answer, Refusal, refused
from cron.web.turns import Throttle
from launcher.identity import Identity, certificate_digest, only_identity

THROTTLE: Final = "throttle"
"""The key of the `Throttle` that all connections share, in what a protocol is given."""
HEAD_S: Final = 10.0
"""How long a client may take from the first moment of a connection, or from the first byte of a
request, to the end of its headers."""
IDLE_S: Final = 60
"""How long a connection stays open after an answer."""
WRITE_S: Final = 20.0
"""How long a client may read nothing of an answer that waits for it."""


class Connection(H11Protocol):
    """A connection of `server_state.connections`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.active_s = self.loop.time()
        self._throttle: Throttle = app_state[THROTTLE]
        self._arrived = b""
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """End the connection at once, whatever it still has to send."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who shows a certificate, and wait for a request."""
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.app_state = {PEER: _proven(tls) if tls is not None else (None, "")}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head, self._write):
            if timer is not None:
                timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Keep what arrived until its turn; no more arrives before that."""
        self._arrived += data
        self.transport.pause_reading()
        self._throttle.add(self._read)

    def _read(self) -> None:
        """Read what arrived; a request has to be complete in time."""
        data, self._arrived = self._arrived, b""
        if not data or self.transport.is_closing():
            return  # to h11 nothing is the end of the connection, at which uvicorn never stops
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self.active_s = self.loop.time()
        super().data_received(data)
        if self.is_idle and not self.transport.is_closing():
            if self.timeout_keep_alive_task is None:
                self._await_head()
        else:
            self._end_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.active_s = self.loop.time()
        self._end_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        if self._write is None:
            self._write = self.loop.call_later(WRITE_S, self.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self._write is not None:
            self._write.cancel()
            self._write = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has headers that are too large, and end the connection."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        code = "headers" if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else "not_http"
        self._refuse(refused(Refusal(status, code, str(error or msg).lower())))

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_S, self._give_up)

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        if self._arrived:  # it waits for us
            self._await_head()
            return
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()  # it sent nothing
            return
        text = f"the headers took longer than {HEAD_S:.0f} s"
        self._refuse(refused(Refusal(408, "timeout", text)))

    def _refuse(self, answer: Answer) -> None:
        """Send an answer that the application knows nothing of, where none has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self.is_idle:
            headers = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
            head = h11.Response(
                status_code=answer.status, headers=[*headers, ("connection", "close")]
            )
            for event in (head, h11.Data(data=answer.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _proven(tls: ssl.SSLObject) -> tuple[Identity | None, str]:
    """Return the identity in the peer's certificate, and the certificate's digest; None and "" if
    it showed none."""
    shown: Any = tls.getpeercert() or {}
    names = shown.get("subjectAltName", ())
    der = tls.getpeercert(binary_form=True)
    digest = certificate_digest(der) if der is not None else ""
    return only_identity(value for kind, value in names if kind == "URI"), digest
