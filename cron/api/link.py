"""A client's connection to one replica, and the three ways in which a call over it can end badly.

What a caller needs to know of a failure is whether the request may have reached the replica: not
where it is `Unreached`, perhaps where there is `NoAnswer`, certainly where it `Refused`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cron import limits
from cron.api.reading import AUTHORIZATION, BEHIND, STALE, Behind
from cron.api.rpc import Request, Rpc, decode, encode
from cron.api.status import METADATA_BYTES_MAX, Code, from_refusal
from cron.errors import CronError, LimitExceeded
from launcher.http2 import Answer, Http2Connection, NoAnswer, TooLong, Unreadable, too_late
from launcher.reach import Unreached, greet

if TYPE_CHECKING:
    from launcher.tls import Credentials


class Refused(Exception):
    """The replica answered with an error, and perhaps with where the others are."""

    def __init__(self, error: CronError, peers: list[str]) -> None:
        super().__init__(str(error))
        self.error = error
        self.peers = peers


class Link:
    """A connection to one replica. Not thread-safe."""

    def __init__(
        self, server: str, credentials: Credentials | None = None, token: str = ""
    ) -> None:
        self.server = server
        self._proof = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
        self._credentials = credentials
        self.behind: Behind | None = None
        self._connection: Http2Connection | None = None

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
            Unreached: it was not handled. NoAnswer: it may have been; one of these is Unreadable.
            Refused: the replica said no.
        """
        content = encode(request)
        connection = self._ready(connect_ms)
        metadata = (*self._proof, (STALE, "1")) if is_stale else self._proof
        try:
            answer = connection.call(rpc.path, content, metadata, timeout_ms)
            if answer.code:
                raise self._judge(answer, timeout_ms, is_change=rpc.is_change(request))
            behind = dict(answer.metadata).get(BEHIND)
            self.behind = decode(behind, Behind) if behind else None
            return rpc.read_answer(answer.messages)
        except msgspec.DecodeError as error:
            raise Unreadable(str(error)) from error
        except (Unreached, NoAnswer, TooLong, LimitExceeded) as error:
            self.close()  # this connection is of no use any more
            if isinstance(error, TooLong | LimitExceeded):
                raise Refused(LimitExceeded(str(error)), []) from error
            raise

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ready(self, connect_ms: int) -> Http2Connection:
        """The connection, made anew where there is none or the replica has ended it."""
        if self._connection is not None and self._connection.is_over():
            self.close()
        if self._connection is None:
            sock, header = greet(self.server, connect_ms, self._credentials)
            self._connection = Http2Connection(
                sock,
                header,
                self.server,
                bytes_max=limits.RPC_BYTES_MAX,
                headers_max=METADATA_BYTES_MAX,
            )
        return self._connection

    def _judge(self, answer: Answer, timeout_ms: int, *, is_change: bool) -> Exception:
        """What an answer means that is not OK; without raftcron's code it is gRPC's own word."""
        said = from_refusal(answer.code, answer.details, answer.metadata)
        if said is not None:
            error, refusal = said
            return Refused(error, refusal.peers)
        if answer.code == Code.RESOURCE_EXHAUSTED:
            if is_change and "Sent message larger" in answer.details:
                return NoAnswer("its answer is longer than messages may be")
            return LimitExceeded(answer.details)
        if answer.code == Code.UNIMPLEMENTED:
            return Unreached("it does not know this request: another program, or version")
        if answer.code == Code.DEADLINE_EXCEEDED:
            return too_late(timeout_ms)
        reason = answer.details.partition("\n")[0] or f"gRPC code {answer.code}"
        return NoAnswer(reason, is_fault=answer.code == Code.INTERNAL)
