"""A client's connection to one replica, and the three ways in which a call over it can end badly.

What a caller needs to know of a failure is whether the request may have reached the replica. So a
replica is first reached and only then asked: until then, nothing was sent.
"""

from __future__ import annotations

import socket
from typing import Any, Final, cast

import grpc

from cron import limits
from cron.api.status import METADATA_BYTES_MAX, Metadata, from_refusal, peers_of
from cron.api.v1 import admin_pb2_grpc
from cron.errors import CronError, LimitExceeded

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

# RFC 9113: what a client begins with (3.4), and a SETTINGS frame without settings (6.5), with
# which a server begins, too.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES: Final = 9
_FRAME_TYPE: Final = 3  # the byte of a frame's header that says which frame it is

_NEVER_SENT: Final = "failed to connect to all addresses"


class NotReached(Exception):
    """There is no connection: the request was certainly not sent. Says why, in a few words."""


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

    def __init__(self, server: str) -> None:
        self.server = server
        self._channel: grpc.Channel | None = None

    def call(self, method: str, request: Any, *, connect_ms: int, timeout_ms: int) -> list[Any]:
        """Return the messages that answer a call: one, or all of a stream.

        Raises:
            NotReached: nothing was sent. NoAnswer: it was. Refused: it was, and answered.
        """
        channel = self._ready(connect_ms)
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = getattr(stub, method)(request, timeout=timeout_ms / 1000)
            return list(answer) if hasattr(answer, "__next__") else [answer]
        except grpc.RpcError as error:
            raise self._judge(cast(grpc.Call, error), timeout_ms) from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ready(self, connect_ms: int) -> grpc.Channel:
        """The channel, once something that speaks HTTP/2 was seen behind the address."""
        if self._channel is None:
            _reach(self.server, connect_ms)
            self._channel = grpc.insecure_channel(self.server, options=_OPTIONS)
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


def _reach(server: str, connect_ms: int) -> None:
    """Return if a server answers the beginning of HTTP/2, as a replica does even when it is busy.

    Waiting for gRPC's own word would cost 0.2 s when the channel is closed: it polls in a thread.

    Raises:
        NotReached: with the reason as the operating system says it.
    """
    host, _, port = server.rpartition(":")
    timeout_s = connect_ms / 1000
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(_PREFACE + _SETTINGS)
            header = sock.recv(_FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except TimeoutError as error:
        raise NotReached("no answer") from error
    except OSError as error:
        raise NotReached((error.strerror or str(error)).lower()) from error
    if len(header) < _FRAME_HEADER_BYTES:
        raise NotReached("connection closed")
    if header[_FRAME_TYPE] != _SETTINGS[_FRAME_TYPE]:
        raise NotReached("not a replica")
