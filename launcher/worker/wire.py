"""The messages between an executor and its workers, as bytes; both ends use this file.

A frame is four bytes of length, big endian, and one message: a msgpack array whose first element is
the verb. Evolution: fields are appended at the end with defaults, so that either end may be older;
a new verb is sent only to who said a version that knows it.

child -> executor   Hello  Started  Done  Beat  Output  Leaving
executor -> child   Welcome  Refused  Run  Cancel  Lease  Drain

A task is an attempt. It has a number, which counts up within one connection and is never used
again there. The work of a job is sent once, under a number that tasks refer to. A child reports
each of its tasks once: in a `Done`, or, if it never began, in a `Leaving`. A task that is `Done`
with a start of 0 never began either, and never will here.
"""

from __future__ import annotations

import enum
import struct
from typing import Annotated, Final, Generic, TypeAlias, TypeVar

import msgspec

from launcher.errors import invariant
from launcher.protocol.orders import StartBatch
from launcher.protocol.work import HANDLER_TIMEOUT_MS, NO_TIMEOUT_MS
from launcher.worker.errors import BadFrame, FrameTooBig

VERSION: Final = 2
"""Of this protocol, in Hello and Welcome. Each task of version 1 had its work and its name."""
PULSE_MS: Final = 1_000
"""How often a busy child sends at least one message."""
FRAME_BYTES_MAX: Final = 16 << 20
"""One message. A payload has at most 256 KiB, so that dozens of the largest fit into one Run."""
OUTPUT_PIECE_BYTES_MAX: Final = 64 << 10
"""Output in one message: outcomes and heartbeats must not wait behind a flood."""
TOKEN_CHARS_MAX: Final = 1 << 10
DETAIL_BYTES_MAX: Final = 1 << 10
"""The detail of a handler's end in UTF-8: why it failed, or the text that it returned."""

_LENGTH: Final = struct.Struct(">I")
Ms: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A time or duration from the other end fits into every number that this side stores."""
T = TypeVar("T")


class Result(enum.IntEnum):
    """How a handler ended. The numbers are on the wire: append, never renumber."""

    OK = 0
    RETRY = 1
    FATAL = 2
    SNOOZE = 3
    RAISED = 4
    CANCELLED = 5
    LOST = 6


class Served(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A handler that a child serves, with its author's options; 0 for none.

    A task gets the smaller ones of these and of its job's options. `resumes`: a task that was begun
    in a child that is dead may be given to another child, which looks up what became of it.
    """

    name: str
    timeout_ms: Ms = 0
    heartbeat_ms: Ms = 0
    resumes: bool = False


class TaskWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job and its work at one revision. `number` is valid until a `Run` that forgets.

    `timeout_ms` and `heartbeat_ms` are 0 for none. `guarded`: its tasks must not outlive the
    executor's lease (rule R6). `labels`, `traceparent` and `results` as in WorkSpec.
    """

    number: int
    job: str
    handler: str
    payload: bytes
    timeout_ms: Ms = 0
    heartbeat_ms: Ms = 0
    guarded: bool = False
    priority: int = 5
    labels: tuple[tuple[str, str], ...] = ()
    traceparent: str = ""
    results: tuple[tuple[str, str], ...] = ()


class Ends(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tasks that ended alike. `tasks` has each one's number, start and end, in milliseconds of the
    wall clock; a task with a start of 0 never began.

    `after_ms` is, with RETRY and SNOOZE, how long to wait from its end; 0: not said.
    """

    result: Result
    tasks: list[tuple[int, Ms, Ms]]
    after_ms: Ms = 0
    detail: str = ""


# ---- child to executor


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", gc=False):
    """The first message of a child, and only the first.

    A child with `memory_max_bytes` of memory is renewed by its parent; with half as much again its
    executor or its parent kills it. 0: no bound. While a handler runs, the child sends a message at
    least every `pulse_ms`, if only an empty `Beat`, unless its process is stopped or a handler
    holds the interpreter's lock. 0: it may be silent. `token` is what grants it its handlers, if
    the executor asks for one.
    """

    version: int
    group: str
    handlers: list[Served]
    threads: int
    buffer: int
    pid: int
    parent_pid: int
    memory_max_bytes: Ms = 0
    pulse_ms: Ms = 0
    token: Annotated[str, msgspec.Meta(max_length=TOKEN_CHARS_MAX)] = ""


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started", gc=False):
    """Threads begin with these tasks, after this message is with the kernel.

    Bytes in a socket outlive their writer. So once everything in the socket of a dead child was
    read, a task that is in no Started has never begun. (The connection may not end: a process that
    a handler forked may hold the socket open.) Quick handlers are announced a few ahead.
    """

    tasks: list[int]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """These tasks are over. Each was in a `Started` before, or has a start of 0."""

    ends: list[Ends]


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat", gc=False):
    """The handlers of these tasks sent heartbeats."""

    tasks: list[int]


class Output(msgspec.Struct, frozen=True, array_like=True, tag="output", gc=False):
    """Output of a handler, in the order in which it was written."""

    task: int
    piece: bytes


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag="leaving", gc=False):
    """The child accepts no more tasks. Those in `returned` never began here and never will; the
    others are finished first.

    It is sent again for tasks that arrive later. The child closes the connection after its last
    outcome.
    """

    returned: list[int]


# ---- executor to child


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome", gc=False):
    """The answer to Hello. `lease_until_ms` is on the boot-time clock; 0: no lease now.
    `executor` is the id of the executor, "" of one that does not say it."""

    lease_until_ms: Ms
    version: int = VERSION
    executor: str = ""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused", gc=False):
    """The other answer to Hello: why this child gets no tasks, for people."""

    text: str


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run", gc=False):
    """Run these; at most `threads + buffer` of a child are unfinished at a time.

    `tasks` are attempts of batches, whose columns have one value for all, or one for each. `works`
    are new. With `forgets` the child forgets all works before them. `resumed` are the tasks that a
    child had begun which is dead.
    """

    tasks: list[StartBatch[int]]
    works: list[TaskWork] = []
    forgets: bool = False
    resumed: list[int] = []


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel", gc=False):
    """The number and `Reason` of each task that shall end. One that has not begun ends at once."""

    tasks: list[tuple[int, int]]


class Lease(msgspec.Struct, frozen=True, array_like=True, tag="lease", gc=False):
    """The lease was renewed; milliseconds of the boot-time clock."""

    until_ms: Ms


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain", gc=False):
    """Accept no more tasks, send Leaving, finish those that run, and leave."""


FromChild: TypeAlias = Hello | Started | Done | Beat | Output | Leaving
ToChild: TypeAlias = Welcome | Refused | Run | Cancel | Lease | Drain

_ENCODER: Final = msgspec.msgpack.Encoder()
_FROM_CHILD: Final[msgspec.msgpack.Decoder[FromChild]] = msgspec.msgpack.Decoder(FromChild)
_TO_CHILD: Final[msgspec.msgpack.Decoder[ToChild]] = msgspec.msgpack.Decoder(ToChild)


def effective_ms(job_ms: int, handler_ms: int) -> int:
    """Return the smaller bound of a job's and a handler's; 0 is no bound."""
    return min(job_ms, handler_ms) if job_ms and handler_ms else job_ms or handler_ms


def timeout_of(job_ms: int, handler_ms: int) -> int:
    """Return how long a task may run, 0 for any time: the smaller timeout of its job's and its
    handler's, HANDLER_TIMEOUT_MS if neither has one."""
    timeout_ms = effective_ms(job_ms, handler_ms) or HANDLER_TIMEOUT_MS
    return 0 if timeout_ms >= NO_TIMEOUT_MS else timeout_ms


def encode(message: FromChild | ToChild) -> bytes:
    """Return the frame of a message.

    Raises:
        FrameTooBig: it would be longer than FRAME_BYTES_MAX.
    """
    body = _ENCODER.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        verb = type(message).__name__.lower()
        raise FrameTooBig(f"a {verb} message of {len(body)} bytes is over {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[T]):
    """Bytes in as they arrive, messages out; it keeps incomplete frames."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._rest = bytearray()
        self._is_broken = False

    def feed(self, received: bytes) -> list[T]:
        """Return the messages that are complete now, in order.

        Raises:
            BadFrame: a frame is no message of this end, or is too big; nothing more can be read,
                and the messages before it in these bytes are lost with the connection.
        """
        invariant(not self._is_broken, "nothing can be read after a bad frame")
        self._rest += received
        messages, start, size = [], 0, len(self._rest)
        with memoryview(self._rest) as view:
            while size - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                if length > FRAME_BYTES_MAX:
                    self._is_broken = True
                    raise FrameTooBig(f"a frame of {length} bytes is over {FRAME_BYTES_MAX}")
                begin = start + _LENGTH.size
                end = begin + length
                if end > size:
                    break
                with view[begin:end] as body:
                    try:
                        messages.append(self._decoder.decode(body))
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        self._is_broken = True
                        text = f"a frame of {length} bytes is no message: {error}"
                        raise BadFrame(text) from error
                start = end
        del self._rest[:start]
        return messages


def from_child() -> Frames[FromChild]:
    """Return the reader of an executor's end."""
    return Frames(_FROM_CHILD)


def to_child() -> Frames[ToChild]:
    """Return the reader of a child's end."""
    return Frames(_TO_CHILD)
