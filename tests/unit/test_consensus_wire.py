"""Frames, envelopes and settings: what is accepted, and that nothing else is."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zlib
from typing import get_args

import msgspec
import pysyncobj.pickle
import pysyncobj.syncobj
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.config import EngineConfig
from consensus.engine import guard
from consensus.engine.envelope import BARRIER, ENTRY, Origin, seal, unseal
from consensus.engine.network.wire import (
    HEADER,
    PROTOCOL,
    Answer,
    Append,
    BadFrame,
    Beat,
    DumpAnswer,
    DumpChunk,
    FrameReader,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Message,
    Part,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    TimeoutNow,
    Vote,
    Welcome,
    encode_frame,
    from_library,
    negotiate,
)
from consensus.errors import BadConfig, InvariantViolated, UnknownFormat

MESSAGES: list[Message] = [
    Hello(PROTOCOL, PROTOCOL, "default", "r1", "r2", 1, 77, False),
    Welcome(PROTOCOL, "r1", 1, 77, True),
    Goodbye("replaced", 2, "r2 was replaced"),
    RequestVote(4, 17, 3),
    Vote(4),
    PreVote(5, 17, 3),
    PreVoteAnswer(4, 5, True),
    Append(4, 10, 9, 3, 1234, [(b"\x00x", 10, 4), (b"", 11, 4)]),
    Answer(4, 12, True, 1234),
    TimeoutNow(4),
    DumpChunk(4, 100, 3, 5_000, 0, 99, b"piece", b"digest"),
    DumpAnswer(4, 100, 5, 99),
    Beat(),
    Heartbeat(4, 10, 1234),
    HeartbeatAnswer(4, 1234),
    Part(3, b"pa"),
]


def test_every_message_is_among_the_examples() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))
    tags = [type(message).__struct_config__.tag for message in MESSAGES]
    assert len(set(tags)) == len(tags)


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pickle.dumps({"type": "append_entries"}),
        msgspec.msgpack.encode({"type": "append_entries", "term": 1}),
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([2, -1]),
        msgspec.msgpack.encode([2, 2**63]),
        msgspec.msgpack.encode([2, "1"]),
        msgspec.msgpack.encode([0, 1, b"\xff", "r2"]),
        msgspec.msgpack.encode([3, 1, 1, 1, 1, 1, [["text", 1, 1]]]),
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    reader = FrameReader(10_000)
    reader.feed(framed(body))
    with pytest.raises(BadFrame):
        reader.next()


@pytest.mark.parametrize("depth", [980, 5_000, 200_000])
def test_a_nest_of_arrays_is_a_bad_frame_like_any_other(depth: int) -> None:
    # In the place of a field that a newer version may have appended.
    body = b"\x92\x0c" + b"\x91" * depth + b"\x90"
    reader = FrameReader(1 << 20)
    reader.feed(framed(body) + encode_frame(Vote(4)))
    if depth > sys.getrecursionlimit():
        with pytest.raises(BadFrame, match="recursion"):
            reader.next()
    else:
        try:
            assert reader.next() == Beat()
        except BadFrame as error:
            assert "recursion" in str(error)  # noqa: PT017 - how deep we are is pytest's doing
    assert reader.next() == Vote(4)


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [
        ((2, 2), (2, 2), 2),
        ((2, 2), (3, 2), 2),
        ((3, 2), (2, 2), 2),
        ((5, 3), (4, 1), 4),
        ((2, 2), (4, 3), 0),
        ((4, 3), (2, 1), 0),
        ((2, 2), (2, 3), 0),
        ((2, 2), (0, 0), 0),
    ],
)
def test_the_newest_common_protocol_is_spoken(
    ours: tuple[int, int], theirs: tuple[int, int], spoken: int
) -> None:
    hellos = [Hello(*both, "default", "r1", "r2", 1, 77, False) for both in (ours, theirs)]
    assert negotiate(*hellos) == spoken


def test_the_librarys_own_message_is_translated_and_no_other() -> None:
    vote = {"type": "request_vote", "term": 4, "last_log_index": 17, "last_log_term": 3}
    assert from_library(vote) == RequestVote(4, 17, 3)
    with pytest.raises(InvariantViolated):
        from_library({"type": "apply_command"})


@given(st.sampled_from([ENTRY, BARRIER]), st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_an_envelope_opens_to_what_was_sealed(kind: int, number: int, entry: bytes) -> None:
    origin = Origin("r1", number, number)
    sealed = seal(kind, origin, entry)
    envelope = unseal(sealed)
    assert envelope is not None
    assert (envelope.kind, envelope.origin, envelope.entry) == (kind, origin, entry)


def test_the_engines_own_entries_have_no_envelope() -> None:
    assert unseal(b"\x01") is None


@pytest.mark.parametrize("command", [b"", b"\x00", b"\x02membership", b"\x03version"])
def test_a_command_that_is_neither_stops_the_replica(command: bytes) -> None:
    with pytest.raises(InvariantViolated):
        unseal(command)


def test_an_entry_of_a_newer_version_stops_the_replica_and_says_so() -> None:
    with pytest.raises(UnknownFormat, match="kind 7"):
        unseal(b"\x00\x07" + b"\x00" * 40)


def config(**changed: object) -> EngineConfig:
    settings: dict[str, object] = {
        "replica": "r1",
        "peers": {"r1": "127.0.0.1:7410", "r2": "127.0.0.1:7411", "r3": "[::1]:7412"},
        "data": "d",
    }
    return EngineConfig(**(settings | changed))  # type: ignore[arg-type]


def test_the_defaults_are_valid_and_step_down_before_a_successor_can_be_elected() -> None:
    config().validate()
    assert config().fallback_ms < config().election_min_ms


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"replica": "r9"}, "r9"),
        ({"peers": {"r1": "10.0.0.1:7410"}}, "not loopback"),
        ({"peers": {"r1": "0.0.0.0:7410"}}, "not loopback"),
        ({"peers": {"r1": "r1.example.com:7410"}}, "not loopback"),
        ({"peers": {"r1": "127.0.0.1"}}, "host:port"),
        ({"peers": {"r1": "127.0.0.1:0"}}, "host:port"),
        ({"peers": {"r1": "127.0.0.1:65536"}}, "host:port"),
        ({"peers": {"r1": "127.0.0.1:1", "r2": "127.0.0.1:1"}}, "one address"),
        ({"peers": {"r1": "127.0.0.1:1", "": "127.0.0.1:2"}}, "1 to 100 bytes"),
        ({"election_min_ms": 400}, "five times heartbeat_ms"),
        ({"election_max_ms": 1_000}, "elections collide"),
        ({"heartbeat_ms": 5}, "at least 10"),
        ({"snapshot_entries": 1}, "snapshot_entries"),
    ],
)
def test_an_unsafe_setting_is_refused_with_its_reason(
    changed: dict[str, object], says: str
) -> None:
    with pytest.raises(BadConfig, match=says):
        config(**changed).validate()


def test_no_path_of_the_library_unpickles() -> None:
    guard.stand()
    evil = pickle.dumps(print)
    with pytest.raises(guard.Unpickling):
        pysyncobj.pickle.loads(evil)
    with pytest.raises(guard.Unpickling):
        pysyncobj.pickle.load(evil)
    with pytest.raises(guard.Unpickling):
        pysyncobj.journal.loads(evil)
    with pytest.raises(InvariantViolated):
        pysyncobj.syncobj.createJournal("a path")


def test_another_version_of_the_library_is_refused() -> None:
    program = (
        "import pysyncobj.version; pysyncobj.version.VERSION = '0.3.18'\n"
        "from consensus.engine import guard\n"
        "guard.stand()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode != 0
    assert b"PySyncObj is 0.3.18" in done.stderr
