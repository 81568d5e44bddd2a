"""Who is spoken and listened to: introductions, refusals, one voice per peer, strangers."""

from __future__ import annotations

import logging

import pytest

from consensus.engine.membership import REPLACED, UNKNOWN
from consensus.engine.network.links import INTRODUCED_WITHIN_S
from consensus.engine.network.wire import (
    MISTAKEN,
    NO_PROTOCOL,
    PROTOCOL,
    Append,
    Goodbye,
    Message,
    RequestVote,
    Vote,
    Welcome,
    encode_frame,
)
from tests.unit.network_rig import IDS, Cell, Stranger, hello_of

APPEND = Append(4, 10, 9, 3, 1234, [(b"x", 10, 4)])
OUT = Goodbye(REPLACED, 2, "r2 was replaced: it is at incarnation 2 now")


@pytest.fixture
def cell() -> Cell:
    whole = Cell(*IDS)
    whole.run()
    return whole


def introduced(cell: Cell, name: str = "r2", **changed: object) -> Stranger:
    """Somebody on a connection to r1 who was welcomed as `name`."""
    stranger = cell.stranger()
    stranger.say(hello_of(name, **changed))
    assert [type(one) for one in stranger.answers] == [Welcome]
    return stranger


# ---- introductions


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cell": "other"}, MISTAKEN),
        ({"receiver": "r3"}, MISTAKEN),
        ({"sender": "r1"}, MISTAKEN),
        ({"sender": "r9"}, MISTAKEN),
        ({"sender": ""}, MISTAKEN),
        ({"protocol": PROTOCOL + 7, "protocol_least": PROTOCOL + 1}, NO_PROTOCOL),
        ({"protocol": PROTOCOL - 1, "protocol_least": 0}, NO_PROTOCOL),
        ({"protocol": PROTOCOL, "protocol_least": PROTOCOL + 1}, NO_PROTOCOL),
    ],
)
def test_a_hello_that_does_not_fit_is_answered_with_why(
    cell: Cell, changed: dict[str, object], reason: str
) -> None:
    stranger = cell.stranger()
    before = len(cell.stations["r1"].gate.judged)
    stranger.say(hello_of("r2", **changed))
    (goodbye,) = stranger.answers
    assert isinstance(goodbye, Goodbye)
    assert goodbye.reason == reason
    assert stranger.is_over
    stranger.say(APPEND)
    assert cell.stations["r1"].got == []
    assert len(cell.stations["r1"].gate.judged) == before, "the log has no say in this"
    assert cell.stations["r1"].gate.gone == []


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [((2, 2), (3, 2), 2), ((3, 2), (2, 2), 2), ((3, 2), (4, 3), 3), ((5, 1), (5, 1), 5)],
)
def test_both_speak_the_newest_protocol_that_both_know(
    ours: tuple[int, int], theirs: tuple[int, int], spoken: int
) -> None:
    cell = Cell("r1", "r2")
    cell.stations["r1"].gate.protocols = ours
    cell.stations["r2"].gate.protocols = theirs
    cell.run()
    assert cell.stations["r1"].transport.protocol("r2") == spoken
    assert cell.stations["r2"].transport.protocol("r1") == spoken


def test_two_without_a_common_protocol_say_so_and_neither_speaks() -> None:
    cell = Cell("r1", "r2")
    cell.stations["r2"].gate.protocols = (PROTOCOL + 2, PROTOCOL + 1)
    cell.run()
    for station, other in (("r1", "r2"), ("r2", "r1")):
        assert not cell.stations[station].reaches(other)
        (by, goodbye) = cell.stations[station].gate.refusals[0]
        assert (by, goodbye.reason) == (other, NO_PROTOCOL)
    said = f"speaks protocols {PROTOCOL} to {PROTOCOL}, the caller {PROTOCOL + 1} to {PROTOCOL + 2}"
    assert said in str(cell.stations["r2"].gate.refusals)


@pytest.mark.parametrize(
    "second", [hello_of("r2"), hello_of("r3"), Welcome(PROTOCOL, "r2", 1, 1, False)]
)
def test_nobody_introduces_itself_twice(cell: Cell, second: Message) -> None:
    peer = introduced(cell)
    peer.say(second)
    assert peer.is_over
    assert cell.stations["r1"].gate.gone == ["r2"]


# ---- refusals by the log


def test_who_is_refused_learns_why_and_is_not_heard(cell: Cell) -> None:
    cell.stations["r1"].gate.refuses["r2"] = OUT
    stranger = cell.stranger()
    stranger.say(hello_of("r2"))
    assert stranger.answers == [OUT]
    assert stranger.is_over
    assert cell.stations["r1"].gate.gone == [], "the refused one took nobody's place"


def test_who_is_refused_at_the_other_end_of_a_dial_learns_why() -> None:
    cell = Cell("r1", "r2")
    cell.stations["r1"].gate.refuses["r2"] = OUT
    cell.run()
    assert cell.stations["r1"].links == []
    assert cell.stations["r2"].links == []
    assert ("r1", OUT) in cell.stations["r2"].gate.refusals
    assert len(cell.stations["r2"].gate.refusals) == 2, "as caller and as called"
    assert cell.stations["r1"].gate.refusals == []


def test_a_goodbye_of_any_length_arrives() -> None:
    cell = Cell("r1", "r2")
    cell.stations["r1"].gate.refuses["r2"] = Goodbye(UNKNOWN, 1, "ü\U0001f642" * 1_000)
    cell.run()
    assert cell.stations["r2"].gate.refusals
    text = cell.stations["r2"].gate.refusals[0][1].text
    assert text.startswith("ü\U0001f642ü")
    assert len(text.encode()) <= 500


# ---- one voice per peer


def test_the_newest_connection_of_a_peer_ends_the_older_one() -> None:
    cell = Cell("r1")
    one = cell.stations["r1"]
    older = introduced(cell)
    newer = introduced(cell)
    older.run()
    assert older.is_over
    older.say(RequestVote(9, 1, 1))
    newer.say(Vote(4))
    assert one.got == [("r2", Vote(4))]
    assert one.gate.gone == [], "r2 is heard all the time"
    newer.end.close()
    cell.run()
    assert one.gate.gone == ["r2"]


def test_a_bad_frame_of_a_peer_ends_its_connection_and_nothing_else(cell: Cell) -> None:
    one = cell.stations["r1"]
    peer = introduced(cell)
    peer.say(encode_frame(Vote(4)), b"\xff" * 40, encode_frame(Vote(5)))
    assert peer.is_over
    assert one.got == [("r2", Vote(4))]
    assert one.gate.gone == ["r2"]
    assert one.reaches("r2", "r3"), "what r1 says to others is not touched"


# ---- who is there


def test_two_disks_that_speak_as_one_id_are_nobody(cell: Cell) -> None:
    one = cell.stations["r1"].transport
    found = one.peer("r2")
    assert found is not None
    assert found.token == 102
    other = introduced(cell, token=7)
    assert one.peer("r2") is None
    other.end.close()
    cell.run(1.0)
    assert one.peer("r2") is not None


# ---- strangers


def test_who_does_not_introduce_itself_in_time_is_cut_off() -> None:
    cell = Cell("r1")
    silent = cell.stranger()
    slow = cell.stranger()
    cell.run(INTRODUCED_WITHIN_S / 2)
    frame = encode_frame(hello_of("r2"))
    for place in range(6):
        slow.say(frame[place : place + 1])
        cell.run(INTRODUCED_WITHIN_S / 10)
    for stranger in (silent, slow):
        stranger.run()
        assert stranger.is_over
    peer = introduced(cell)
    cell.run(2 * INTRODUCED_WITHIN_S)
    assert not peer.is_over, "a peer may be silent"


def test_a_name_from_a_socket_cannot_write_lines_of_its_own(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "consensus"):
        cell.stranger().say(hello_of("r2\nr3 is lost: everything"))
    assert any("stranger" in record.getMessage() for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)
