"""The way to a peer: dialled, kept warm, lost and dialled again; what leaves on it, and when."""

from __future__ import annotations

import pytest

from consensus.engine.membership import REPLACED
from consensus.engine.network.links import BEAT_EVERY_S, DIAL_EVERY_S
from consensus.engine.network.station import INTRODUCED_WITHIN_S
from consensus.engine.network.wire import (
    MISTAKEN,
    PROTOCOL,
    Answer,
    Append,
    Beat,
    DumpChunk,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Message,
    RequestVote,
    TimeoutNow,
    Vote,
    Welcome,
    encode_frame,
)
from consensus.limits import PART_BYTES, UNSENT_BYTES_MAX, WRITE_AHEAD_BYTES
from tests.unit.network_rig import IDS, Cell

APPEND = Append(4, 10, 9, 3, 1234, [(b"x", 10, 4)])
CHUNK = DumpChunk(4, 100, 3, 5_000, 0, 99, b"piece")
OUT = Goodbye(REPLACED, 2, "r2 was replaced: it is at incarnation 2 now")


@pytest.fixture
def cell() -> Cell:
    whole = Cell(*IDS)
    whole.run()
    return whole


# ---- links


def test_a_lost_link_is_dialled_at_once_and_then_every_200_ms(cell: Cell) -> None:
    cell.run(1.0)
    one, two = cell.stations["r1"], cell.stations.pop("r2")
    del cell.world[cell.peers["r2"]]
    dialled = one.network.dialled
    before = dialled.count(cell.peers["r2"])
    for end in two.network.ends:
        end.close()
    cell.run()
    assert one.links[-1] == "r2 down"
    assert dialled.count(cell.peers["r2"]) == before + 1
    cell.run(1.0, step_s=0.01)
    tries = dialled.count(cell.peers["r2"]) - before
    assert tries == pytest.approx(1 + 1.0 / DIAL_EVERY_S, abs=1)
    cell.add("r2")
    cell.run(DIAL_EVERY_S + 0.05)
    assert one.links[-1] == "r2 up"
    assert cell.stations["r2"].reaches("r1", "r3")


def test_a_peer_that_welcomes_and_hangs_up_is_not_dialled_without_end() -> None:
    cell = Cell("r1", "r2")
    two = cell.stations["r2"]
    ends = two.network.ends
    for _ in range(40):
        cell.run()
        for end in ends:
            end.close()
        cell.clock.now += 0.01
    dialled = cell.stations["r1"].network.dialled
    assert 2 <= dialled.count(cell.peers["r2"]) <= 3


def test_a_dial_that_nobody_answers_is_given_up(cell: Cell) -> None:
    cell = Cell("r1", "r2")
    two = cell.stations.pop("r2")  # it accepts and never polls again
    dialled = cell.stations["r1"].network.dialled
    cell.run(INTRODUCED_WITHIN_S - 0.2)
    assert dialled.count(cell.peers["r2"]) == 1
    cell.run(0.5)
    assert dialled.count(cell.peers["r2"]) == 2
    cell.stations["r2"] = two
    cell.run(0.5)
    assert cell.stations["r1"].reaches("r2")


def test_an_idle_link_beats_each_second_and_nobody_is_bothered(cell: Cell) -> None:
    one, two = cell.stations["r1"], cell.stations["r2"]
    beat = encode_frame(Beat())
    end = next(e for e in one.network.ends if e.writes and e.other.network is two.network)
    cell.run(5 * BEAT_EVERY_S + 0.4)
    assert end.writes.count(beat) == 5
    assert two.got == []
    for _ in range(20):
        one.send("r2", Vote(4))
        cell.run(0.25)
    assert end.writes.count(beat) == 5, "who speaks needs no beat"


def test_what_was_queued_for_a_lost_link_does_not_come_out_of_the_next(cell: Cell) -> None:
    one = cell.stations["r1"]
    cell.run(1.0)
    assert one.transport.send(one.nodes["r2"], Vote(4))
    assert one.transport.send(one.nodes["r2"], APPEND)
    for end in cell.stations["r2"].network.ends:
        end.close()
    cell.run(0.5)
    assert one.links[-2:] == ["r2 down", "r2 up"]
    assert one.transport.unsent_bytes(one.nodes["r2"]) == 0
    one.transport.flush()
    one.send("r2", Vote(5))
    cell.run()
    assert cell.stations["r2"].got == [("r1", Vote(5))]


def test_a_new_address_is_dialled_but_a_link_that_is_up_stays(cell: Cell) -> None:
    one = cell.stations["r1"]
    dialled = one.network.dialled
    one.transport.set_address("r2", "127.0.0.1:9999")
    one.transport.set_address("r1", "127.0.0.1:9998")
    cell.run(0.5)
    assert one.links[-1] in ("r2 up", "r3 up")
    assert "127.0.0.1:9999" not in dialled
    cell.world["127.0.0.1:9999"] = cell.world.pop(cell.peers["r2"])
    for end in cell.stations["r2"].network.ends:
        end.close()
    cell.run(0.5)
    assert dialled[-1] == "127.0.0.1:9999"
    assert one.reaches("r2")
    assert "127.0.0.1:9998" not in dialled


def test_an_address_that_changes_while_a_dial_is_under_way_is_dialled_instead() -> None:
    cell = Cell("r1")
    cell.world["127.0.0.1:9999"] = Cell("r2").stations["r2"].network
    one = cell.stations["r1"]
    one.transport.set_address("r2", "127.0.0.1:9999")
    cell.run(0.3)
    one.transport.set_address("r2", "127.0.0.1:9997")
    cell.run(0.3)
    dialled = [a for a in one.network.dialled if a != cell.peers["r3"]]
    assert dialled[-1] == "127.0.0.1:9997"


# ---- what leaves, and when


def test_entries_leave_before_the_sync_and_answers_after_it(cell: Cell) -> None:
    one = cell.stations["r1"]
    node = one.nodes["r2"]
    end = next(
        e for e in one.network.ends if e.writes and e.other.network is cell.stations["r2"].network
    )
    plain = end.write

    def write(content: bytes) -> None:
        one.steps.append("write")
        plain(content)

    end.write = write
    one.steps.clear()
    urgent = (Heartbeat(4, 9, 1), HeartbeatAnswer(4, 1))
    for message in (Vote(4), APPEND, urgent[0], Answer(4, 1, True, 1), CHUNK, TimeoutNow(4)):
        assert one.transport.send(node, message)
    assert one.transport.send(node, urgent[1])
    assert one.steps == [], "nothing leaves before the flush"
    one.transport.flush()
    assert one.steps == ["write", "write", "sync", "write"]
    assert end.writes[-3] == b"".join(encode_frame(message) for message in urgent)
    assert end.writes[-2] == encode_frame(APPEND) + encode_frame(CHUNK)
    late = (Vote(4), Answer(4, 1, True, 1), TimeoutNow(4))
    assert end.writes[-1] == b"".join(encode_frame(message) for message in late)
    assert one.transport.unsent_bytes(node) == 0


def test_heartbeats_and_votes_overtake_entries_that_the_connection_does_not_take(
    cell: Cell,
) -> None:
    one, two = cell.stations["r1"], cell.stations["r2"]
    end = next(e for e in one.network.ends if e.writes and e.other.network is two.network)
    large = Append(4, 10, 9, 3, 1234, [(bytes(3_000_000), 10, 4)])
    plain = end.write

    def write(content: bytes) -> None:
        end.unsent_bytes += len(content)
        plain(content)

    end.write = write
    assert one.send("r2", large, APPEND)
    assert end.unsent_bytes <= WRITE_AHEAD_BYTES + 2 * PART_BYTES
    assert one.send("r2", Vote(4), Heartbeat(4, 9, 1))
    for _ in range(100):
        end.unsent_bytes = 0  # the kernel has taken what it was given
        one.transport.flush()
    cell.run()
    assert two.got == [("r1", m) for m in (Heartbeat(4, 9, 1), Vote(4), large, APPEND)]


def test_a_flush_with_nothing_to_say_syncs_all_the_same(cell: Cell) -> None:
    one = cell.stations["r1"]
    one.steps.clear()
    one.transport.flush()
    assert one.steps == ["sync"]


def test_the_librarys_own_message_is_translated(cell: Cell) -> None:
    one = cell.stations["r1"]
    vote = {"type": "request_vote", "term": 4, "last_log_index": 17, "last_log_term": 3}
    assert one.transport.send(one.nodes["r2"], vote)
    one.transport.flush()
    cell.run()
    assert cell.stations["r2"].got == [("r1", RequestVote(4, 17, 3))]


def test_what_a_slow_peer_does_not_take_is_bounded(cell: Cell) -> None:
    one = cell.stations["r1"]
    node = one.nodes["r2"]
    large = Append(4, 10, 9, 3, 1234, [(bytes(1024 * 1024), 10, 4)])
    taken = 0
    while one.transport.send(node, large):
        taken += 1
        assert taken < 100
    unsent = one.transport.unsent_bytes(node)
    assert UNSENT_BYTES_MAX < unsent <= UNSENT_BYTES_MAX + 2 * 1024 * 1024
    one.transport.flush()
    assert one.transport.send(node, large), "the connection took it all"


def test_a_silenced_peer_is_neither_heard_nor_reached(cell: Cell) -> None:
    one, two = cell.stations["r1"], cell.stations["r2"]
    one.transport.silenced = frozenset({"r2"})
    assert not one.send("r2", Vote(4))
    assert one.send("r3", Vote(4))
    two.send("r1", Vote(5))
    cell.run(3.0)
    assert one.got == []
    one.transport.silenced = frozenset()
    assert one.send("r2", Vote(6))
    two.send("r1", Vote(7))
    cell.run()
    assert one.got == [("r2", Vote(7))]
    assert two.got == [("r1", Vote(6))]


def test_an_error_of_the_engine_is_not_taken_for_one_of_the_network(cell: Cell) -> None:
    one = cell.stations["r1"]

    def fail(*_: object) -> None:
        raise OSError(28, "no space left on device")

    one.transport.setOnMessageReceivedCallback(fail)
    cell.stations["r2"].send("r1", Vote(4))
    with pytest.raises(OSError, match="no space"):
        cell.run()


def test_the_bell_and_the_end_are_the_networks(cell: Cell) -> None:
    one = cell.stations["r1"]
    one.transport.ring()
    assert one.network.rings == 1
    one.transport.destroy()
    assert one.network.is_closed


# ---- what the other end of our own dial may say


def answering(said: list[Message]) -> tuple[Cell, list[str]]:
    """r1 dials r2, which answers with `said`; what r1's engine was told of links."""
    cell = Cell("r1", "r2")
    one, two = cell.stations["r1"], cell.stations["r2"]
    taken: list[Hello] = []

    def greet(proven: str | None, hello: Hello) -> Welcome | Goodbye:
        taken.append(hello)
        for message in said[:-1]:
            one.network.ends[0].other.write(encode_frame(message))
        last = said[-1]
        assert isinstance(last, Welcome | Goodbye)
        return last

    two.transport.greet = greet  # type: ignore[method-assign]
    cell.run()
    assert taken
    return cell, one.links


def test_a_welcome_under_another_name_is_refused_and_told_so() -> None:
    cell, links = answering([Welcome(PROTOCOL, "r3", 1, 103, False)])
    assert links == []
    refusals = cell.stations["r2"].gate.refusals
    assert refusals[0][0] == "r1"
    assert refusals[0][1].reason == MISTAKEN


@pytest.mark.parametrize("protocol", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_a_welcome_in_a_protocol_that_was_not_offered_is_refused(protocol: int) -> None:
    assert answering([Welcome(protocol, "r2", 1, 102, False)])[1] == []


@pytest.mark.parametrize("extra", [Vote(4), APPEND, Welcome(PROTOCOL, "r2", 1, 102, False)])
def test_messages_go_one_way_only(extra: Message) -> None:
    cell, links = answering([extra, Welcome(PROTOCOL, "r2", 1, 102, False)])
    assert links in ([], ["r2 up", "r2 down"])
    assert not cell.stations["r1"].reaches("r2")
    assert cell.stations["r1"].got == []
