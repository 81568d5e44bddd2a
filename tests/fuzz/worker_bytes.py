"""What any bytes on the socket between an executor and a worker may do: end that connection."""

from __future__ import annotations

import struct
from typing import Any, Final

from launcher.protocol.orders import StartBatch
from launcher.worker import wire
from launcher.worker.errors import BadFrame
from tests.fuzz.subject import Subject, check_same

_LENGTH: Final = struct.Struct(">I")


def stream_of_child(content: bytes) -> bool:
    """As a stream from a worker, cut somewhere or not."""
    return _stream(wire.from_child, content)


def stream_of_executor(content: bytes) -> bool:
    """As a stream from an executor."""
    return _stream(wire.to_child, content)


def message_of_child(content: bytes) -> bool:
    """As the body of one message from a worker."""
    return _message(wire.from_child, content)


def message_of_executor(content: bytes) -> bool:
    """As the body of one message from an executor."""
    return _message(wire.to_child, content)


def _stream(end: Any, content: bytes) -> bool:
    cut, content = (content[0] if content else 0), content[1:]
    whole = _read(end(), [content])
    pieces = _read(end(), [content[:cut], content[cut:]])
    if whole[1] and not pieces[1]:
        check_same(whole, pieces, "an error")
    elif not whole[1]:
        check_same(whole, pieces, "a stream that is cut")
    return bool(whole[0]) and not whole[1]


def _message(end: Any, content: bytes) -> bool:
    found, error = _read(end(), [_LENGTH.pack(len(content)) + content])
    for one in found:
        check_same([one], _read(end(), [wire.encode(one)])[0], "a message")
    return bool(found) and not error


def _read(frames: Any, pieces: list[bytes]) -> tuple[list[object], bool]:
    found: list[object] = []
    try:
        for piece in pieces:
            found += frames.feed(piece)
    except BadFrame:
        return found, True
    return found, False


_FROM_CHILD: Final = (
    wire.Hello(2, "tasks", [wire.Served("mail", 5_000)], 4, 8, 71, 70),
    wire.Started([1, 2]),
    wire.Done([wire.Ends(wire.Result.OK, [(1, 5, 9)], detail="done")]),
    wire.Output(1, b"text"),
    wire.Leaving([3]),
)
_TO_CHILD: Final = (
    wire.Welcome(9_000, executor="executor-1"),
    wire.Run(
        [StartBatch(first=1, index=7, epoch="1.2.r1", works=[0], scheduled_s=[5, 6])],
        [wire.TaskWork(0, "shop/mail", "mail", b"{}", labels=(("a", "b"),))],
    ),
    wire.Cancel([(1, 3)]),
    wire.Lease(9_500),
    wire.Drain(),
)

SUBJECT: Final = Subject(
    (stream_of_child, stream_of_executor, message_of_child, message_of_executor),
    {
        "stream_of_child": [b"\x07" + b"".join(map(wire.encode, _FROM_CHILD))],
        "stream_of_executor": [b"\x13" + b"".join(map(wire.encode, _TO_CHILD))],
        "message_of_child": [wire.encode(one)[_LENGTH.size :] for one in _FROM_CHILD],
        "message_of_executor": [wire.encode(one)[_LENGTH.size :] for one in _TO_CHILD],
    },
)
