"""Messages between executor and worker: whole or in pieces, bounded, and told from garbage."""

from __future__ import annotations

import msgspec
import pytest

from launcher.errors import InvariantViolated
from launcher.worker.errors import BadFrame, FrameTooBig
from launcher.worker.wire import (
    FRAME_BYTES_MAX,
    VERSION,
    Beat,
    Cancel,
    Done,
    Drain,
    Ends,
    FromChild,
    Hello,
    Lease,
    Leaving,
    Output,
    Refused,
    Result,
    Run,
    Served,
    Started,
    TaskWork,
    ToChild,
    Welcome,
    effective_ms,
    encode,
    from_child,
    to_child,
)
from tests.sent_tasks import tasks_of

WORK = TaskWork(3, "acme/job", "shop.invoice", b"\x00\xff", 5, guarded=True)
TASKS = tasks_of(5, 88_141, "0.3.r1", [3, 3], [1_800_000_000], [3], [0, 1], [1])
FROM_CHILD: list[FromChild] = [
    Hello(VERSION, "shop", [Served("a", 5, 6)], 8, 32, 10, 9),
    Started([5, 6]),
    Done([Ends(Result.RETRY, [(5, 1, 2), (6, 1, 3)], 5000, "busy")]),
    Beat([5, 5]),
    Output(5, b"\x00\xfftext"),
    Leaving([]),
]
TO_CHILD: list[ToChild] = [
    Welcome(123),
    Refused("draining"),
    Run([TASKS], [WORK], forgets=True),
    Cancel([(5, 6)]),
    Lease(1 << 40),
    Drain(),
]

GARBAGE = [
    *("empty", "no msgpack", "unknown verb", "text for a number", "negative time"),
    *("no fields", "more behind it", "no utf-8", "too deep"),
]


def test_every_message_of_a_child_survives_the_way() -> None:
    assert from_child().feed(b"".join(map(encode, FROM_CHILD))) == FROM_CHILD


def test_every_message_of_an_executor_survives_the_way() -> None:
    assert to_child().feed(b"".join(map(encode, TO_CHILD))) == TO_CHILD


def test_frames_may_arrive_byte_by_byte() -> None:
    frames, heard = to_child(), []
    for byte in b"".join(map(encode, TO_CHILD)):
        heard += frames.feed(bytes([byte]))
    assert heard == TO_CHILD


def test_a_frame_is_given_out_once_and_the_next_half_is_kept() -> None:
    whole, half = encode(Drain()), encode(Lease(7))
    frames = to_child()
    assert frames.feed(whole + half[:5]) == [Drain()]
    assert frames.feed(b"") == []
    assert frames.feed(half[5:]) == [Lease(7)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\xa4junk\x01\x02",
        b"\x92\xa5lease\xa1x",
        b"\x92\xa5lease\xff",
        b"\x91\xa5lease",
        b"\x91\xa5drain\x00",
        b"\x92\xa7refused\xa2\xff\xfe",
        b"\x92\xa3run" + b"\x91" * 100_000,
    ],
    ids=GARBAGE,
)
def test_garbage_is_refused_by_name(body: bytes) -> None:
    frame = len(body).to_bytes(4, "big") + body
    with pytest.raises(BadFrame, match="is no message"):
        to_child().feed(frame)


def test_a_message_of_the_wrong_end_is_refused() -> None:
    with pytest.raises(BadFrame):
        from_child().feed(encode(Drain()))


def test_a_length_over_the_bound_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameTooBig, match=str(FRAME_BYTES_MAX)):
        to_child().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_frame_of_just_the_bound_passes() -> None:
    frame = encode(Output(5, bytes(FRAME_BYTES_MAX - 100)))
    (heard,) = from_child().feed(frame)
    assert isinstance(heard, Output)


def test_nothing_is_read_after_a_bad_frame() -> None:
    frames = to_child()
    with pytest.raises(BadFrame):
        frames.feed(b"\x00\x00\x00\x01\xc1")
    with pytest.raises(InvariantViolated):
        frames.feed(encode(Drain()))


def test_a_message_over_the_bound_is_not_made() -> None:
    with pytest.raises(FrameTooBig, match="output message"):
        encode(Output(5, bytes(FRAME_BYTES_MAX)))


def test_an_older_end_reads_what_a_newer_one_appends_and_the_other_way_round() -> None:
    newer = msgspec.msgpack.encode(["lease", 5, "appended"])
    assert to_child().feed(len(newer).to_bytes(4, "big") + newer) == [Lease(5)]
    older = msgspec.msgpack.encode(["run", [], [[3, "a/b", "h", b""]]])
    (run,) = to_child().feed(len(older).to_bytes(4, "big") + older)
    assert run == Run([], [TaskWork(3, "a/b", "h", b"")])


@pytest.mark.parametrize(
    ("job", "handler", "both"), [(0, 0, 0), (5, 0, 5), (0, 7, 7), (5, 7, 5), (7, 5, 5)]
)
def test_the_smaller_of_two_bounds_holds(job: int, handler: int, both: int) -> None:
    assert effective_ms(job, handler) == both
