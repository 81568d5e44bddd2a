"""What any bytes on a connection between replicas may do: end that connection, and nothing else.

The first byte chooses a door. Behind some of them frames are made right, so that what is behind the
checksum is reached too.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from typing import Final

from consensus.engine.network.net import Connection
from consensus.engine.network.wire import (
    HEADER,
    BadFrame,
    FrameReader,
    Hello,
    Message,
    Welcome,
    encode_frame,
)
from tests.unit.network_rig import Cell, MemoryNetwork, hello_of

_BYTES_MAX: Final = 400


def feed(content: bytes) -> None:
    """Give `content` to one of the doors."""
    logging.getLogger("consensus").setLevel(logging.CRITICAL)
    try:
        if content:
            DOORS[content[0] % len(DOORS)](content[1:])
    finally:
        logging.getLogger("consensus").setLevel(logging.NOTSET)


def stream(content: bytes) -> None:
    """As a stream, cut somewhere or not: both mean the same."""
    cut, content = (content[0] if content else 0), content[1:]
    whole, pieces = FrameReader(_BYTES_MAX), FrameReader(_BYTES_MAX)
    if _read(whole, [content]) != _read(pieces, [content[:cut], content[cut:]]):
        raise RuntimeError("a cut changes what is read")


def body(content: bytes) -> None:
    """As the body of a frame: a message of it is the same after it was sent again."""
    got = _read(FrameReader(len(content)), [sealed(content)])
    for message in got:
        if isinstance(message, str):
            continue
        if _read(FrameReader(1 << 16), [encode_frame(message)]) != [message]:
            raise RuntimeError(f"{message} does not come back")


def stranger(content: bytes) -> None:
    """As what somebody says who never said its name: nobody hears it."""
    cell = Cell("r1")
    somebody = cell.stranger()
    somebody.say(content)
    _check_is_whole(cell, heard=0)


def peer(content: bytes) -> None:
    """As what somebody says who was believed: messages, or the end."""
    cell = Cell("r1")
    somebody = cell.stranger()
    somebody.say(hello_of("r2"))
    if not isinstance(somebody.answers[0], Welcome):
        raise RuntimeError("a peer was refused")
    somebody.say(*frames(content))
    _check_is_whole(cell, heard=len(content) + 1)


def answerer(content: bytes) -> None:
    """As what comes back where this replica dialled: a welcome, or the end."""
    cell = Cell("r1")
    there = MemoryNetwork(cell.world)
    taken: list[Connection] = []
    there.listen(cell.peers["r2"], taken.append)
    cell.run(0.3)
    there.poll(0.0)
    (connection,) = taken
    for frame in frames(content):
        connection.write(frame)
        cell.run()
    if cell.stations["r1"].got:
        raise RuntimeError("a message came the wrong way")


def frames(content: bytes) -> Iterator[bytes]:
    """Cut `content` into bodies by lengths that are in it, and make a frame of each."""
    while content:
        length, content = content[0], content[1:]
        yield sealed(content[:length])
        content = content[length:]


def sealed(content: bytes) -> bytes:
    """Return the frame of a body."""
    return HEADER.pack(len(content), zlib.crc32(content)) + content


def _read(reader: FrameReader, pieces: list[bytes]) -> list[Message | str]:
    got: list[Message | str] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (message := reader.next()) is not None:
                got.append(message)
    except BadFrame as error:
        got.append(str(error))
    return got


def _check_is_whole(cell: Cell, *, heard: int) -> None:
    """Fail unless r1 heard no more than it should, and hears its other peer."""
    one = cell.stations["r1"]
    if len(one.got) > heard or any(name != "r2" for name, _ in one.got):
        raise RuntimeError(f"r1 heard {one.got}")
    other = cell.stranger()
    other.say(hello_of("r3"))
    if not isinstance(other.answers[0], Welcome) or one.links:
        raise RuntimeError("r1 does not hear its peers any more")
    if any(isinstance(message, Hello | Welcome) for _, message in one.got):
        raise RuntimeError("an introduction was taken for a message")


DOORS: Final = (stream, body, stranger, peer, answerer)
