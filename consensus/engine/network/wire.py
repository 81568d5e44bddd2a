"""The messages between replicas: typed, in frames with checksums, never executable.

A frame is `length u32 | crc32 u32 | body`, big-endian; the body is a msgpack array whose first item
is the message's tag. Tags are never reused; fields are only appended. Every message contains its
sender's term: an answer of an earlier leadership must not count in a later one. A message of more
than `PART_BYTES` is sent as Parts, so that heartbeats need not wait for all of it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Any, Final

import msgspec

from consensus.errors import invariant
from consensus.limits import HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, PART_BYTES

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Terms, indexes, sizes and times: the range of the journal's fields."""

PROTOCOL: Final = 3
"""The newest protocol version that this code supports."""
PROTOCOL_LEAST: Final = 3
"""The oldest supported version; a peer with only older ones is refused."""
HEADER: Final = struct.Struct(">II")

MISTAKEN: Final = "mistaken"
"""Goodbye: the sender's identity is wrong, or it meant another replica or cell."""
NO_PROTOCOL: Final = "protocol"
"""Goodbye: no protocol version is supported by both; one side must be upgraded."""


class BadFrame(Exception):
    """Bytes from a peer are not a message; the connection ends, the replica does not."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=0, gc=False):
    """The first frame of a connection, from the dialling side: the sender and the intended
    receiver.

    `token` is drawn when a data directory is created; it distinguishes the disks of one id.
    `number` is the incarnation of that token in the sender's log, 0 if it has none. `joins` says
    that the disk was created to replace another one. `address` is the sender's Raft address from
    its Replace, "" for the configured one: a replica that was down meanwhile needs it to answer.
    `life` names the state with which the sender's log began, 0 for an empty or unknown one. `peers`
    are the ids that the sender's configuration names, none from a release that cannot grow.
    """

    protocol: Count
    protocol_least: Count
    cell: str
    sender: str
    receiver: str
    number: Count
    token: Count
    joins: bool
    address: str = ""
    life: Count = 0
    peers: tuple[str, ...] = ()


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=8, gc=False):
    """The positive answer to a Hello. Afterwards the dialling side sends messages of `protocol`,
    the newest version that both know. The other fields describe the answering replica, as in Hello.
    """

    protocol: Count
    sender: str
    number: Count
    token: Count
    joins: bool
    life: Count = 0
    peers: tuple[str, ...] = ()


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=9, gc=False):
    """The last frame of a connection, from either side: why the other side is refused.

    `number` is the incarnation of the refused id in the sender's log, 0 if it has none.
    """

    reason: str
    number: Count
    text: str


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=1, gc=False):
    """A candidate requests a vote; contains the last entry of its log."""

    term: Count
    last_index: Count
    last_term: Count


class Vote(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=2, gc=False):
    """A granted vote, which is durable on the voter's disk."""

    term: Count


class Append(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=3, gc=False):
    """The leader's entries after (prev_index, prev_term); without entries, its commit index.

    `sent_ms` is by the leader's clock; the answer returns it.
    """

    term: Count
    commit_index: Count
    prev_index: Count
    prev_term: Count
    sent_ms: Count
    entries: list[tuple[bytes, Count, Count]]


class Answer(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=4, gc=False):
    """A follower's answer: its log equals the leader's below next_index or, if not accepted, the
    leader should retry from there.

    `withholds` says that the follower rejected further entries of the message until they are
    committed (`may_acknowledge`).
    """

    term: Count
    next_index: Count
    accepted: bool
    sent_ms: Count
    withholds: bool = False


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=5, gc=False):
    """The leader asks a follower to become a candidate at once (leadership transfer)."""

    term: Count


class DumpChunk(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=6, gc=False):
    """A piece of the leader's dump file for (index, index_term), for a follower far behind.

    `digest` identifies the file: two leaders may have different dumps of one position.
    """

    term: Count
    index: Count
    index_term: Count
    size: Count
    offset: Count
    sent_ms: Count
    piece: bytes
    digest: bytes = b""


class DumpAnswer(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=7, gc=False):
    """How much of that dump the follower has; values above `size` are ignored."""

    term: Count
    index: Count
    offset: Count
    sent_ms: Count


class PreVote(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=10, gc=False):
    """A PreVote: would the receiver vote for the sender in `term`? (Raft thesis 9.6)"""

    term: Count
    last_index: Count
    last_term: Count


class PreVoteAnswer(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=11, gc=False):
    """The answer to a PreVote. `asked` is the term of the question; `term` is the answerer's."""

    term: Count
    asked: Count
    granted: bool


class Beat(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=12, gc=False):
    """Keeps an idle connection open, so that the first vote request on it is not lost."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=13, gc=False):
    """The leader's heartbeat. It overtakes entries and dumps in flight, so it says nothing about
    the log except the commit index. The answer returns `round`; see `confirming`.
    """

    term: Count
    commit_index: Count
    sent_ms: Count
    round: Count = 0


class HeartbeatAnswer(
    msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=14, gc=False
):
    """The answer to a Heartbeat. It says nothing about the log, so it waits for no sync."""

    term: Count
    sent_ms: Count
    round: Count = 0


class Part(msgspec.Struct, frozen=True, array_like=True, tag_field="t", tag=15, gc=False):
    """A part of the body of a large message; `left` more bytes follow in further parts. Only
    messages of other classes may come between two parts.
    """

    left: Count
    content: bytes


Message = (
    Hello
    | Welcome
    | Goodbye
    | RequestVote
    | Vote
    | PreVote
    | PreVoteAnswer
    | Append
    | Answer
    | TimeoutNow
    | DumpChunk
    | DumpAnswer
    | Beat
    | Heartbeat
    | HeartbeatAnswer
    | Part
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_frame(message: Message) -> bytes:
    """Return the frame of `message`."""
    return _frame(_encoder.encode(message))


def encode_frames(message: Message) -> list[bytes]:
    """Return the frames of `message`: one, or its Parts."""
    body = _encoder.encode(message)
    if len(body) <= PART_BYTES:
        return [_frame(body)]
    return [
        encode_frame(Part(max(0, len(body) - end), body[end - PART_BYTES : end]))
        for end in range(PART_BYTES, len(body) + PART_BYTES, PART_BYTES)
    ]


def _frame(body: bytes) -> bytes:
    return HEADER.pack(len(body), zlib.crc32(body)) + body


def _decode(body: bytes | bytearray | memoryview) -> Message:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"frame is no message: {error}") from error


class Parts:
    """Assembles Parts to entries or a piece of a dump; checks sizes before it stores bytes."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._left: int | None = None  # None: no message is incomplete

    def take(self, part: Part) -> Append | DumpChunk | None:
        """Return the message that `part` completes, or None until more parts come.

        Raises:
            BadFrame: it does not continue the part before, or the message is of another kind.
        """
        size, left = len(part.content), self._left
        if left is None:
            left = part.left + size
            if left > MESSAGE_BYTES_MAX:
                raise BadFrame(f"parts of {left} bytes are over {MESSAGE_BYTES_MAX}")
        if not size or part.left != left - size:
            raise BadFrame("a part does not continue the one before")
        self._body += part.content
        self._left = part.left
        if part.left:
            return None
        body, self._body, self._left = self._body, bytearray(), None
        message = _decode(body)
        if not isinstance(message, Append | DumpChunk):
            raise BadFrame(f"a {type(message).__name__} came in parts")
        return message


def from_library(message: dict[str, Any]) -> Message:
    """Return the typed form of the one message that PySyncObj creates itself."""
    invariant(message["type"] == "request_vote", f"the library sends {message['type']}")
    return RequestVote(message["term"], message["last_log_index"], message["last_log_term"])


def negotiate(ours: Hello, theirs: Hello) -> int:
    """Return the newest protocol version that both support; 0 if there is none."""
    newest = min(ours.protocol, theirs.protocol)
    return newest if newest >= max(ours.protocol_least, theirs.protocol_least) else 0


class FrameReader:
    """Splits a stream of bytes into messages; checks sizes before it stores bytes.

    Complete frames are decoded in place; only an incomplete frame is copied.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer: bytes | bytearray = b""
        self._at = 0

    @property
    def left_bytes(self) -> int:
        """Return the number of bytes that are not decoded yet."""
        return len(self._buffer) - self._at

    def feed(self, received: bytes) -> None:
        """Add bytes from the socket."""
        if self._at == len(self._buffer):
            self._buffer, self._at = received, 0
            return
        if self._at or not isinstance(self._buffer, bytearray):
            self._buffer, self._at = bytearray(memoryview(self._buffer)[self._at :]), 0
        self._buffer += received

    def next(self) -> Message | None:
        """Return the next message, or None until more bytes come.

        Raises:
            BadFrame: the announced size is over the limit, the checksum differs, or the body is not
                a message.
        """
        begin = self._at + HEADER.size
        if len(self._buffer) < begin:
            if self._at == len(self._buffer):
                self._buffer, self._at = b"", 0
            return None
        length, checksum = HEADER.unpack_from(self._buffer, self._at)
        if length > self.bytes_max:
            raise BadFrame(f"frame of {length} bytes is over {self.bytes_max}")
        end = begin + length
        if len(self._buffer) < end:
            return None
        self._at = end
        # Released at once: a bytearray with a memoryview cannot grow.
        with memoryview(self._buffer) as whole, whole[begin:end] as body:
            if zlib.crc32(body) != checksum:
                raise BadFrame("frame fails its checksum")
            return _decode(body)


def opens_with_hello(content: bytes) -> bool | None:
    """Return whether a stream begins with a Hello; None if `content` is too short to decide."""
    reader = FrameReader(HELLO_BYTES_MAX)
    reader.feed(content)
    try:
        message = reader.next()
    except BadFrame:
        return False
    return None if message is None else isinstance(message, Hello)
