"""The target `http`: a launch is one request, and its answer is the launch's end.

Theory of operation. The standard library's client parses the protocol; the connection is ours
(`connecting.py`), because it has to go to the address that was checked. Each request has a
connection of its own. The status line decides: what comes after it is read for a moment, up to a
bound, and may be cut short, since the other side has said by then what it did.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import socket
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from launcher.address import is_loopback
from launcher.clock import boot_ms, wall_ms
from launcher.errors import BadConfig
from launcher.protocol.names import LaunchName
from launcher.targets.addresses import Allowed, normal
from launcher.targets.config import HttpConfig, read_private, trusting
from launcher.targets.connecting import DEADLINES, connected, secured
from launcher.targets.request_headers import identity, read_secrets, refused_header, signature
from launcher.targets.seen import Seen, State
from launcher.targets.target import (
    RESULT_BYTES_MAX,
    RETRY_AFTER_MS_MAX,
    Duration,
    NotAllowed,
    NotReached,
    Work,
    decoded,
    duration_ms,
    excerpt,
)
from launcher.worker.errors import BadPayload

METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"})
SAME_METHOD: Final = (307, 308)
REDIRECTS: Final = (301, 302, 303, *SAME_METHOD)
REDIRECTS_MAX: Final = 5
RETRIED: Final = (408, 409, 425, 429)
INTERIM_MAX: Final = 100
"""Answers of 1xx before the answer itself."""
BODY_BYTES_MAX: Final = 64 << 10
"""Read of an answer's body, and thrown away but for the beginning: a connection that is closed
while the other side still writes is reset, which some servers log as an error."""
BODY_MS: Final = 5_000
"""How long the body of an answer is read."""
URL_CHARS_MAX: Final = 8_192
HEADERS_MAX: Final = 50
HEADER_CHARS_MAX: Final = 8_192
AGENT: Final = "raftcron"


class HttpSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `http`. A `body` that is a text is sent as it is, any other as
    JSON. `event_type` and `subject` are `ce-type` and `ce-subject`."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    body: msgspec.Raw = msgspec.Raw()
    timeout: Duration | None = None
    event_type: str = ""
    subject: str = ""


class Request(NamedTuple):
    """A request that may be sent. `place` is what its output shows in place of the URL, if that is
    a secret."""

    url: SplitResult
    method: str
    headers: dict[str, str]
    body: bytes
    timeout_ms: int
    event_type: str
    subject: str
    place: str = ""


class Answer(NamedTuple):
    """The answer to a request: its status line, headers, and the beginning of its body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class Credentials(NamedTuple):
    """What requests to a host are signed with, and the headers that they get."""

    keys: tuple[bytes, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


class HttpTarget:
    """Sends requests to the hosts that its configuration allows. `folder` is that of the
    configuration: paths in it are relative to that.

    Raises:
        BadConfig: a value, or a file that it names, is invalid.
    """

    def __init__(self, config: HttpConfig, folder: Path) -> None:
        self.handler = config.handler
        self._allowed = Allowed(config.hosts, config.networks)
        self._tls = trusting(folder / config.ca if config.ca else None)
        try:
            self._timeout_ms = duration_ms(config.timeout, "http.timeout")
            self._timeout_max_ms = duration_ms(config.timeout_max, "http.timeout_max")
        except BadPayload as error:
            raise BadConfig(str(error)) from error
        keys = _keys(folder, config.secrets)
        self._credentials = {
            normal(one.host): Credentials(
                _keys(folder, one.secrets) or keys, _headers(folder, one.headers)
            )
            for one in config.endpoint
        }
        self._others = Credentials(keys)

    # ---- what is asked for

    def read(self, payload: bytes, asker: LaunchName) -> Request:
        """Return the request that a payload describes; whoever asks, `hosts` decide.

        Raises:
            BadPayload: it describes none, or one to a host that is not allowed.
        """
        return self.request_of(payload)

    def request_of(self, payload: bytes) -> Request:
        """Return the request that a payload describes.

        Raises:
            BadPayload: it describes none, or one to a host that is not allowed.
        """
        spec: HttpSpec = decoded(payload, HttpSpec)
        url = _checked_url(spec.url)
        host = url.hostname or ""
        if not self._allowed.host(host):
            raise BadPayload(f"payload: host {host} is not one of the target's `hosts`")
        if url.scheme == "http" and self._of(host).headers and not is_loopback(host):
            raise BadPayload(f"payload: {host} gets a secret header, and needs https://")
        method = spec.method.upper()
        if method not in METHODS:
            raise BadPayload(f"payload: method {spec.method[:20]!r} is none of {sorted(METHODS)}")
        if wrong := refused_header(spec.headers):
            raise BadPayload(f"payload: {wrong}")
        size = sum(len(name) + len(value) for name, value in spec.headers.items())
        if len(spec.headers) > HEADERS_MAX or size > HEADER_CHARS_MAX:
            raise BadPayload(
                f"payload: over {HEADERS_MAX} headers or {HEADER_CHARS_MAX} characters of them"
            )
        body, is_text = _body(spec.body)
        if body and method in ("GET", "HEAD"):
            raise BadPayload(f"payload: a {method} request has no body")
        timeout_ms = self._timeout_ms
        if spec.timeout is not None:
            timeout_ms = duration_ms(spec.timeout, "payload: timeout")
            if timeout_ms > self._timeout_max_ms:
                raise BadPayload(f"payload: timeout {spec.timeout} is over `timeout_max`")
        headers = {name.lower(): value for name, value in spec.headers.items()}
        if bytes(spec.body):
            kind = "text/plain; charset=utf-8" if is_text else "application/json"
            headers.setdefault("content-type", kind)
        return Request(url, method, headers, body, timeout_ms, spec.event_type, spec.subject)

    def start(self, work: Work) -> Seen:
        """Send the request; the answer says what became of it."""
        request: Request = work.spec
        until_ms = min(work.ends_ms, boot_ms() + request.timeout_ms)
        url = request.url
        for _ in range(REDIRECTS_MAX + 1):
            began_ms = boot_ms()
            answer = self.sent(work, request._replace(url=url), until_ms)
            place = request.place or f"{url.scheme}://{url.netloc}{url.path}"
            took_ms = boot_ms() - began_ms
            work.write(f"{request.method} {place}: {answer.status} in {took_ms} ms")
            if text := excerpt(answer.body):
                work.write(text)
            if answer.status not in REDIRECTS:
                return judged(answer, wall_ms())
            url = _redirected(url, request.method, answer)
        return Seen(State.FATAL, f"redirected more than {REDIRECTS_MAX} times")

    def look(self, work: Work) -> Seen:
        """Nobody can tell whether a request was received whose answer did not come."""
        return Seen(
            State.UNKNOWN,
            "its worker died while it waited for an answer: it may have been received",
        )

    def stop(self, work: Work) -> None:
        """The connection is closed already."""

    # ---- one request

    def _of(self, host: str) -> Credentials:
        return self._credentials.get(normal(host), self._others)

    def sent(self, work: Work, request: Request, until_ms: int) -> Answer:
        """Return the answer to one request, before `until_ms` of the boot clock.

        Raises:
            NotReached: there was none.
            NotAllowed: the configuration does not allow it.
        """
        url = request.url
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "https" else 80)
        end = connected(host, port, self._allowed, until_ms, work.cancelled)
        if url.scheme == "https":
            end = secured(end, host, self._tls, until_ms, work.cancelled)
        try:
            with DEADLINES.watch(end, until_ms, work.cancelled):
                end.settimeout(max(0.001, (until_ms - boot_ms()) / 1000))
                return self._exchanged(end, work, request, until_ms)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if boot_ms() >= until_ms or isinstance(error, TimeoutError):
                raise NotReached(f"{host}: no answer in time") from error
            raise NotReached(f"{host}: {said_by(error)}") from error
        finally:
            end.close()

    def _exchanged(self, end: socket.socket, work: Work, request: Request, until_ms: int) -> Answer:
        url, body = request.url, request.body
        connection = http.client.HTTPConnection(url.hostname or "")
        connection.auto_open = 0
        connection.sock = end
        connection.response_class = Response
        place = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.putrequest(request.method, place, skip_host=True, skip_accept_encoding=True)
        for name, value in self._all_headers(work, request).items():
            connection.putheader(name, value)
        try:
            connection.endheaders(body or None)
        except (BrokenPipeError, ConnectionResetError):
            # It may have answered before it had read all: an answer says more than the error.
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self._read(connection.getresponse(), end, request, until_ms, work)
            raise
        return self._read(connection.getresponse(), end, request, until_ms, work)

    def _all_headers(self, work: Work, request: Request) -> dict[str, str]:
        url, body = request.url, request.body
        found = self._of(url.hostname or "")
        headers = {
            "host": url.netloc,
            "connection": "close",
            "user-agent": AGENT,
            "accept": "*/*",
            "accept-encoding": "identity",
            **request.headers,
            **dict(found.headers),
            **identity(work, request.event_type, request.subject),
            **signature(work, wall_ms() // 1000, body, found.keys),
        }
        if body or request.method in ("PATCH", "POST", "PUT"):
            headers["content-length"] = str(len(body))
        return headers

    def _read(
        self,
        answer: http.client.HTTPResponse,
        end: socket.socket,
        request: Request,
        until_ms: int,
        work: Work,
    ) -> Answer:
        """Return the answer with what of its body comes within BODY_MS."""
        body = bytearray()
        body_ms = min(until_ms, boot_ms() + BODY_MS)
        # What is wrong with a body changes nothing: the status line was there.
        with (
            contextlib.suppress(OSError, http.client.HTTPException, ValueError),
            DEADLINES.watch(end, body_ms, work.cancelled),
        ):
            end.settimeout(max(0.001, (body_ms - boot_ms()) / 1000))
            while len(body) < BODY_BYTES_MAX:
                piece = answer.read1(BODY_BYTES_MAX - len(body))
                if not piece:
                    break
                body += piece
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, answer.reason, headers, bytes(body))


class WholeLines(io.BufferedReader):
    """Reads lines that have an end. The standard library takes the end of a connection for that of
    the headers, so that a success that was cut short would be one."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line, or the first `size` bytes of a longer one.

        Raises:
            RemoteDisconnected: the connection ended within the line, or before it.
        """
        line = super().readline(size)
        is_short = size is None or size < 0 or len(line) < size
        if is_short and not line.endswith(b"\n"):
            raise http.client.RemoteDisconnected("the connection ended within a line")
        return line


class Response(http.client.HTTPResponse):
    """An answer behind any number of interim ones: the standard library skips 100, and takes 103
    (RFC 8297) for the answer itself."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fp = WholeLines(self.fp.detach())
        self._interim = 0

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        if 100 <= status < 200 and status != http.client.SWITCHING_PROTOCOLS:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise http.client.HTTPException(f"over {INTERIM_MAX} interim answers")
            return version, int(http.client.CONTINUE), reason
        return version, status, reason


def judged(answer: Answer, now_ms: int) -> Seen:
    """Return what an answer means. `now_ms` (wall clock) is for a `retry-after` that is a date."""
    status = answer.status
    text = excerpt(answer.body)
    if 200 <= status < 300:
        return Seen(State.DONE, text or f"HTTP {status}")
    said = f"HTTP {status} {answer.reason}".strip() + (f": {text}" if text else "")
    said = said[:RESULT_BYTES_MAX]
    if status in RETRIED or status >= 500:
        return Seen(State.RETRY, said, retry_after_ms(answer.headers.get("retry-after"), now_ms))
    return Seen(State.FATAL, said)


def retry_after_ms(said: str | None, now_ms: int) -> int:
    """Return the milliseconds that a `retry-after` asks to wait, as seconds or as a date, at most
    RETRY_AFTER_MS_MAX; 0 where it says nothing that can be read."""
    text = (said or "").strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:10]) * 1000, RETRY_AFTER_MS_MAX)
    try:
        when = email.utils.parsedate_to_datetime(text)
        at_ms = int(when.replace(tzinfo=when.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return 0
    return min(max(0, at_ms - now_ms), RETRY_AFTER_MS_MAX)


def _checked_url(said: str) -> SplitResult:
    """Return a URL of a payload; its messages contain no more of it than the host."""
    problem = ""
    try:
        url = urlsplit(said)
        if url.port == 0:
            problem = "port 0"
    except ValueError as error:
        raise BadPayload(f"payload: url: {error}") from error
    if len(said) > URL_CHARS_MAX:
        problem = f"over {URL_CHARS_MAX} characters"
    elif not said.isascii() or any(one <= " " or one == "\x7f" for one in said):
        problem = "characters that a URL has only percent-encoded"
    elif "\\" in said:
        problem = "a backslash"
    elif url.scheme not in ("http", "https") or not url.hostname:
        problem = "no http:// or https:// with a host"
    elif "@" in url.netloc:
        problem = "a user in it: credentials belong into a file of the endpoint"
    elif "%" in url.netloc:
        problem = "a host with a percent sign"
    if problem:
        raise BadPayload(f"payload: url has {problem}")
    return url


def _redirected(url: SplitResult, method: str, answer: Answer) -> SplitResult:
    """Return where a redirect leads.

    Raises:
        NotAllowed: to another origin, or it would be another request.
    """
    place = answer.headers.get("location", "")
    try:
        target = _checked_url(urljoin(url.geturl(), place))
    except (BadPayload, ValueError) as error:
        raise NotAllowed(f"HTTP {answer.status}: redirected to something that is no URL") from error
    if _origin(target) != _origin(url):
        raise NotAllowed(f"HTTP {answer.status}: redirected to another host, {target.netloc}")
    if answer.status not in SAME_METHOD and method not in ("GET", "HEAD"):
        raise NotAllowed(f"HTTP {answer.status}: redirected, and a {method} would become a GET")
    return target


def _origin(url: SplitResult) -> tuple[str, str, int]:
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, normal(url.hostname or ""), port


def _body(raw: msgspec.Raw) -> tuple[bytes, bool]:
    """Return a body's bytes, and whether it is a text."""
    body = bytes(raw)
    if body.startswith(b'"'):
        return msgspec.json.decode(body, type=str).encode("utf-8", "replace"), True
    return body, False


def _keys(folder: Path, said: str) -> tuple[bytes, ...]:
    """Return the keys in a file that the configuration names, none if it names none."""
    if not said:
        return ()
    path = folder / said
    return tuple(read_secrets(read_private(path), str(path)))


def _headers(folder: Path, said: str) -> tuple[tuple[str, str], ...]:
    """Return the headers in a file that the configuration names, one a line."""
    if not said:
        return ()
    path = folder / said
    found: list[tuple[str, str]] = []
    for number, line in enumerate(read_private(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        one = (name.strip().lower(), value.strip())
        if not colon or refused_header(dict([one])):
            hint = 'write "authorization: Bearer TOKEN"'
            raise BadConfig(f"{path}: line {number} is no header that may be set", hint)
        found.append(one)
    return tuple(found)


def said_by(error: Exception) -> str:
    """Return what an error of a connection says, without bytes of the other side."""
    match error:
        case ConnectionResetError() | BrokenPipeError() | http.client.RemoteDisconnected():
            return "the connection was closed before an answer"
        case http.client.BadStatusLine():
            return "what it answered is not HTTP"
        case http.client.LineTooLong():
            return "a line of its answer is too long"
        case http.client.IncompleteRead():
            return "its answer was cut short"
    text = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {excerpt(text.encode())[:200]}"
