"""One HTTP request and its answer, above ASGI: headers, a bounded body, a problem or rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import Any, Final, TypeVar

from starlette.types import Receive, Scope, Send

from cron import limits
from cron.api.admission import Shown
from cron.api.reading import AUTHORIZATION
from cron.api.rpc import encode
from cron.web.problems import Answer, Refusal
from cron.web.requests import JSON

BODY_S: Final = 30.0
"""How long a client may take to send a body."""
STRANGER_BODY_S: Final = 5.0
"""The same, for a client whose token is not known here."""
RECHECK_S: Final = 2.0
"""How often it is asked whether the client of a stream may still see it."""
NDJSON: Final = "application/x-ndjson"
DISCARD_BYTES: Final = 1 << 20
DISCARD_S: Final = 1.0
"""How much of a body is read that is not wanted, and for how long."""
PIECE_BYTES: Final = 256 << 10
"""A long answer is given to the connection in such pieces, so that a slow reader is waited for."""
PEER: Final = "peer"
"""The key of a connection's state that has the identity in its certificate, and its digest."""
_ALWAYS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


T = TypeVar("T")


class Bodies:
    """Counts the bytes of all bodies that are held at one time."""

    def __init__(self) -> None:
        self.held = 0

    def take(self, count: int) -> None:
        """Count the bytes of a body that arrives.

        Raises:
            Refusal: there are too many already.
        """
        if self.held + count > limits.HTTP_BODIES_BYTES_MAX:
            raise Refusal(503, "busy", "too many large requests at once", "try again shortly")
        self.held += count

    def release(self, count: int) -> None:
        """Count bytes no more."""
        self.held -= count


class Exchange:
    """One request; it is answered once."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, wall_ms: Callable[[], int]
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.is_begun = False
        self._receive = receive
        self._send = send
        self._wall_ms = wall_ms
        self._headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            # Twice the same header is one with a list, and none that is read here has a list.
            before = self._headers.get(name)
            self._headers[name] = value if before is None else before + b", " + value
        self._has_body = self.header("content-length") not in ("", "0") or bool(
            self.header("transfer-encoding")
        )

    def header(self, name: str, absent: str = "") -> str:
        """Return the value of a header, `absent` where there is none."""
        value = self._headers.get(name.encode())
        return absent if value is None else value.decode("latin-1").strip()

    def check_head(self) -> None:
        """Check that the request line and the headers are small (uvicorn bounds only those that do
        not arrive at once), and that they say in one way how long the body is: what a proxy takes
        for the body must not be another request here. The same holds for the host: a request line
        with a whole URL names a second one.

        Raises:
            Refusal: they are too large, say two lengths, or ask for something else than a path.
        """
        if not self.scope["raw_path"].startswith(b"/"):
            text = "the request line asks for something else than a path"
            hint = "begin with a slash; a proxy must not pass on a whole URL"
            raise Refusal(400, "not_http", text, hint, connection="close")
        if self.header("content-length") and self.header("transfer-encoding"):
            text = "the request has both content-length and transfer-encoding"
            raise Refusal(400, "not_http", text, "send one of them", connection="close")
        pairs = [*self.scope["headers"], (self.scope["raw_path"], self.scope["query_string"])]
        if sum(len(one) + len(other) for one, other in pairs) > limits.HTTP_HEAD_BYTES_MAX:
            text = f"the headers are larger than {limits.HTTP_HEAD_BYTES_MAX} bytes"
            raise Refusal(431, "headers", text, connection="close")

    async def body(
        self, bodies: Bodies, most: int = limits.HTTP_BODY_BYTES_MAX, *, is_stranger: bool = False
    ) -> bytes:
        """Return the body of the request, `most` bytes at most; of a stranger it has to come soon.
        The caller releases its bytes from `bodies`.

        Raises:
            Refusal: it is too large, or comes too slowly.
        """
        if not self._has_body:
            return b""
        within_s = STRANGER_BODY_S if is_stranger else BODY_S
        length = self.header("content-length")
        if length.isdecimal() and int(length) > most:
            raise _too_large(most)
        content = bytearray()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "incomplete", "the client went away")
                    piece = message.get("body", b"")
                    if len(content) + len(piece) > most:
                        raise _too_large(most)
                    bodies.take(len(piece))
                    content += piece
                    if not message.get("more_body"):
                        self._has_body = False
                        return bytes(content)
        except TimeoutError:
            bodies.release(len(content))
            text = f"the body took longer than {within_s:.0f} s"
            raise Refusal(408, "timeout", text) from None
        except BaseException:
            bodies.release(len(content))
            raise

    def check_json(self) -> None:
        """Check that the body is said to be JSON.

        Raises:
            Refusal: it is said to be something else.
        """
        if not self._has_body:
            return
        kind = self.header("content-type").partition(";")[0].strip().lower()
        if kind != JSON:
            said = repr(kind[:80]) if kind else "no content type"
            text = f"the body has {said}, not {JSON}"
            hint = f"send the header content-type: {JSON}"
            raise Refusal(415, "content_type", text, hint, accept=JSON)

    async def answer(self, answer: Answer) -> None:
        """Send a whole answer."""
        headers = {**answer.headers}
        if answer.status != 204:
            headers["content-length"] = str(len(answer.body))
        await self._begin(answer.status, headers)
        body = answer.body
        for first in range(PIECE_BYTES, len(body), PIECE_BYTES):
            piece = body[first - PIECE_BYTES : first]
            await self._send_piece(piece)
        rest = len(body) % PIECE_BYTES or min(len(body), PIECE_BYTES)
        await self._send({"type": "http.response.body", "body": body[len(body) - rest :]})

    async def rows(
        self,
        pages: AsyncIterator[list[Any]],
        headers: dict[str, str],
        check: Callable[[], None],
    ) -> None:
        """Send rows as one JSON array, page by page, or one a line where the client accepts
        NDJSON. An error before the first row is raised as if nothing was sent. It ends without an
        error when the client goes away. `check` is called every few seconds, however many rows
        there are, and raises where the client may not see more."""
        by_line = NDJSON in self.header("accept")
        kind = NDJSON if by_line else JSON
        gone = asyncio.ensure_future(self._gone())
        check = _every(RECHECK_S, check)
        try:
            page = await _before(gone, pages, check)
            await self._begin(200, {"content-type": kind, **headers})
            before = b"" if by_line else b"["
            while page is not None:
                if page:
                    if by_line:
                        content = b"".join(encode(row) + b"\n" for row in page)
                    else:
                        content = encode(page)[1:-1]
                    await self._send_piece(before + content)
                    before = b"" if by_line else b","
                page = await _before(gone, pages, check)
        finally:
            gone.cancel()
        end = b"" if by_line else b"]" if before == b"," else b"[]"
        await self._send({"type": "http.response.body", "body": end})

    async def stream(
        self, kind: str, pieces: AsyncIterator[bytes], check: Callable[[], None]
    ) -> None:
        """Send pieces as they come, until the client goes away. `check` is as for `rows`."""
        gone = asyncio.ensure_future(self._gone())
        check = _every(RECHECK_S, check)
        try:
            await self._begin(200, {"content-type": kind})
            while (piece := await _before(gone, pieces, check)) is not None:
                await self._send_piece(piece)
        finally:
            gone.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    async def _discard(self) -> None:
        """Read a small body that nobody wants: many clients read no answer before they have sent
        it."""
        rest = DISCARD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while rest > 0:
                    message = await self._receive()
                    rest -= len(message.get("body", b""))
                    if not message.get("more_body"):
                        self._has_body = False
                        return

    async def _send_piece(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _gone(self) -> None:
        """Return once the client has gone away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.is_begun = True
        if self._has_body and not self.header("expect"):
            await self._discard()
        listed = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        listed += [pair for pair in _ALWAYS if pair[0].decode() not in headers]
        listed.append((b"date", formatdate(self._wall_ms() / 1000, usegmt=True).encode()))
        if self._has_body:  # not read: what follows on this connection is not the next request
            listed.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": listed})


def _too_large(most: int) -> Refusal:
    text = f"the body is larger than {most} bytes"
    hint = "send it in parts; `raftcron apply` takes larger crontabs"
    return Refusal(413, "too_large", text, hint)


def _every(seconds: float, check: Callable[[], None]) -> Callable[[], None]:
    """Return a check that is made once in so many seconds, however often it is called."""
    time = asyncio.get_running_loop().time
    next_s = time() + seconds

    def check_if_due() -> None:
        nonlocal next_s
        if time() >= next_s:
            check()
            next_s = time() + seconds

    return check_if_due


async def _before(
    gone: asyncio.Future[None], pages: AsyncIterator[T], check: Callable[[], None]
) -> T | None:
    """Return the next page or piece; None where there is none, or the client has gone before."""
    step: asyncio.Future[T | None] = asyncio.ensure_future(anext(pages, None))
    try:
        both: set[asyncio.Future[Any]] = {gone, step}
        once = asyncio.FIRST_COMPLETED
        while not (await asyncio.wait(both, timeout=RECHECK_S, return_when=once))[0]:
            check()
        check()
        if step.done():
            return await step
        return None
    finally:
        step.cancel()


def shown_by(exchange: Exchange) -> Shown:
    """Return what the caller of a request shows: a certificate, a token, an address."""
    identity, digest = exchange.scope.get("state", {}).get(PEER, (None, ""))
    return Shown(identity, exchange.header(AUTHORIZATION), address_of(exchange), digest)


def address_of(exchange: Exchange) -> str:
    """Return from where a request comes."""
    host, port = exchange.scope.get("client") or ("", 0)
    return f"http:{host}:{port}"
