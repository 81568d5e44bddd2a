"""What replicas say to each other: typed messages in checked frames, nothing executable.

A frame is `length u32 | crc32 u32 | body`, big-endian; the body is a msgpack array whose first item
is the message's tag. Tags are never reused; fields are only appended. Every message carries its
sender's term: an answer of an earlier leadership must not count in a later one.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Any, Final

import msgspec

from consensus.errors import invariant

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Terms, indexes, sizes and times: what fits the journal's fields."""

PROTOCOL: Final = 1
HEADER: Final = struct.Struct(">II")


class BadFrame(Exception):
    """Bytes from a peer are not a message; the connection ends, the replica does not."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=0, gc=False):
    """The first frame of a connection: who speaks, to whom it wants to, and how."""

    protocol: Count
    sender: str
    receiver: str


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=1, gc=False):
    """A candidate asks for a vote and says how far its log goes."""

    term: Count
    last_index: Count
    last_term: Count


class Vote(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=2, gc=False):
    """A vote that is on the voter's disk."""

    term: Count


class Append(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=3, gc=False):
    """The leader's entries after (prev_index, prev_term); without entries a heartbeat.

    `sent_ms` is the leader's own clock, given back in the answer.
    """

    term: Count
    commit_index: Count
    prev_index: Count
    prev_term: Count
    sent_ms: Count
    entries: list[tuple[bytes, Count, Count]]


class Answer(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=4, gc=False):
    """A follower's answer: its log equals the leader's below next_index, or (not accepted) the
    leader should try again from there."""

    term: Count
    next_index: Count
    accepted: bool
    sent_ms: Count


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=5, gc=False):
    """The leader asks a follower to stand for election at once."""

    term: Count


class DumpChunk(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=6, gc=False):
    """A piece of the leader's dump file for (index, index_term), for a follower far behind."""

    term: Count
    index: Count
    index_term: Count
    size: Count
    offset: Count
    sent_ms: Count
    piece: bytes


class DumpAnswer(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=7, gc=False):
    """How much of that dump the follower has; more than `size` says means nothing."""

    term: Count
    index: Count
    offset: Count
    sent_ms: Count


Message = Hello | RequestVote | Vote | Append | Answer | TimeoutNow | DumpChunk | DumpAnswer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_frame(message: Message) -> bytes:
    """Return the frame of `message`."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body), zlib.crc32(body)) + body


def decode_body(body: bytes | memoryview, checksum: int) -> Message:
    """Return the message in `body`.

    Raises:
        BadFrame: the checksum differs, or it is no message.
    """
    if zlib.crc32(body) != checksum:
        raise BadFrame("frame fails its checksum")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"frame is no message: {error}") from error


def from_library(message: dict[str, Any]) -> Message:
    """Return our form of the one message that PySyncObj still makes itself."""
    invariant(message["type"] == "request_vote", f"the library sends {message['type']}")
    return RequestVote(message["term"], message["last_log_index"], message["last_log_term"])


class FrameReader:
    """Cuts a stream of bytes into messages, refusing sizes before it stores them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, received: bytes) -> None:
        """Take bytes as they came from the socket."""
        self._buffer += received

    def next(self) -> Message | None:
        """Return the next message, or None until more bytes come.

        Raises:
            BadFrame: see `decode_body`; or the announced size is over the limit.
        """
        if len(self._buffer) < HEADER.size:
            return None
        length, checksum = HEADER.unpack_from(self._buffer)
        if length > self.bytes_max:
            raise BadFrame(f"frame of {length} bytes is over {self.bytes_max}")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[HEADER.size : end])
        del self._buffer[:end]
        return decode_body(body, checksum)
