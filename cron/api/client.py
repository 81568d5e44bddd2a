"""The API's client: typed calls to a cell, wherever its leader is. Synchronous, not thread-safe.

Theory of operation. Replicas are asked in turn; one that does not lead says who does, and is
believed once a round. While there is no leader the rounds go on, with growing pauses, until the
time is over. A read may be asked again at will. A change may be asked again only where it
certainly did not happen: the request was not sent, or the replica refused it with an error that
says so. Where it may have happened, only a change that carries its own identity (a trigger's
request id) is repeated; every other ends with OutcomeUnknown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cron.api.address import DEFAULT, SERVERS_MAX, parse_server
from cron.api.link import Link, Refused
from cron.api.reading import HINT, Behind
from cron.api.rpc import Request, Rpc, Where
from cron.clock import SystemClock
from cron.errors import (
    ConfigError,
    CronError,
    ExecutorAway,
    InvalidInput,
    NoQuorum,
    NotAuthenticated,
    NotLeader,
    OldDisk,
    OutcomeUnknown,
    ReplicaFault,
    StorageAway,
    Unavailable,
)
from launcher.http2 import NoAnswer, Unreadable
from launcher.reach import Unreached

if TYPE_CHECKING:
    from launcher.tls import Credentials

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")

UNREACHED_MS: Final = 3_000
"""How long a cell is tried of which no replica is reached: a dead one is back within a second."""
REFUSED_MS: Final = 50
"""The same where every address refuses the connection: one more try. With the start of the command
line a person has the answer within half a second."""
_CONNECT_MS: Final = 1_000
_PAUSE_MS_MIN: Final = 50
_PAUSE_MS_MAX: Final = 500
_WORTH_ASKING_MS: Final = 500
"""With less time than this left nobody is asked again: a slow replica would not answer in it, and
what was certain (there is no leader, nothing happened) would become uncertain."""
_NOT_ITS_FAULT: Final = (ExecutorAway, StorageAway, OldDisk)
"""What the leader says of others, and of its own disk: to ask it again changes nothing."""
_START_DEV: Final = (
    "start one with `raftcron dev`, or name the replicas of your cell with --server (or in"
    " RAFTCRON_SERVER)"
)
_START: Final = (
    "look on their hosts why they do not run (`systemctl status raftcron-replica`), or name others"
    " with --server (or in RAFTCRON_SERVER)"
)
_MORE_TIME: Final = "--timeout gives it more time"
_LOOK: Final = "look at `raftcron history` and `raftcron jobs` before you try again"
_LOOK_FIRST: Final = f"{_LOOK}; a longer --timeout waits longer for the answer"
_WHAT_IS_THERE: Final = (
    "another program or another version of raftcron is there: name the replicas with --server, or "
    "compare `raftcron --version`"
)


class _Course(msgspec.Struct):
    """What is known of one request while it is on its way. Times are of the monotonic clock."""

    rpc: Rpc[Any, Any]
    request: Request
    is_change: bool
    start_ms: int
    deadline_ms: int
    may_have_happened: bool = False
    was_answered: bool = False  # some replica said something
    failures: dict[str, Exception] = {}  # why each server was no use, the newest
    last: CronError | None = None

    def was_unreached(self, servers: Iterable[str], is_so: Callable[[Unreached], bool]) -> bool:
        """Whether the newest failure of each server is that it was not reached, and `is_so`."""
        found = (self.failures.get(server) for server in servers)
        return all(isinstance(one, Unreached) and is_so(one) for one in found)

    def unread(self) -> str:
        """Return which server's newest answer cannot be read, and why; "" where there is none."""
        failures = self.failures.items()
        return next(
            (_reason(server, one) for server, one in failures if isinstance(one, Unreadable)), ""
        )

    def knows_no_leader(self) -> bool:
        """Return whether a replica said that it knows no leader."""
        failures = self.failures.values()
        return any(isinstance(one, NotLeader) and one.leader is None for one in failures)


def load_certificate(folder: str) -> Credentials:
    """Return the certificate and key in a folder of `raftcron certs issue`, checked.

    Raises:
        ConfigError: they are of no use; the message names the file, the hint the way out.
    """
    from launcher.errors import BadConfig  # most cells that a person asks have no certificates
    from launcher.tls import files_of, load_credentials

    try:
        return load_credentials(files_of(folder))
    except BadConfig as error:
        raise ConfigError(str(error), error.hint) from error


class Client:
    """Calls to a cell. It remembers which replica answered last, and the replicas it heard of.

    `servers` are as `cron.api.address.parse_servers` returns them, `credentials` are needed if the
    cell has certificates. `timeout_ms` is for every call; without it each request says how long to
    wait. With `on_behind`, reads of what every replica has may be stale: any replica answers at
    once, and `on_behind` hears how far behind that answer is. `by` says who asks, for changes that
    do not say so; a certificate has the last word, and `token` before that.
    """

    def __init__(
        self,
        servers: list[str],
        timeout_ms: int | None = None,
        credentials: Credentials | None = None,
        on_behind: Callable[[Behind], None] | None = None,
        by: Callable[[], str] = str,
        token: str = "",
    ) -> None:
        self.is_stale = on_behind is not None
        self._servers = list(servers)
        self._is_default = set(servers) <= set(DEFAULT.split(","))
        self._timeout_ms = timeout_ms
        self._on_behind = on_behind
        self._by = by
        self._credentials = credentials
        self._token = token
        self._links: dict[str, Link] = {}
        self._clock = SystemClock()
        self._last_ms: int | None = None

    def end_within(self, wait_ms: int) -> None:
        """Let no request from now on take longer than what is left of this time."""
        self._last_ms = self._clock.mono_ms() + wait_ms

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; idempotent."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def ask(self, rpc: Rpc[Q, A], request: Q | None = None) -> A:
        """Return the answer to a request; None stands for one that says nothing.

        Raises:
            CronError: what the replica refused with; Unavailable or NoQuorum where nothing happened
                within the time; OutcomeUnknown where something may have.
        """
        request = request if request is not None else rpc.request()
        if getattr(request, "by", None) == "":
            request = msgspec.structs.replace(request, by=self._by())
        timeout_ms = self._timeout_ms or request.timeout_ms()
        start_ms = self._clock.mono_ms()
        if self._last_ms is not None:
            timeout_ms = max(1, min(timeout_ms, self._last_ms - start_ms))
        is_change = rpc.is_change(request)
        course = _Course(rpc, request, is_change, start_ms, start_ms + timeout_ms)
        pause_ms = _PAUSE_MS_MIN
        while True:
            answer: A | None = self._go_round(course)
            if answer is not None:
                return answer
            left_ms = self._end_ms(course) - self._clock.mono_ms()
            if course.was_answered:
                left_ms -= _WORTH_ASKING_MS
            is_distrusted = course.was_unreached(self._servers, lambda failure: failure.is_distrust)
            if left_ms <= 0 or is_distrusted:
                raise self._verdict(course)
            time.sleep(min(pause_ms, left_ms) / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    def _go_round(self, course: _Course) -> Any:
        """Ask each server once, the leader that one names next; None: nobody could answer. A poor
        answer is the last resort."""
        poor: Any = None
        waiting, asked = list(self._servers), set[str]()
        while waiting:
            server = waiting.pop(0)
            if server in asked:
                continue
            left_ms = course.deadline_ms - self._clock.mono_ms()
            if left_ms < (_WORTH_ASKING_MS if course.was_answered else 1):
                return poor
            asked.add(server)
            try:
                answer = self._ask_one(server, course, left_ms)
            except NotLeader as error:
                if error.leader is not None:
                    waiting.insert(0, self._checked_leader(server, error.leader))
                continue
            if answer is not None and course.rpc.is_poor(answer):
                poor = poor or answer
            elif answer is not None:
                self._servers.remove(server)
                self._servers.insert(0, server)
                return answer
        return poor

    def _ask_one(self, server: str, course: _Course, left_ms: int) -> Any:
        """The server's answer; None where it was no use. Raises NotLeader and final errors."""
        link = self._links.setdefault(server, Link(server, self._credentials, self._token))
        # A replica that hangs must not use up the time of a read that another could answer.
        patience_ms = left_ms if course.is_change else min(left_ms, max(2_000, left_ms // 3))
        connect_ms = max(1, min(_CONNECT_MS, left_ms // 3))
        try:
            answer = link.call(
                course.rpc,
                course.request,
                connect_ms=connect_ms,
                timeout_ms=patience_ms,
                is_stale=self._on_behind is not None and not course.is_change,
            )
            if self._on_behind is not None and link.behind is not None:
                self._on_behind(link.behind)
            return answer
        except Unreached as failure:
            course.failures[server] = failure
        except Unreadable as failure:
            course.failures[server] = failure
            self._note_unknown(course, _reason(server, failure), hint=f"{_LOOK}; {_WHAT_IS_THERE}")
        except NoAnswer as failure:
            course.failures[server] = failure
            course.was_answered = True
            if failure.is_fault:
                course.last = ReplicaFault(f"{server}: {failure}", "its log says which bug it is")
            elif course.last is None or patience_ms < left_ms:  # else it had no time to answer
                hint = self._or_stale(course, _MORE_TIME)
                course.last = Unavailable(_reason(server, failure), hint)
            self._note_unknown(course, _reason(server, failure))
        except Refused as refusal:
            course.was_answered = True
            self._note_refusal(course, server, refusal)
        return None

    def _note_refusal(self, course: _Course, server: str, refusal: Refused) -> None:
        """Go on where nothing happened and another replica may do it; else raise."""
        self._learn(refusal.peers)
        error = refusal.error
        course.failures[server] = error
        if isinstance(error, OutcomeUnknown):
            self._note_unknown(course, str(error), error)
            return
        if not isinstance(error, Unavailable) or isinstance(error, _NOT_ITS_FAULT):
            raise error  # no other replica has the executor either
        course.last = error
        if isinstance(error, NotLeader):
            raise error

    def _note_unknown(
        self,
        course: _Course,
        reason: str,
        error: OutcomeUnknown | None = None,
        hint: str = _LOOK_FIRST,
    ) -> None:
        """The request may have been done. Reads and repeatable changes are simply asked again."""
        if not course.is_change:
            return
        course.may_have_happened = True
        if not course.rpc.is_repeatable:
            raise error or OutcomeUnknown(f"{reason}: the change may still happen", hint)

    def _checked_leader(self, server: str, leader: str) -> str:
        """The leader's address in the form of the list, learned; without
        certificates only loopback is followed."""
        try:
            address = self._parsed(leader)
        except InvalidInput as error:
            raise Unavailable(f"{server} names a leader that is not asked: {error}") from error
        self._learn([address])
        return address

    def _parsed(self, server: str) -> str:
        return parse_server(server, is_secure=self._credentials is not None)

    def _learn(self, peers: Iterable[str]) -> None:
        for peer in peers:
            with contextlib.suppress(InvalidInput):
                address = self._parsed(peer)
                if address not in self._servers and len(self._servers) < SERVERS_MAX:
                    self._servers.append(address)

    def _end_ms(self, course: _Course) -> int:
        """Until when it is worth trying: not long, while nobody is there at all."""
        if course.was_answered:
            return course.deadline_ms
        is_refused = course.was_unreached(self._servers, lambda failure: failure.is_refused)
        patience_ms = REFUSED_MS if is_refused else UNREACHED_MS
        return min(course.deadline_ms, course.start_ms + patience_ms)

    def _or_stale(self, course: _Course, hint: str) -> str:
        """Return the hint, with the other way out of a read that any replica could answer."""
        return f"{hint}; {HINT}" if course.rpc.where is Where.ANY and not self.is_stale else hint

    def _verdict(self, course: _Course) -> CronError:
        """What to tell when the time is over."""
        within = f"within {(course.deadline_ms - course.start_ms) / 1000:g} s"
        unread = course.unread()
        if course.may_have_happened:
            text = f"{unread or f'no answer {within}'}: the change may still happen"
            return OutcomeUnknown(text, f"{_LOOK}; {_WHAT_IS_THERE}" if unread else _LOOK_FIRST)
        end = ": the change did not happen" if course.is_change else ""
        if unread and not course.knows_no_leader():
            return Unavailable(f"{unread}{end}", self._or_stale(course, _WHAT_IS_THERE))
        unreached = [one for one in course.failures.values() if isinstance(one, Unreached)]
        hints = [one.hint for one in unreached if one.is_distrust]
        if not course.was_answered and hints:
            return NotAuthenticated(f"{_places(course.failures)}{end}", hints[0])
        if not course.was_answered:
            return Unavailable(
                f"no replica answers at {_places(course.failures)}{end}",
                _START_DEV if self._is_default else _START,
            )
        if isinstance(course.last, NotLeader) or course.last is None:
            hint = "`raftcron status` shows which replicas are missing"
            also = f"; {unread}" if unread else ""
            return NoQuorum(f"no leader {within}{also}{end}", self._or_stale(course, hint))
        kind = ReplicaFault if isinstance(course.last, ReplicaFault) else Unavailable
        return kind(f"{course.last}{end}", course.last.hint)


def _reason(server: str, failure: NoAnswer) -> str:
    """Return why a server's answer was no use."""
    if isinstance(failure, Unreadable):
        return f"{server} answered something that raftcron cannot read: {failure}"
    return f"{server}: {failure}"


def _places(failures: dict[str, Exception]) -> str:
    """Return `a, b: connection refused; c: no answer`: the servers by why they were no use."""
    by_reason: dict[str, list[str]] = {}
    for server, failure in failures.items():
        by_reason.setdefault(str(failure), []).append(server)
    return "; ".join(f"{', '.join(servers)}: {why}" for why, servers in by_reason.items())
