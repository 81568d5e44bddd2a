"""Frames by property: round trips, any cut, any bytes, newer and older senders."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consensus.engine.network.wire import (
    HEADER,
    Append,
    BadFrame,
    Beat,
    DumpChunk,
    FrameReader,
    Message,
    Vote,
    encode_frame,
)
from tests.fuzz import frame_bytes

COUNTS = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
TEXTS = st.text(max_size=20)
BYTES = st.binary(max_size=60)
KINDS = sorted(get_args(Message), key=lambda kind: kind.__name__)


def messages_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Messages of a kind with anything that fits in their fields."""
    fits: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(kind):
        match field.name:
            case "cell" | "sender" | "receiver" | "address" | "reason" | "text":
                fits[field.name] = TEXTS
            case "joins" | "granted" | "accepted" | "withholds":
                fits[field.name] = st.booleans()
            case "piece" | "digest" | "content":
                fits[field.name] = BYTES
            case "entries":
                fits[field.name] = st.lists(st.tuples(BYTES, COUNTS, COUNTS), max_size=4)
            case "peers":
                fits[field.name] = st.lists(TEXTS, max_size=4).map(tuple)
            case _:
                fits[field.name] = COUNTS
    return st.builds(kind, **fits)


MESSAGES: st.SearchStrategy[Message] = st.one_of(*(messages_of(kind) for kind in KINDS))


def read(stream: bytes, cuts: list[int], bytes_max: int = 1 << 20) -> tuple[list[Message], str]:
    """What comes out of a stream that is fed in pieces, and what it ends with."""
    reader, got = FrameReader(bytes_max), []
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    try:
        for begin, end in itertools.pairwise(places):
            reader.feed(stream[begin:end])
            while (message := reader.next()) is not None:
                got.append(message)
    except BadFrame as error:
        return got, str(error)
    return got, f"{reader.left_bytes} bytes are left"


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body), zlib.crc32(body)) + body


@given(st.lists(MESSAGES, max_size=6), st.lists(st.integers(0, 600), max_size=12))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[Message], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame(message) for message in messages)
    assert read(stream, cuts) == (messages, "0 bytes are left")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
@example(b"\x00\x00\x00\x00\x00\x00\x00\x00", [])
@example(b"\x7f\xff\xff\xff\x00\x00\x00\x00", [4])
def test_any_bytes_mean_the_same_however_they_are_cut(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts, 1_000) == read(stream, [], 1_000)


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_ends_the_stream_before_its_message(
    messages: list[Message], place: int, bit: int
) -> None:
    frames = [encode_frame(message) for message in messages]
    stream = bytearray(b"".join(frames))
    place %= len(stream)
    stream[place] ^= 1 << bit
    got, _ = read(bytes(stream), [])
    untouched = 0
    while sum(map(len, frames[: untouched + 1])) <= place:
        untouched += 1
    assert got == messages[:untouched]


@given(st.binary(max_size=300))
@example(b"\x92\x0c" + b"\x91" * 298)
def test_any_body_is_a_message_or_a_bad_frame(body: bytes) -> None:
    got, _ = read(framed(body), [])
    for message in got:
        assert isinstance(message, tuple(KINDS))
        assert read(encode_frame(message), []) == ([message], "0 bytes are left")


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(ANYTHING)
def test_any_value_is_a_message_or_a_bad_frame(value: object) -> None:
    read(framed(msgspec.msgpack.encode(value)), [])


@given(MESSAGES, st.lists(ANYTHING, min_size=1, max_size=3))
def test_what_a_newer_version_appends_is_passed_over(message: Message, added: list[Any]) -> None:
    if isinstance(message, DumpChunk):
        message = msgspec.structs.replace(message, digest=message.digest or b"d")
    fields = msgspec.msgpack.decode(encode_frame(message)[HEADER.size :])
    newer = msgspec.msgpack.encode([*fields, *added])
    assert read(framed(newer), []) == ([message], "0 bytes are left")


@given(MESSAGES, st.data())
def test_what_lacks_a_field_or_has_another_type_there_is_refused(
    message: Message, data: st.DataObject
) -> None:
    fields = msgspec.msgpack.decode(encode_frame(message)[HEADER.size :])
    required = [one for one in msgspec.structs.fields(type(message)) if one.required]
    if not required:
        return
    shorter = data.draw(st.integers(0, len(required)))
    got, why = read(framed(msgspec.msgpack.encode(fields[:shorter])), [])
    assert (got, why[:20]) == ([], "frame is no message:")
    place = 1 + data.draw(st.integers(0, len(required) - 1))
    wrong = [*fields[:place], {"a": 1}, *fields[place + 1 :]]
    got, why = read(framed(msgspec.msgpack.encode(wrong)), [])
    assert (got, why[:20]) == ([], "frame is no message:")


@given(st.sampled_from([kind for kind in KINDS if kind is not Beat]), st.data())
def test_numbers_beyond_what_a_log_holds_are_refused(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    message = data.draw(messages_of(kind))
    fields = msgspec.msgpack.decode(encode_frame(message)[HEADER.size :])
    numbers = [n for n, one in enumerate(fields) if n and type(one) is int]
    place = data.draw(st.sampled_from(numbers))
    fields[place] = data.draw(st.one_of(st.integers(2**62 + 1, 2**64 - 1), st.integers(-9, -1)))
    got, why = read(framed(msgspec.msgpack.encode(fields)), [])
    assert (got, why[:20]) == ([], "frame is no message:")


@given(st.integers(0, 2**32 - 1))
def test_a_length_over_the_limit_is_refused_on_sight(length: int) -> None:
    got, why = read(HEADER.pack(length, 1), [], 1_000)
    assert got == []
    assert ("is over 1000" in why) == (length > 1_000)


def test_a_large_message_in_small_pieces_is_read_in_no_time() -> None:
    # Quadratic copying would take minutes.
    message = Append(4, 10, 9, 3, 1234, [(bytes(range(256)) * 32_768, 10, 4)])
    frame = encode_frame(message)
    assert read(frame, list(range(0, len(frame), 1_000)), 1 << 24)[0] == [message]


# ---- the doors of the fuzzer that goes by coverage


@given(st.binary(max_size=200))
def test_no_door_lets_any_bytes_do_anything(content: bytes) -> None:
    for door in range(len(frame_bytes.DOORS)):
        frame_bytes.feed(bytes([door]) + content)


@pytest.mark.parametrize("door", range(5))
def test_the_doors_lead_somewhere(door: int) -> None:
    good = {
        0: b"\x01\x09" + encode_frame(Vote(4)),
        1: encode_frame(Vote(4))[HEADER.size :],
        2: encode_frame(Vote(4)),
        3: encode_frame(Vote(4))[HEADER.size :],
        4: encode_frame(Vote(4))[HEADER.size :],
    }
    assert len(frame_bytes.DOORS) == len(good)
    frame_bytes.feed(bytes([door]) + good[door])


def test_a_door_notices_what_must_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(*_: object) -> None:
        raise RecursionError("deep")

    monkeypatch.setattr(FrameReader, "next", fall_over)
    for door in range(len(frame_bytes.DOORS)):
        with pytest.raises(RecursionError):
            frame_bytes.feed(bytes([door]) + encode_frame(Vote(4)))
