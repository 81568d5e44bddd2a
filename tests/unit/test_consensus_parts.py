"""Large messages go in parts, between which heartbeats have their place."""

from __future__ import annotations

from typing import Any

import pytest

from consensus.engine.network.wire import (
    HEADER,
    Append,
    BadFrame,
    Beat,
    DumpChunk,
    FrameReader,
    Message,
    Part,
    Parts,
    Vote,
    encode_frame,
    encode_frames,
)
from consensus.limits import MESSAGE_BYTES_MAX, PART_BYTES

LARGE = Append(4, 10, 9, 3, 1234, [(bytes(range(256)) * 1_000, 10, 4)])


def message_in(frame: bytes) -> Any:
    reader = FrameReader(1 << 20)
    reader.feed(frame)
    return reader.next()


def parts_of(message: Message) -> list[Part]:
    parts = [message_in(frame) for frame in encode_frames(message)]
    assert all(isinstance(part, Part) for part in parts)
    return parts


def test_a_large_message_goes_in_bounded_parts_and_comes_back_whole() -> None:
    frames = encode_frames(LARGE)
    assert len(frames) == 4
    assert max(map(len, frames)) < PART_BYTES + 64
    whole = Parts()
    for message in (LARGE, LARGE):
        got = [whole.take(part) for part in parts_of(message)]
        assert got == [None, None, None, message]


@pytest.mark.parametrize("size", [0, 1, *range(PART_BYTES - 40, PART_BYTES), 2 * PART_BYTES])
def test_a_message_of_any_size_comes_back(size: int) -> None:
    message = DumpChunk(4, 100, 3, 5_000, 0, 99, bytes(size), b"digest")
    frames = encode_frames(message)
    if len(frames) == 1:
        assert message_in(frames[0]) == message
    else:
        whole = Parts()
        assert [whole.take(part) for part in parts_of(message)][-1] == message


def test_parts_that_are_lost_repeated_or_empty_end_the_connection() -> None:
    first, second, third, _ = parts_of(LARGE)
    for said in ([first, third], [first, first], [second, first], [first, Part(first.left, b"")]):
        whole = Parts()
        assert whole.take(said[0]) is None
        with pytest.raises(BadFrame, match="does not continue"):
            whole.take(said[1])
    with pytest.raises(BadFrame, match="does not continue"):
        Parts().take(Part(0, b""))


@pytest.mark.parametrize("left", [MESSAGE_BYTES_MAX, 2**62])
def test_parts_are_refused_by_their_size_before_they_are_kept(left: int) -> None:
    with pytest.raises(BadFrame, match="are over"):
        Parts().take(Part(left, b"x"))


@pytest.mark.parametrize("message", [Vote(4), Part(0, b"x"), Beat()])
def test_only_entries_and_dumps_come_in_parts(message: Message) -> None:
    body = encode_frame(message)[HEADER.size :]
    with pytest.raises(BadFrame, match="came in parts"):
        Parts().take(Part(0, body))
    with pytest.raises(BadFrame, match="no message"):
        Parts().take(Part(0, b"x" + body))
