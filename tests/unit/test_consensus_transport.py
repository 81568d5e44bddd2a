"""Who is spoken and listened to: introductions, refusals, one voice per peer, strangers."""

from __future__ import annotations

import logging

import pytest

from consensus.engine.membership import REPLACED, UNKNOWN
from consensus.engine.network.complaints import EVERY_S
from consensus.engine.network.links import REFUSED_EVERY_S
from consensus.engine.network.station import INTRODUCED_WITHIN_S
from consensus.engine.network.wire import (
    HEADER,
    MISTAKEN,
    NO_PROTOCOL,
    PROTOCOL,
    Append,
    Beat,
    DumpChunk,
    Goodbye,
    Hello,
    Message,
    RequestVote,
    Vote,
    Welcome,
    encode_frame,
)
from consensus.limits import (
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    STRANGERS_MAX,
)
from tests.unit.network_rig import IDS, Cell, Stranger, hello_of

APPEND = Append(4, 10, 9, 3, 1234, [(b"x", 10, 4)])
CHUNK = DumpChunk(4, 100, 3, 5_000, 0, 99, b"piece")
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


def test_peers_that_judge_each_other_good_speak_on_the_connection_that_they_dialled() -> None:
    cell = Cell(*IDS)
    one = cell.stations["r1"]
    assert not one.send("r2", Vote(4)), "nothing leaves before a welcome"
    cell.run()
    assert sorted(one.links) == ["r2 up", "r3 up"]
    assert one.transport.protocol("r2") == PROTOCOL
    assert one.send("r2", Vote(4), APPEND)
    cell.run()
    assert cell.stations["r2"].got == [("r1", APPEND), ("r1", Vote(4))]
    assert cell.stations["r3"].got == []
    assert one.got == []


def test_each_side_judges_the_other_with_its_token(cell: Cell) -> None:
    judged = cell.stations["r1"].gate.judged
    hellos = {one.sender: one.token for one in judged if isinstance(one, Hello)}
    welcomes = {one.sender: one.token for one in judged if isinstance(one, Welcome)}
    assert hellos == welcomes == {"r2": 102, "r3": 103}


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


def test_who_says_another_name_than_its_certificate_is_refused(cell: Cell) -> None:
    liar = cell.stranger(proves="r3")
    liar.say(hello_of("r2"))
    (goodbye,) = liar.answers
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.reason, goodbye.text[:25]) == (MISTAKEN, "the certificate proves r3")
    honest = cell.stranger(proves="r3")
    honest.say(hello_of("r3"))
    assert isinstance(honest.answers[0], Welcome)


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
    "first", [Vote(4), Beat(), Welcome(PROTOCOL, "r2", 1, 1, False), OUT, APPEND]
)
def test_who_begins_with_anything_but_a_hello_is_cut_off(cell: Cell, first: Message) -> None:
    stranger = cell.stranger()
    stranger.say(first)
    assert stranger.is_over
    assert stranger.answers == []
    assert cell.stations["r1"].gate.refusals == []


def test_who_speaks_on_before_its_welcome_is_cut_off_with_what_it_said(cell: Cell) -> None:
    # As does whoever plays back a recorded connection.
    stranger = cell.stranger()
    stranger.say(encode_frame(hello_of("r2")) + encode_frame(APPEND))
    assert stranger.is_over
    assert stranger.answers == []
    assert cell.stations["r1"].got == []
    assert cell.stations["r1"].gate.gone == [], "r2 itself is still heard"


def test_a_stranger_may_say_no_more_than_a_hello_takes(cell: Cell) -> None:
    stranger = cell.stranger()
    stranger.say(HEADER.pack(HELLO_BYTES_MAX + 1, 0))
    assert stranger.is_over
    peer = introduced(cell)
    peer.say(HEADER.pack(MESSAGE_BYTES_MAX, 0))
    assert not peer.is_over
    other = introduced(cell, "r3")
    other.say(HEADER.pack(MESSAGE_BYTES_MAX + 1, 0))
    assert other.is_over


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


def test_who_is_refused_later_loses_both_connections_at_once(cell: Cell) -> None:
    one, two = cell.stations["r1"], cell.stations["r2"]
    one.gate.refuses["r2"] = OUT
    one.transport.rejudge()
    assert one.links[-1] == "r2 down"
    assert one.gate.gone == ["r2"]
    assert one.transport.peer("r2") is None
    assert not one.send("r2", Vote(4))
    two.send("r1", Vote(4))
    cell.run()
    assert one.got == []
    assert two.gate.refusals[:2] == [("r1", OUT)] * 2
    assert one.reaches("r3")
    assert "r3 down" not in one.links
    closed = [end.closed_after_ms for end in one.network.ends]
    assert closed.count(1_000) == 2, "both goodbyes had time to leave"


def test_rejudging_changes_nothing_for_those_that_are_good(cell: Cell) -> None:
    before = list(cell.stations["r1"].links)
    cell.stations["r1"].transport.rejudge()
    cell.run(1.0)
    assert cell.stations["r1"].links == before
    assert cell.stations["r1"].gate.gone == []


def test_a_refused_peer_is_asked_again_and_comes_in_when_it_may() -> None:
    cell = Cell("r1", "r2")
    one = cell.stations["r1"]
    one.gate.refuses["r2"] = Goodbye(UNKNOWN, 1, "not yet")
    cell.run(REFUSED_EVERY_S * 2 + 0.2)
    asked = [one for one in one.gate.judged if isinstance(one, Welcome)]
    assert 2 <= len(asked) <= 4
    one.gate.refuses.clear()
    cell.run(REFUSED_EVERY_S + 0.2)
    assert one.reaches("r2")
    assert cell.stations["r2"].reaches("r1")


def test_a_goodbye_of_any_length_arrives() -> None:
    cell = Cell("r1", "r2")
    cell.stations["r1"].gate.refuses["r2"] = Goodbye(UNKNOWN, 1, "ü\U0001f642" * 1_000)
    cell.run()
    assert cell.stations["r2"].gate.refusals
    text = cell.stations["r2"].gate.refusals[0][1].text
    assert text.startswith("ü\U0001f642ü")
    assert len(text.encode()) <= 500


def test_a_goodbye_on_a_connection_that_was_good_ends_it(cell: Cell) -> None:
    peer = introduced(cell)
    peer.say(OUT)
    assert peer.is_over
    assert cell.stations["r1"].gate.refusals == [("r2", OUT)]
    assert cell.stations["r1"].gate.gone == ["r2"]


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


def test_who_is_refused_does_not_push_out_who_is_there() -> None:
    cell = Cell("r1")
    peer = introduced(cell)
    for changed in ({"cell": "other"}, {"receiver": "r2"}, {"protocol": 1}):
        cell.stranger().say(hello_of("r2", **changed))
    peer.say(Vote(4))
    assert cell.stations["r1"].got == [("r2", Vote(4))]


def test_a_peer_whose_connection_breaks_is_gone_once() -> None:
    cell = Cell("r1")
    peer = introduced(cell)
    peer.end.close()
    cell.run()
    assert cell.stations["r1"].gate.gone == ["r2"]
    stranger = cell.stranger()
    stranger.end.close()
    cell.run()
    assert cell.stations["r1"].gate.gone == ["r2"], "a stranger is no peer"


def test_a_bad_frame_of_a_peer_ends_its_connection_and_nothing_else(cell: Cell) -> None:
    one = cell.stations["r1"]
    peer = introduced(cell)
    peer.say(encode_frame(Vote(4)), b"\xff" * 40, encode_frame(Vote(5)))
    assert peer.is_over
    assert one.got == [("r2", Vote(4))]
    assert one.gate.gone == ["r2"]
    assert one.reaches("r2", "r3"), "what r1 says to others is not touched"


# ---- who is there


def test_the_peer_at_the_other_end_is_known_from_either_side() -> None:
    cell = Cell("r1")
    one = cell.stations["r1"].transport
    cell.run()
    assert one.peer("r2") is None
    caller = introduced(cell, token=7)
    assert one.peer("r2") == hello_of("r2", token=7)
    caller.end.close()
    cell.run()
    assert one.peer("r2") is None
    assert one.peer("nobody") is None


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


def test_any_number_of_idle_strangers_keeps_no_peer_out() -> None:
    cell = Cell("r1")
    crowd = [cell.stranger() for _ in range(100)]
    for stranger in crowd:
        stranger.run()
    assert sum(not stranger.is_over for stranger in crowd) == STRANGERS_MAX
    peer = introduced(cell)
    peer.say(Vote(4))
    assert cell.stations["r1"].got == [("r2", Vote(4))]


def test_a_thousand_strangers_cost_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    cell = Cell("r1")
    with caplog.at_level(logging.WARNING, "consensus"):
        for _ in range(300):
            cell.stranger().say(b"\xff" * 40)
        lines = [record.getMessage() for record in caplog.records if "stranger" in record.message]
        assert len(lines) == 1
        assert "is over 1024" in lines[0]
        cell.clock.now += EVERY_S
        cell.stranger().say(b"GET / HTTP/1.1\r\n\r\n")
    assert "(and 299 more of this kind)" in caplog.records[-1].getMessage()


def test_a_name_from_a_socket_cannot_write_lines_of_its_own(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "consensus"):
        cell.stranger().say(hello_of("r2\nr3 is lost: everything"))
    assert any("stranger" in record.getMessage() for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)
