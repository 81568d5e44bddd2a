"""Calls to a cell over the HTTPS of its replicas, for programs with a token and no certificate.

Any replica asks the leader for its clients, and 503 promises that nothing happened: so the next
replica is asked then, as `Cell` does where a replica does not lead. 504 says that the change may
have happened.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from launcher.client.cell import MESSAGE_BYTES_MAX, Cell, _Course
from launcher.client.errors import BadTask, TaskError, error_of
from launcher.identity import REPLICA_HOST

if TYPE_CHECKING:
    from launcher.client.cell import Place

_CONNECT_MS: Final = 3_000
"""For TCP and the handshake of TLS."""
_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
_UNAVAILABLE, _GATEWAY_TIMEOUT = 503, 504
_ROUTES: Final = {
    "Submit": "POST /v1/tasks",
    "Cancel": "POST /v1/tasks/cancel",
    "RunNow": "POST /v1/tasks/run-now",
    "Reschedule": "PATCH /v1/tasks/{name}",
    "RescheduleMany": "POST /v1/tasks/reschedule",
    "Get": "GET /v1/tasks/{name}",
    "GetMany": "GET /v1/tasks/named",
    "List": "GET /v1/tasks",
    "Watch": "GET /v1/tasks/watch",
    "GetGroup": "GET /v1/groups/{name}",
    "CloseGroup": "POST /v1/groups/close",
    "CancelGroup": "DELETE /v1/groups/{name}",
    "Dead": "GET /v1/dead",
    "Redrive": "POST /v1/dead/redrive",
    "DropDead": "POST /v1/dead/drop",
}
"""The method and path of each call that a client makes; docs/http.md has all."""


class Request(NamedTuple):
    """One request of HTTP."""

    method: str
    path: str
    body: bytes = b""


class Problem(msgspec.Struct):
    """Why a request was refused (RFC 9457)."""

    code: str
    detail: str
    hint: str = ""


def request_of(method: str, content: bytes) -> Request:
    """Return the request of a call whose gRPC message is `content`.

    Raises:
        TaskError: HTTP has no such call here.
    """
    if method not in _ROUTES:
        raise TaskError(f"{method}: a client does not ask it over HTTPS")
    verb, path = _ROUTES[method].split(" ")
    if path.endswith("{name}"):
        rest = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(rest.pop("name"), type=str)
        path = path.replace("{name}", quote(name, safe="/:"))
        content = msgspec.json.encode(rest)
    if verb in ("POST", "PATCH"):
        return Request(verb, path, content)
    said: dict[str, Any] = msgspec.json.decode(content)
    said |= said.pop("filter", {})
    said.pop("by", None)  # the token says who asks
    fields = {name: value for name, value in said.items() if value not in ("", None)}
    query = urlencode(fields, doseq=True)
    return Request(verb, f"{path}?{query}" if query else path)


class _Connection:
    """A connection to one replica, whose certificate the cell's authority signed."""

    def __init__(self, server: str, context: ssl.SSLContext, timeout_ms: int) -> None:
        host, _, port = server.rpartition(":")
        self._http = _Https(host.strip("[]"), int(port), context, timeout_ms / 1000)
        self._http.connect()

    def ask(self, request: Request, headers: dict[str, str], timeout_ms: int) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        self._http.sock.settimeout(timeout_ms / 1000)
        self._http.request(request.method, request.path, request.body or None, headers)
        with self._http.getresponse() as answer:
            body = answer.read(MESSAGE_BYTES_MAX + 1)
            if len(body) > MESSAGE_BYTES_MAX:
                raise http.client.IncompleteRead(body[:0])
            return answer.status, body

    def is_over(self) -> bool:
        """Whether the replica has ended it, or sent what nobody asked for."""
        sock = self._http.sock
        return sock is None or bool(select.select([sock], [], [], 0)[0])

    def close(self) -> None:
        """Close it."""
        self._http.close()


class _Https(http.client.HTTPSConnection):
    """As the standard library's, but with the name that replicas' certificates have."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._trusted = context

    def connect(self) -> None:
        """Connect, and check the replica's certificate."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=REPLICA_HOST)


class HttpsCell(Cell):
    """Calls to a cell over HTTPS. `place.authority` is the file of the cell's authority."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._headers = {"authorization": f"Bearer {place.token}", "content-type": _JSON}
        self._context = ssl.create_default_context(cafile=place.authority)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._authority = place.authority

    def _ask(
        self, server: str, course: _Course, content: bytes
    ) -> tuple[list[bytes] | None, str | None]:
        """Return a replica's answers, or None; it never names a leader.

        Raises:
            TaskError: it refused for good.
        """
        request = request_of(course.method, content)
        headers = self._headers | {"accept": _LINES if course.has_rows else _JSON}
        patience_ms = course.patience_ms()
        status, body = 0, b""
        with contextlib.ExitStack() as unless_kept:
            try:
                connection = self._idle_or_new(server, min(_CONNECT_MS, patience_ms))
            except ssl.SSLCertVerificationError as error:
                self._note(server, course, f"its certificate is refused: {error.verify_message}")
                course.distrust[server] = f"it was checked against {self._authority}"
                return None, None
            except OSError as error:
                self._note(server, course, (error.strerror or str(error)).lower())
                return None, None
            unless_kept.callback(connection.close)
            try:
                status, body = connection.ask(request, headers, patience_ms)
            except (OSError, http.client.HTTPException) as error:
                self._note_unknown(server, course, str(error) or "the connection was closed")
                return None, None
            unless_kept.pop_all()
            self._give_back(server, connection)
        course.was_answered = True
        if 200 <= status < 300:
            return body.splitlines() if course.has_rows else [body], None
        self._judge_problem(server, course, status, body)
        return None, None

    def _judge_problem(self, server: str, course: _Course, status: int, body: bytes) -> None:
        """Note a refusal after which another replica, or the same one later, may do.

        Raises:
            TaskError: another replica would refuse it, too.
        """
        try:
            problem = msgspec.json.decode(body, type=Problem)
        except msgspec.DecodeError:  # of a proxy
            problem = Problem("", f"HTTP {status}")
        if status == _UNAVAILABLE:
            self._note(server, course, problem.detail)
        elif status >= 500:
            self._note_unknown(server, course, problem.detail)
        elif problem.code:
            raise error_of(problem.code, problem.detail, problem.hint)
        else:
            raise BadTask(f"{server}: {problem.detail}", "name the HTTP addresses of the replicas")

    def _idle_or_new(self, server: str, timeout_ms: int) -> _Connection:
        while (idle := self._idle_one(server)) is not None:
            connection: _Connection = idle
            if not connection.is_over():
                return connection
            connection.close()
        return _Connection(server, self._context, timeout_ms)
