"""A leader's heartbeats while entries or a dump are on their way, and what their answers mean."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pysyncobj.node import Node

from consensus.engine.envelope import ENTRY, Origin, seal
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpChunk,
    Heartbeat,
    HeartbeatAnswer,
    Message,
)
from consensus.limits import BATCH_BYTES, ENTRY_BYTES_MAX, WINDOW_BYTES
from tests.unit.raft_rig import R2, R3, Rig
from tests.unit.test_consensus_raft import founded_dump

HEARTBEAT_S = 0.1


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.close()


def lead(rig: Rig) -> int:
    """Lead, with followers that are level; return the term."""
    rig.lead()
    for node in (R2, R3):
        answer(rig, node)
    return rig.raft.term


def answer(rig: Rig, node: Node) -> list[Message]:
    """Let `node` say that it has all; return what it is sent then."""
    return rig.hear(node, Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms()))


def append(rig: Rig, size: int, count: int = 1) -> list[Message]:
    """Append entries; return what r2 is sent at once."""
    rig.transport.sent.clear()
    for counter in range(1, count + 1):
        rig.raft.offer(counter, seal(ENTRY, Origin("r1", 1, counter), bytes(size)))
    for _ in range(100):
        rig.raft.doTick(0.0)
    return rig.sent_to(R2)


def size_of(messages: list[Message]) -> int:
    return sum(len(entry[0]) for m in messages if isinstance(m, Append) for entry in m.entries)


def beat(rig: Rig) -> list[Message]:
    """Let a heartbeat come; return what r2 is sent."""
    rig.transport.sent.clear()
    rig.now += HEARTBEAT_S * 1.1
    rig.raft.doTick(0.0)
    return rig.sent_to(R2)


# --- the window


def test_no_more_than_a_window_of_entries_is_on_its_way_to_a_follower(rig: Rig) -> None:
    lead(rig)
    sent = append(rig, 10_000, count=400)
    assert WINDOW_BYTES - BATCH_BYTES <= size_of(sent) <= WINDOW_BYTES + BATCH_BYTES
    messages = [m for m in sent if isinstance(m, Append) and m.entries]
    assert all(size_of([m]) <= BATCH_BYTES + 10_100 for m in messages)
    got = [index for m in messages for _, index, _ in m.entries]
    for _ in range(100):
        sent = rig.hear(R2, Answer(rig.raft.term, got[-1] + 1, True, rig.now_ms()))
        assert size_of(sent) <= WINDOW_BYTES + BATCH_BYTES
        new = [i for m in sent if isinstance(m, Append) for _, i, _ in m.entries]
        if not new:
            break
        got += new
    assert got == list(range(got[0], rig.raft.last_index + 1)), "each once, in order"


def test_an_answer_to_a_part_of_the_window_makes_room_for_as_much(rig: Rig) -> None:
    lead(rig)
    messages = [m for m in append(rig, 10_000, count=400) if isinstance(m, Append) and m.entries]
    first = messages[0].entries
    sent = rig.hear(R2, Answer(rig.raft.term, first[-1][1] + 1, True, rig.now_ms()))
    assert 0 < size_of(sent) <= 2 * BATCH_BYTES


def test_a_largest_entry_goes_alone(rig: Rig) -> None:
    lead(rig)
    sent = append(rig, ENTRY_BYTES_MAX, count=3)
    assert size_of(sent) < ENTRY_BYTES_MAX + 1_000


# --- heartbeats


def test_a_follower_to_whom_nothing_is_on_its_way_is_sent_an_empty_append(rig: Rig) -> None:
    lead(rig)
    beat(rig)
    answer(rig, R2)
    [sent] = beat(rig)
    assert isinstance(sent, Append)
    assert sent.entries == []


def test_one_to_whom_entries_are_on_their_way_is_sent_a_heartbeat_as_well(rig: Rig) -> None:
    """The Append brings both logs in line again where answers were lost."""
    term = lead(rig)
    append(rig, 10_000, count=400)
    sent = beat(rig)
    assert Heartbeat(term, rig.raft.commit, rig.now_ms()) in sent
    assert [m.entries for m in sent if isinstance(m, Append)] == [[]]


def test_an_answer_to_a_heartbeat_keeps_a_leader_in_office_and_commits_nothing(rig: Rig) -> None:
    term = lead(rig)
    commit = rig.raft.commit
    append(rig, 100)
    for _ in range(30):
        beat(rig)
        rig.hear(R2, HeartbeatAnswer(term, rig.now_ms()))
    assert rig.raft.leads
    assert rig.raft.commit == commit
    assert rig.raft.matched[R2] == commit
    for _ in range(30):
        beat(rig)
    assert not rig.raft.leads, "nobody answers"


def test_answers_that_were_lost_do_not_stop_the_entries(rig: Rig) -> None:
    """The way back broke while the way there went on."""
    lead(rig)
    append(rig, 10_000, count=400)
    sent = beat(rig)
    [empty] = [m for m in sent if isinstance(m, Append)]
    sent = rig.hear(R2, Answer(rig.raft.term, empty.prev_index + 1, True, rig.now_ms()))
    assert size_of(sent) > BATCH_BYTES


def test_an_answer_of_another_term_counts_for_nothing_or_ends_the_leadership(rig: Rig) -> None:
    term = lead(rig)
    heard_s = rig.raft.heard_s[R2]
    rig.now += 0.05
    rig.hear(R2, HeartbeatAnswer(term - 1, rig.now_ms()))
    assert rig.raft.heard_s[R2] == heard_s
    rig.hear(R2, HeartbeatAnswer(term + 1, rig.now_ms()))
    assert not rig.raft.leads
    assert rig.raft.term == term + 1


def test_a_follower_answers_a_heartbeat_and_takes_nothing_from_it(rig: Rig) -> None:
    last = rig.raft.last_index
    sent = rig.hear(R2, Heartbeat(3, last + 100, 77))
    assert sent == [HeartbeatAnswer(3, 77)]
    assert rig.raft.leader == R2
    assert (rig.raft.last_index, rig.raft.commit) == (last, 1)
    assert rig.journal.term == 3, "kept before it is answered"
    for _ in range(40):
        rig.now += HEARTBEAT_S
        rig.hear(R2, Heartbeat(3, last + 100, 77))
        assert rig.raft.leader == R2, "it does not stand"


def test_a_heartbeat_of_an_older_term_is_told_the_newer_one(rig: Rig) -> None:
    rig.hear(R2, Heartbeat(5, 1, 77))
    assert rig.hear(R3, Heartbeat(4, 1, 77)) == [Answer(5, 0, False, 77)]
    assert rig.raft.leader == R2


# --- dumps


def test_a_piece_of_a_dump_goes_again_only_when_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a wire that takes longer for a piece than a heartbeat, repeating it would fill the way."""
    rig = Rig(monkeypatch, [], dump=founded_dump)
    rig.lead()
    sent = rig.hear(R2, Answer(rig.raft.term, 3, False, rig.now_ms()))
    assert [type(m) for m in sent] == [DumpChunk]
    waiting = {"r2": 100_000}
    monkeypatch.setattr(rig.transport, "unsent_bytes", lambda node: waiting.get(node.id, 0))
    assert [type(m) for m in beat(rig)] == [Heartbeat]
    waiting.clear()
    assert [type(m) for m in beat(rig)] == [DumpChunk, Heartbeat]
    rig.close()
