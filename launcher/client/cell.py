"""A cell as its clients see it: calls that find the leader, also when it changes. Thread-safe.

Theory of operation. Replicas are asked in turn; the one that answered last goes first, and a
replica that does not lead says who does. While nobody can answer, the rounds go on with pauses that
grow, each with jitter, until the caller's deadline. A call that a replica certainly did not handle
is made again. One that may have been handled is made again only if it is repeatable: it reads, or
it carries its own identity, as a submit does with its keys. A replica that hangs gets a third of
the time that is left, so that another one can still answer.

A call has a connection for itself. Connections are kept for the next call, a few for each replica.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from launcher.address import (
    CLIENT_PORT,
    DEV_CELL,
    HTTP_PORT,
    SERVERS_MAX,
    BadAddress,
    parse_server,
    parse_servers,
)
from launcher.client.errors import BadTask, Denied, OutcomeUnknown, TaskError, Unavailable, error_of
from launcher.client.front import local_cell
from launcher.client.messages import ADMIN, OF_ADMIN, READS, SERVICE, Refusal

if TYPE_CHECKING:
    from launcher.http2 import Answer, Http2Connection
    from launcher.tls import Credentials

MESSAGE_BYTES_MAX: Final = 88 << 20
"""The largest answer that a replica sends."""
_HEADERS_BYTES_MAX: Final = 1 << 20
_IDLE_MAX: Final = 4
_NAME_CHARS_MAX: Final = 200
"""Connections to one replica that are kept for the next calls."""
_CONNECT_MS: Final = 1_000
_WORTH_ASKING_MS: Final = 300
_PATIENCE_MS: Final = 2_000
"""How long a replica may take at least before another one is asked."""
_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_ERROR: Final = "raftcron-error-bin"
_HTTPS: Final = "https://"
_AUTHORITY: Final = "ca.pem"
_TRANSIENT: Final = frozenset(
    {
        "not_leader",
        "no_quorum",
        "unavailable",
        "shutdown",
        "replica_fault",
        "storage_away",
        "old_disk",
    }
)
"""Codes of a replica that did nothing: another one, or the same one later, may."""
_UNKNOWN: Final = "outcome_unknown"
_DEADLINE_EXCEEDED, _RESOURCE_EXHAUSTED, _UNIMPLEMENTED = 4, 8, 12
_GRPC_CODES: Final = {
    3: "invalid_input",
    5: "not_found",
    6: "other_content",
    7: "not_allowed",
    16: "not_authenticated",
}
"""What gRPC's own word means where raftcron did not say its own. Others say that the replica is no
use now, and perhaps did it."""


class Calls(Protocol):
    """What carries calls to a cell: `Cell`, or a cell in the caller's own process."""

    def call(
        self, method: str, content: bytes, deadline_s: float, *, is_repeatable: bool = True
    ) -> bytes:
        """Return the answer to one call of the service. `deadline_s` is monotonic.

        Raises:
            TaskError: the call was refused, or nobody could answer before the deadline.
        """

    def rows(self, method: str, content: bytes, deadline_s: float) -> list[bytes]:
        """Return the answers to one call that reads and has several of them.

        Raises:
            TaskError: as `call`.
        """

    def close(self) -> None:
        """End all waiting calls and close all connections. A repeated call does nothing."""


class Place(NamedTuple):
    """Where a cell is, and what is shown there."""

    servers: list[str]
    credentials: Credentials | None
    token: str
    authority: str = ""
    """The file of the cell's authority, for a program that has a token and no certificate."""


def find_place(server: str | None, tls: str | None, token: str | None) -> Place:
    """Return where the cell is: as said, or else as RAFTCRON_SERVER, RAFTCRON_TLS and
    RAFTCRON_TOKEN say.

    Raises:
        BadTask: an address cannot be read, is beyond loopback and there is no certificate, or is
            `https://` and there is no token or no authority.
        BadConfig: the certificate cannot be used; the message names the file.
    """
    folder = tls if tls is not None else os.environ.get("RAFTCRON_TLS", "")
    shown = (token if token is not None else os.environ.get("RAFTCRON_TOKEN", "")).strip()
    text, is_https = _without_scheme(server or os.environ.get("RAFTCRON_SERVER") or DEV_CELL)
    credentials = None
    if is_https:
        authority = _authority_of(folder, shown)
    else:
        authority = _lone_authority(folder) if folder and shown else ""
    if folder and not authority:
        from launcher.tls import files_of, load_credentials

        credentials = load_credentials(files_of(folder))
    try:
        is_secure = bool(authority) or credentials is not None
        port = HTTP_PORT if authority else CLIENT_PORT
        servers = parse_servers(text, is_secure=is_secure, port=port)
    except BadAddress as error:
        raise BadTask(str(error), error.hint) from error
    return Place(servers, credentials, shown, authority)


def _without_scheme(text: str) -> tuple[str, bool]:
    """Return a comma list of servers as `parse_servers` reads it, and whether they are `https://`.

    Raises:
        BadTask: some are and some are not.
    """
    servers = [one.strip() for one in text.split(",") if one.strip()]
    marked = [one for one in servers if one.startswith(_HTTPS)]
    plain = [one.removeprefix(_HTTPS).removesuffix("/") for one in marked]
    if not plain:
        return text, False
    if len(plain) < len(servers):
        hint = "name the HTTP addresses of all replicas: https://r1:7480,https://r2:7480"
        raise BadTask("some servers are https:// and others not", hint)
    return ",".join(plain), True


def _authority_of(folder: str, token: str) -> str:
    """Return the file of the authority for servers that are `https://`; a certificate beside it is
    not used.

    Raises:
        BadTask: there is none, or no token.
    """
    if not token:
        raise BadTask("https:// needs a token", "let RAFTCRON_TOKEN be one of `raftcron token`")
    file = os.path.join(folder, _AUTHORITY)
    if not folder or not os.path.isfile(file):
        hint = f"copy {_AUTHORITY} into a folder, and name that: --tls DIR or RAFTCRON_TLS"
        raise BadTask("https:// needs the file of the cell's authority", hint)
    return file


def _lone_authority(folder: str) -> str:
    """Return the file of the authority in a folder that has no certificate beside it, else ""."""
    names = (_AUTHORITY, "cert.pem", "key.pem")
    ca, *own = (os.path.join(folder, name) for name in names)
    return ca if os.path.isfile(ca) and not any(map(os.path.exists, own)) else ""


def cell_at(place: Place) -> Cell:
    """Return the cell at a place: over gRPC, or over HTTPS with a token alone."""
    if not place.authority:
        return Cell(place)
    from launcher.client.https import HttpsCell  # few programs need it

    return HttpsCell(place)


@functools.cache
def user_name() -> str:
    """Return who asks, for the record of a cell that is shown neither certificate nor token: the
    name of this process's user, "" if it has none."""
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
    return name if name.isprintable() and len(name) <= _NAME_CHARS_MAX else ""


class _Course:
    """What is known of one call while it is on its way."""

    def __init__(self, method: str, deadline_s: float, *, is_repeatable: bool) -> None:
        self.method = method
        self.start_s = time.monotonic()
        self.deadline_s = deadline_s
        self.is_repeatable = is_repeatable
        self.has_rows = False
        self.may_have_happened = False
        self.was_answered = False
        self.failures: dict[str, str] = {}
        self.distrust: dict[str, str] = {}  # hints of replicas with which TLS failed

    @property
    def worth_ms(self) -> int:
        """With less time than this nobody is asked again who answered before: a slow replica would
        not answer in it, and what was certain (nothing happened) would become uncertain."""
        if not self.was_answered:
            return 0
        return min(_WORTH_ASKING_MS, round((self.deadline_s - self.start_s) * 250))

    def left_ms(self) -> int:
        return round((self.deadline_s - time.monotonic()) * 1000)

    def patience_ms(self) -> int:
        """Return how long one replica may take: a third of what is left, and no less than it may
        take at least."""
        left_ms = max(1, self.left_ms())
        return min(left_ms, max(_PATIENCE_MS, left_ms // 3))

    def verdict(self) -> TaskError:
        """What to raise when the time is over."""
        seconds = f"{self.deadline_s - self.start_s:.3g} s"
        by_reason: dict[str, list[str]] = {}
        for server, reason in self.failures.items():
            by_reason.setdefault(reason, []).append(server)
        seen = "; ".join(f"{', '.join(where)}: {why}" for why, where in by_reason.items())
        if self.may_have_happened and self.method not in READS:
            hint = "submit again with the same key, or look at the task with `get`"
            return OutcomeUnknown(f"no answer within {seconds}: it may have happened; {seen}", hint)
        hint = "`raftcron status` shows which replicas are missing"
        return Unavailable(f"no replica could act within {seconds}; {seen}", hint)


class Cell:
    """Calls to a cell over the network."""

    def __init__(self, place: Place) -> None:
        self._servers = list(place.servers)
        self._credentials = place.credentials
        self._metadata = (("authorization", f"Bearer {place.token}"),) if place.token else ()
        self._random = random.Random()  # noqa: S311 - jitter
        self._start()
        _CELLS.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[Any]] = {}  # connections of HTTP/2, or of HTTPS
        self._closing = threading.Event()

    def call(
        self, method: str, content: bytes, deadline_s: float, *, is_repeatable: bool = True
    ) -> bytes:
        """Return the answer to one call of the service.

        Raises:
            TaskError: it was refused; Unavailable or OutcomeUnknown when the time is over.
        """
        local = local_cell()
        if local is not None:
            return local.call(method, content, deadline_s)
        (answer,) = self._answers(_Course(method, deadline_s, is_repeatable=is_repeatable), content)
        return answer

    def rows(self, method: str, content: bytes, deadline_s: float) -> list[bytes]:
        """Return the answers to one call that reads and has several of them.

        Raises:
            TaskError: as `call`.
        """
        local = local_cell()
        if local is not None:
            return local.rows(method, content, deadline_s)
        course = _Course(method, deadline_s, is_repeatable=True)
        course.has_rows = True
        return self._answers(course, content)

    def _answers(self, course: _Course, content: bytes) -> list[bytes]:
        pause_s = _PAUSE_S_MIN
        while not self._closing.is_set():
            answer = self._go_round(course, content)
            if answer is not None:
                return answer
            if course.distrust and course.distrust.keys() >= course.failures.keys():
                server, hint = next(iter(course.distrust.items()))
                raise Denied(f"{server}: {course.failures[server]}", hint)
            left_s = (course.left_ms() - course.worth_ms) / 1000
            if left_s <= 0:
                break
            jitter = 0.5 + self._random.random()
            self._closing.wait(min(pause_s * jitter, left_s))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        raise course.verdict()

    def close(self) -> None:
        """End the pauses of calls that wait, and close the idle connections; idempotent."""
        self._closing.set()
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def forget_connections(self) -> None:
        """Begin anew in a child process, which must not write to its parent's connections."""
        idle, is_closed = self._idle, self._closing.is_set()
        self._start()
        if is_closed:
            self._closing.set()
        for connections in idle.values():
            for connection in connections:
                connection.close()  # only this process's descriptor of it

    def _go_round(self, course: _Course, content: bytes) -> list[bytes] | None:
        """Ask each replica once, the leader that one names next; None: nobody could answer."""
        with self._lock:
            waiting = list(self._servers)
        asked: set[str] = set()
        while waiting and not self._closing.is_set():
            server = waiting.pop(0)
            if server in asked:
                continue
            if course.left_ms() <= course.worth_ms:
                return None
            asked.add(server)
            answer, leader = self._ask(server, course, content)
            if answer is not None:
                with self._lock:  # the next call asks it first
                    if self._servers[0] != server:
                        self._servers.remove(server)
                        self._servers.insert(0, server)
                return answer
            if leader is not None:
                waiting.insert(0, leader)
        return None

    def _ask(
        self, server: str, course: _Course, content: bytes
    ) -> tuple[list[bytes] | None, str | None]:
        """Return a replica's answers, or None and the leader that it names, if any.

        Raises:
            TaskError: it refused for good.
        """
        from launcher.http2 import NoAnswer, TooLong, too_late
        from launcher.reach import Unreached

        patience_ms = course.patience_ms()
        answer = None
        with contextlib.ExitStack() as unless_kept:
            try:
                connection = self._take(server, min(_CONNECT_MS, patience_ms))
                unless_kept.callback(connection.close)
                service = ADMIN if course.method in OF_ADMIN else SERVICE
                path = f"/{service}/{course.method}"
                answer = connection.call(path, content, self._metadata, patience_ms)
            except Unreached as failure:
                self._note(server, course, str(failure))
                if failure.is_distrust:
                    course.distrust[server] = failure.hint
            except NoAnswer as failure:
                self._note_unknown(server, course, str(failure))
            except TooLong as error:
                raise BadTask(str(error), "split it into several calls") from error
            else:
                unless_kept.pop_all()
                self._give_back(server, connection)
        if answer is None:
            return None, None
        course.was_answered = True
        if answer.code == 0 and (len(answer.messages) == 1 or course.has_rows):
            return list(answer.messages), None
        if answer.code == _DEADLINE_EXCEEDED:
            self._note_unknown(server, course, str(too_late(patience_ms)))
            return None, None
        return None, self._judge(server, course, answer)

    def _judge(self, server: str, course: _Course, answer: Answer) -> str | None:
        """Return the leader that a refusal names, if any; the failure is noted.

        Raises:
            TaskError: another replica would refuse it, too.
        """
        raw = dict(answer.metadata).get(_ERROR, b"")
        try:
            refusal = msgspec.json.decode(raw, type=Refusal)
        except msgspec.DecodeError:
            code = _GRPC_CODES.get(answer.code)
            reason = answer.details.partition("\n")[0] or f"gRPC code {answer.code}"
            if code is not None:
                raise error_of(code, reason) from None
            if answer.code == _RESOURCE_EXHAUSTED:  # gRPC or a proxy had no room: nobody saw it
                self._note(server, course, reason)
            elif answer.code == _UNIMPLEMENTED:  # it did not look at it
                self._note(server, course, "it has no front door for tasks: another version")
            else:
                self._note_unknown(server, course, reason)
            return None
        leader = self._learn([*([refusal.leader] if refusal.leader else []), *refusal.peers])
        if refusal.code in _TRANSIENT:
            self._note(server, course, answer.details)
            return leader if refusal.leader else None
        if refusal.code == _UNKNOWN:
            self._note_unknown(server, course, answer.details)
            return None
        raise error_of(refusal.code, answer.details, refusal.hint)

    def _note(self, server: str, course: _Course, reason: str) -> None:
        course.failures[server] = reason
        course.distrust.pop(server, None)

    def _note_unknown(self, server: str, course: _Course, reason: str) -> None:
        self._note(server, course, reason)
        course.may_have_happened = True
        if not course.is_repeatable:
            raise OutcomeUnknown(
                f"{server}: {reason}: it may have happened", "look at the task with `get` first"
            )

    def _learn(self, addresses: list[str]) -> str | None:
        """Remember the cell's other replicas; return the first one, in the form of the list."""
        first = None
        for text in addresses:
            with contextlib.suppress(BadAddress):
                address = parse_server(text, is_secure=self._credentials is not None)
                first = first or address
                with self._lock:
                    if address not in self._servers and len(self._servers) < SERVERS_MAX:
                        self._servers.append(address)
        return first

    # ---- connections

    def _take(self, server: str, timeout_ms: int) -> Http2Connection:
        """An idle connection that the replica did not end, or a new one."""
        while (idle := self._idle_one(server)) is not None:
            connection: Http2Connection = idle
            if not connection.is_over():
                return connection
            connection.close()
        from launcher.http2 import Http2Connection
        from launcher.reach import greet

        sock, header = greet(server, timeout_ms, self._credentials)
        return Http2Connection(
            sock, header, server, bytes_max=MESSAGE_BYTES_MAX, headers_max=_HEADERS_BYTES_MAX
        )

    def _idle_one(self, server: str) -> Any | None:
        """An idle connection, which may be over by now; None if there is none."""
        with self._lock:
            idle = self._idle.get(server)
            return idle.pop() if idle else None

    def _give_back(self, server: str, connection: Any) -> None:
        with self._lock:
            idle = self._idle.setdefault(server, [])
            if not self._closing.is_set() and len(idle) < _IDLE_MAX:
                idle.append(connection)
                return
        connection.close()


_CELLS: Final[weakref.WeakSet[Cell]] = weakref.WeakSet()


def _begin_anew() -> None:
    for cell in list(_CELLS):
        cell.forget_connections()


os.register_at_fork(after_in_child=_begin_anew)
