"""A client's connection to one replica, and the three ways in which a call over it can end badly.

What a caller needs to know of a failure is whether the request may have reached the replica. So a
replica is first reached and only then asked: until then, nothing was sent.
"""

from __future__ import annotations

from typing import Any, Final, cast

import grpc

from cron import limits
from cron.api.channels import open_channel
from cron.api.reading import STALE, Behind, from_metadata
from cron.api.status import METADATA_BYTES_MAX, Metadata, from_refusal, peers_of
from cron.api.v1 import admin_pb2_grpc
from cron.errors import CronError, LimitExceeded
from launcher.reach import Unreached, reach
from launcher.tls import Credentials

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.RPC_BYTES_MAX),
    ("grpc.max_send_message_length", limits.RPC_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    # Channels to one address share their connection and its backoff; a second try is to be a try.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)

_NEVER_SENT: Final = "failed to connect to all addresses"


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
    """The request was sent and nobody answered it: it may have been done. Says why."""


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
        self._channel: grpc.Channel | None = None

    def call(
        self, method: str, request: Any, *, connect_ms: int, timeout_ms: int, is_stale: bool = False
    ) -> list[Any]:
        """Return the messages that answer a call: one, or all of a stream. With `is_stale` the
        answer may be behind; `behind` says how far.

        Raises:
            NotReached: nothing was sent. NoAnswer: it was. Refused: it was, and answered.
        """
        channel = self._ready(connect_ms)
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            call, metadata = getattr(stub, method), ((STALE, "1"),) if is_stale else ()
            if isinstance(call, grpc.UnaryUnaryMultiCallable):
                answer, ended = call.with_call(
                    request, timeout=timeout_ms / 1000, metadata=metadata
                )
                answers = [answer]
            else:
                ended = call(request, timeout=timeout_ms / 1000, metadata=metadata)
                answers = list(ended)
            self.behind = from_metadata(dict(ended.trailing_metadata() or ()))
            return answers
        except grpc.RpcError as error:
            raise self._judge(cast(grpc.Call, error), timeout_ms) from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ready(self, connect_ms: int) -> grpc.Channel:
        """The channel, once something that speaks HTTP/2 was seen behind the address.

        Waiting for gRPC's own word would cost 0.2 s when the channel is closed: it polls in a
        thread.
        """
        if self._channel is None:
            try:
                reach(self.server, connect_ms, self._credentials)
            except Unreached as error:
                raise NotReached(
                    str(error),
                    error.hint,
                    is_distrust=error.is_distrust,
                    is_refused=error.is_refused,
                ) from error
            self._channel = open_channel(self.server, self._credentials, _OPTIONS)
        return self._channel

    def _judge(self, call: grpc.Call, timeout_ms: int) -> Exception:
        code, details = call.code(), call.details() or ""
        metadata = cast(Metadata, call.trailing_metadata() or ())
        error = from_refusal(code, details, metadata)
        if error is not None:
            return Refused(error, peers_of(metadata))
        self.close()  # gRPC's own word: this connection is of no use any more
        if details.startswith(_NEVER_SENT):
            return NotReached("connection lost")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Refused(LimitExceeded(details), [])
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return NotReached("it does not know this request: another program, or version")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return NoAnswer(f"no answer within {timeout_ms / 1000:g} s")
        return NoAnswer(details.splitlines()[0] if details else code.name.lower())
