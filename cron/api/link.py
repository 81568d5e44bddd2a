"""A client's connection to one replica, and the three ways in which a call over it can end badly.

What a caller needs to know of a failure is whether the request may have reached the replica. So a
replica is first reached and only then asked: until then, nothing was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cron import limits
from cron.api.http2 import Answer, Broken, Connection, TooBig, Unsent
from cron.api.reading import STALE, Behind, from_metadata
from cron.api.rpc import Request, Rpc
from cron.api.status import METADATA_BYTES_MAX, Code, from_refusal, peers_of
from cron.api.translate import SERVICE, answer_class, from_answers, to_message
from cron.errors import CronError, LimitExceeded
from launcher.reach import Unreached, greet

if TYPE_CHECKING:
    from launcher.tls import Credentials


class NotReached(Exception):
    """There is no connection: the request was certainly not sent. Says why, in a few words.
    `is_distrust`: certificates do not fit, and waiting does not change that. `is_refused`: nobody
    listens there."""

    def __init__(
        self, reason: str, hint: str = "", *, is_distrust: bool = False, is_refused: bool = False
    ) -> None:
        super().__init__(reason)
        self.hint = hint
        self.is_distrust = is_distrust
        self.is_refused = is_refused


class NoAnswer(Exception):
    """The request was sent and nobody answered it: it may have been done. Says why. `is_fault`: the
    replica says that it has a bug."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


class Refused(Exception):
    """The replica answered with an error, and perhaps with where the others are."""

    def __init__(self, error: CronError, peers: list[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.peers = peers


class Link:
    """A connection to one replica. Not thread-safe."""

    def __init__(self, server: str, credentials: Credentials | None = None) -> None:
        self.server = server
        self._credentials = credentials
        self.behind: Behind | None = None
        self._connection: Connection | None = None

    def call(
        self,
        rpc: Rpc[Any, Any],
        request: Request,
        *,
        connect_ms: int,
        timeout_ms: int,
        is_stale: bool = False,
    ) -> Any:
        """Return the answer to a call: a view, or the rows of a stream. With `is_stale` the answer
        may be behind; `behind` says how far.

        Raises:
            NotReached: nothing was sent. NoAnswer: it was. Refused: it was, and answered.
        """
        content = to_message(request).SerializeToString()
        connection = self._ready(connect_ms)
        path = f"/{SERVICE}/{rpc.name}"
        metadata = ((STALE, "1"),) if is_stale else ()
        try:
            answer = connection.call(path, content, metadata, timeout_ms)
            if answer.code:
                raise self._judge(answer, timeout_ms)
        except TooBig as error:
            self.close()
            raise Refused(LimitExceeded(str(error)), []) from error
        except Unsent as error:
            self.close()
            raise NotReached(str(error)) from error
        except TimeoutError as error:
            self.close()
            raise _too_late(timeout_ms) from error
        except Broken as error:
            self.close()
            raise NoAnswer(str(error)) from error
        self.behind = from_metadata(dict(answer.metadata))
        return from_answers(rpc, map(answer_class(rpc).FromString, answer.messages))

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ready(self, connect_ms: int) -> Connection:
        """The connection, made anew where there is none or the replica has ended it."""
        if self._connection is not None and self._connection.is_over():
            self.close()
        if self._connection is None:
            try:
                sock, header = greet(self.server, connect_ms, self._credentials)
            except Unreached as error:
                raise NotReached(
                    str(error),
                    error.hint,
                    is_distrust=error.is_distrust,
                    is_refused=error.is_refused,
                ) from error
            self._connection = Connection(
                sock,
                header,
                self.server,
                bytes_max=limits.RPC_BYTES_MAX,
                headers_max=METADATA_BYTES_MAX,
            )
        return self._connection

    def _judge(self, answer: Answer, timeout_ms: int) -> Exception:
        """What an answer means that is not OK; without raftcron's code it is gRPC's own word."""
        error = from_refusal(answer.code, answer.details, answer.metadata)
        if error is not None:
            return Refused(error, peers_of(answer.metadata))
        self.close()  # this connection is of no use any more
        if answer.code == Code.RESOURCE_EXHAUSTED:
            return Refused(LimitExceeded(answer.details), [])
        if answer.code == Code.UNIMPLEMENTED:
            return NotReached("it does not know this request: another program, or version")
        if answer.code == Code.DEADLINE_EXCEEDED:
            return _too_late(timeout_ms)
        reason = answer.details.partition("\n")[0] or f"gRPC code {answer.code}"
        return NoAnswer(reason, is_fault=answer.code == Code.INTERNAL)


def _too_late(timeout_ms: int) -> NoAnswer:
    return NoAnswer(f"no answer within {timeout_ms / 1000:g} s")
