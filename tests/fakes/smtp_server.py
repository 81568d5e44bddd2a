"""A real SMTP server, aiosmtpd, on a loopback address: it keeps what it accepts, and answers as a
test says."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any, NamedTuple

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Received(NamedTuple):
    """A mail that the server accepted."""

    sender: str
    to: list[str]
    message: EmailMessage
    raw: bytes
    user: str

    @property
    def text(self) -> str:
        """Its body."""
        return str(self.message.get_content()).replace("\r\n", "\n")


class SmtpServer:
    """Accepts mail, but for what `refused` says of a recipient, and `answer` of all mail.

    `silent`, once set, makes it answer no mail until it is cleared.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        starttls: ssl.SSLContext | None = None,
        users: dict[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.received: list[Received] = []
        self.refused: dict[str, str] = {}
        """Answers to recipients, such as `550 no such user`."""
        self.answer = "250 OK"
        """The answer to a mail that was read whole."""
        self.hurried = threading.Event()
        """A mail is answered at once while this is set."""
        self.hurried.set()
        self.asked = 0
        """Mails that it began to read."""
        self._tls = tls
        self._users = users
        self._starttls = starttls
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._run, name="smtp-server", daemon=True)
        self._thread.start()
        self._started.wait(10)

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1."""
        return self._port

    @property
    def place(self) -> str:
        """Its host and port, as a configuration has them."""
        return f"127.0.0.1:{self._port}"

    def close(self) -> None:
        """End it; its connections are cut."""
        self.hurried.set()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # ---- what aiosmtpd calls

    async def handle_RCPT(  # noqa: N802 - its name
        self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - its name
        self, server: Any, session: Session, envelope: Envelope
    ) -> str:
        self.asked += 1
        await asyncio.get_running_loop().run_in_executor(None, self.hurried.wait, 30)
        raw = bytes(envelope.content or b"")
        if self.answer.startswith("2"):
            message = email.message_from_bytes(raw, policy=email.policy.default)
            user = session.auth_data.login.decode() if session.auth_data else ""
            to = list(envelope.rcpt_tos)
            self.received.append(Received(str(envelope.mail_from), to, message, raw, user))
        return self.answer

    # ---- its thread

    def _authenticated(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> AuthResult:
        is_known = isinstance(data, LoginPassword) and (
            (self._users or {}).get(data.login.decode()) == data.password.decode()
        )
        return AuthResult(success=is_known, auth_data=data, handled=False)

    def _protocol(self) -> SMTP:
        return SMTP(
            self,
            hostname="mail.test",
            tls_context=self._starttls,
            require_starttls=self._starttls is not None,
            authenticator=self._authenticated if self._users else None,
            auth_required=bool(self._users) and self._starttls is not None,
            auth_require_tls=self._starttls is not None,
            loop=self._loop,
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            self._loop.create_server(self._protocol, "127.0.0.1", self._port, ssl=self._tls)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def smtp_server(**said: Any) -> Iterator[SmtpServer]:
    """A server, while this is open."""
    server = SmtpServer(**said)
    try:
        yield server
    finally:
        server.close()
