"""Raft, message by message, on a network that only records: the hazards that cost others data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.monotonic import monotonic
from pysyncobj.node import Node

from consensus.engine.config import EngineConfig
from consensus.engine.handover import Changed, Committed, Event, Handover, Refused, Restored
from consensus.engine.network.transport import PeerTransport
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Message,
    RequestVote,
    TimeoutNow,
    Vote,
    from_library,
)
from consensus.engine.raft import Raft
from consensus.engine.settings import Files
from consensus.engine.storage.dump import Dump, write_taken
from consensus.engine.storage.journal import FileJournal
from consensus.errors import InvariantViolated
from consensus.leadership import Leadership, Position
from tests.conformance.cells import free_ports

R2, R3 = Node("r2"), Node("r3")


class RecordingTransport(PeerTransport):
    """Keeps what is sent; nothing leaves. Whatever was flushed after a sync is in `flushed`."""

    def __init__(self, config: EngineConfig, nodes: dict[str, Node], journal: FileJournal) -> None:
        super().__init__(config, nodes, journal)
        self.sent: list[tuple[str, Message]] = []

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        message = from_library(message) if isinstance(message, dict) else message
        self.sent.append((node.id, message))
        return True

    def poll(self, timeout_s: float) -> None:
        """Nothing comes but what the test brings."""


class CollectingHandover(Handover):
    """Keeps what is handed over."""

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop(), self._never)
        self.events: list[Event] = []

    def _never(self, event: Event) -> None:
        raise AssertionError(event)

    def post(self, event: Event) -> None:
        self.events.append(event)

    def end(self) -> None:
        self._loop.close()


class Rig:
    def __init__(self, directory: Path, terms: list[int], dumped: Position | None = None) -> None:
        port = free_ports(1)[0]
        peers = {"r1": f"127.0.0.1:{port}", "r2": "127.0.0.1:1", "r3": "127.0.0.1:2"}
        self.config = EngineConfig(
            replica="r1",
            peers=peers,
            data=str(directory),
            election_min_ms=100_000,
            election_max_ms=200_000,
            heartbeat_ms=1_000,
        )
        self.files = Files(directory / "journal", directory / "dump")
        self.journal = FileJournal(self.files.journal, "r1")
        for index, term in enumerate(terms, 1):
            self.journal.add(b"\x01", index, term)
        nodes = {"r1": Node("r1"), "r2": R2, "r3": R3}
        self.transport = RecordingTransport(self.config, nodes, self.journal)
        self.handover = CollectingHandover()
        parts = (self.journal, self.transport, self.handover)
        self.raft = Raft(self.config, nodes, parts, self.files, dumped or Position())
        for node in (R2, R3):
            self.transport._onNodeConnected(node)

    def hear(self, node: Node, message: Message) -> list[Message]:
        """Let a message arrive and a tick pass; return what was sent to that node."""
        self.transport.sent.clear()
        self.transport._onMessageReceived(node, message)
        self.raft.doTick(0.0)
        return [sent for to, sent in self.transport.sent if to == node.id]

    def lead(self) -> None:
        """Win an election with r2's vote."""
        self.raft._SyncObj__raftElectionDeadline = 0.0
        self.raft.doTick(0.0)
        term = self.raft._SyncObj__raftCurrentTerm
        self.hear(R2, Vote(term))
        assert self.raft._isLeader()

    @property
    def commit(self) -> int:
        return self.raft._SyncObj__raftCommitIndex

    @property
    def belief(self) -> Leadership:
        return [e.leadership for e in self.handover.events if isinstance(e, Changed)][-1]

    def close(self) -> None:
        self.raft.destroy()
        self.handover.end()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, [0, 1, 1, 1])
    yield made
    made.close()


def entries(*places: tuple[int, int]) -> list[tuple[bytes, int, int]]:
    return [(b"\x01", index, term) for index, term in places]


def test_a_follower_commits_only_what_the_message_has_verified(rig: Rig) -> None:
    # S1: its own tail after the verified part may be another leader's leftover
    answers = rig.hear(R2, Append(2, 4, 2, 1, 7, []))
    assert answers == [Answer(2, 3, True, 7)]
    assert rig.commit == 2
    rig.hear(R2, Append(2, 4, 2, 1, 8, entries((3, 1), (4, 2))))
    assert rig.commit == 4
    handed = [
        e for event in rig.handover.events if isinstance(event, Committed) for e in event.entries
    ]
    assert [(index, term) for _, index, term in handed] == [(2, 1), (3, 1), (4, 2)]


def test_parts_of_a_dump_commit_nothing(rig: Rig, tmp_path: Path) -> None:
    # S1: with stock PySyncObj, 3 of 3 uncommitted commands were reported as done
    write_taken(tmp_path / "sent", Dump(Position(2, 50), b"state" * 100))
    content = (tmp_path / "sent").read_bytes()
    chunk = DumpChunk(2, 50, 2, len(content), 0, 9, content[:100])
    assert rig.hear(R2, chunk) == [DumpAnswer(2, 50, 100, 9)]
    assert rig.commit == 1
    assert not any(isinstance(event, Committed | Restored) for event in rig.handover.events)
    rest = DumpChunk(2, 50, 2, len(content), 100, 10, content[100:])
    assert rig.hear(R2, rest) == [Answer(2, 51, True, 10)]
    assert rig.commit == 50
    assert [e for e in rig.handover.events if isinstance(e, Restored)] == [
        Restored(Dump(Position(2, 50), b"state" * 100))
    ]
    assert rig.hear(R2, chunk) == [Answer(2, 51, True, 9)], "it is here already"


def test_a_repeated_older_message_cuts_nothing(rig: Rig) -> None:
    # S2: 6 of 10 acknowledged entries were lost this way
    assert rig.hear(R2, Append(1, 1, 1, 0, 1, entries((2, 1)))) == [Answer(1, 3, True, 1)]
    assert len(rig.journal) == 4


def test_an_answer_leaves_after_its_entries_are_durable(rig: Rig) -> None:
    rig.hear(R2, Append(2, 1, 4, 1, 1, entries((5, 2))))
    assert FileJournal(rig.files.journal, "r1")[-1] == (b"\x01", 5, 2)


def test_a_leader_of_an_older_term_learns_the_newer_one(rig: Rig) -> None:
    rig.hear(R2, Append(5, 1, 4, 1, 1, []))
    assert rig.hear(R3, Append(4, 4, 4, 1, 2, [])) == [Answer(5, 0, False, 2)]
    assert rig.commit == 1
    assert rig.belief == Leadership(5, False, "r2")


def test_one_vote_a_term_and_only_for_a_log_as_long(rig: Rig) -> None:
    assert rig.hear(R2, RequestVote(3, 3, 1)) == [], "its log is shorter"
    assert rig.hear(R2, RequestVote(3, 9, 0)) == [], "its last term is older"
    assert rig.hear(R2, RequestVote(3, 4, 1)) == [Vote(3)]
    assert rig.hear(R3, RequestVote(3, 9, 2)) == [], "the vote is given"
    assert FileJournal(rig.files.journal, "r1").vote == "r2"
    assert rig.hear(R2, RequestVote(3, 4, 1)) == [Vote(3)], "the same one again"
    assert rig.hear(R3, RequestVote(2, 9, 2)) == [], "an older term"


def test_a_vote_of_another_term_does_not_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [0])
    rig.raft._SyncObj__raftElectionDeadline = 0.0
    rig.raft.doTick(0.0)
    rig.hear(R2, Vote(0))
    assert not rig.raft._isLeader(), "a vote of another term"
    rig.hear(R2, Vote(1))
    assert rig.raft._isLeader()
    assert rig.belief == Leadership(1, True, "r1")
    rig.close()


def test_a_leader_commits_what_a_majority_has_in_its_own_term(rig: Rig) -> None:
    # Raft §5.4.2: entries of older terms commit only under one of the leader's own
    rig.lead()
    term, now = rig.raft._SyncObj__raftCurrentTerm, int(monotonic() * 1000)
    rig.hear(R2, Answer(term, 5, True, now))
    rig.raft.doTick(0.0)
    assert rig.commit == 1
    rig.hear(R2, Answer(term, 6, True, now))
    rig.raft.doTick(0.0)
    assert rig.commit == 5


def test_an_answer_of_an_earlier_leadership_counts_for_nothing(rig: Rig) -> None:
    # S14
    rig.lead()
    rig.hear(R2, Answer(rig.raft._SyncObj__raftCurrentTerm - 1, 6, True, 1))
    rig.raft.doTick(0.0)
    assert rig.commit == 1


def test_an_answer_beyond_the_own_log_counts_for_nothing(rig: Rig) -> None:
    rig.lead()
    rig.hear(R2, Answer(rig.raft._SyncObj__raftCurrentTerm, 100, True, 1))
    rig.raft.doTick(0.0)
    assert rig.commit == 1


def test_an_answer_of_a_newer_term_ends_a_leadership(rig: Rig) -> None:
    rig.lead()
    rig.hear(R2, Answer(99, 0, False, 1))
    assert rig.belief == Leadership(99, False, None)
    assert FileJournal(rig.files.journal, "r1").term == 99


def test_a_refusal_moves_the_next_index_back_only_and_not_below_what_is_matched(rig: Rig) -> None:
    # D
    rig.lead()
    term, following = rig.raft._SyncObj__raftCurrentTerm, rig.raft._SyncObj__raftNextIndex
    rig.hear(R2, Answer(term, 4, True, 1))
    for hint, expected in ((100, 6), (5, 5), (2, 4), (1, 4), (6, 4)):
        [sent] = rig.hear(R2, Answer(term, hint, False, 1))[:1] or [None]
        assert following[R2] == expected
        if sent is not None:
            assert isinstance(sent, Append)
            assert sent.prev_index == expected - 1
    rig.hear(R2, Answer(term, 6, True, 1))
    assert following[R2] == 6


def test_a_leader_without_answers_steps_down_by_the_time_of_sending(rig: Rig) -> None:
    # a late answer to an old message proves nothing about now
    rig.lead()
    term = rig.raft._SyncObj__raftCurrentTerm
    long_ago = monotonic() - rig.config.fallback_ms / 1000 - 1
    for node in (R2, R3):
        rig.raft._SyncObj__lastResponseTime[node] = long_ago
    rig.transport._onMessageReceived(R2, Answer(term, 6, True, int(long_ago * 1000)))
    rig.raft.doTick(0.0)
    assert not rig.raft._isLeader()
    assert rig.belief == Leadership(term, False, None)


def test_appends_are_refused_where_nobody_leads_and_logged_together_where_one_does(
    rig: Rig,
) -> None:
    rig.raft.offer(1, b"\x01a")
    rig.raft.offer(2, b"\x01b")
    rig.raft.doTick(0.0)
    assert Refused([1, 2]) in rig.handover.events
    rig.lead()
    rig.hear(R2, Answer(rig.raft._SyncObj__raftCurrentTerm, 6, True, int(monotonic() * 1000)))
    syncs = rig.journal.syncs
    rig.transport.sent.clear()
    for counter in range(3, 13):
        rig.raft.offer(counter, b"\x01c")
    rig.raft.doTick(0.0)
    assert rig.journal.syncs == syncs + 1
    appended = [m for to, m in rig.transport.sent if to == "r2" and isinstance(m, Append)]
    assert [len(message.entries) for message in appended] == [10]


def test_losing_leadership_says_which_appends_may_be_in_the_log(rig: Rig) -> None:
    rig.lead()
    rig.raft.offer(7, b"\x01x")
    rig.raft.doTick(0.0)
    rig.raft.offer(8, b"\x01y")
    rig.hear(R2, Answer(99, 0, False, 1))
    changes = [event for event in rig.handover.events if isinstance(event, Changed)]
    assert changes[-1].logged == 7
    assert Refused([8]) in rig.handover.events


def test_a_leader_that_is_asked_to_give_way_waits_until_the_heir_has_everything(rig: Rig) -> None:
    rig.lead()
    term, now = rig.raft._SyncObj__raftCurrentTerm, int(monotonic() * 1000)
    rig.raft.ask(lambda: rig.raft.begin_transfer("r3"))
    rig.raft.offer(1, b"\x01x")
    assert TimeoutNow(term) not in rig.hear(R3, Answer(term, 5, True, now))
    assert rig.journal[-1][1] == 5, "new appends wait"
    assert TimeoutNow(term) in rig.hear(R3, Answer(term, 6, True, now))


def test_only_the_leader_can_ask_for_an_election(rig: Rig) -> None:
    rig.hear(R2, Append(2, 1, 4, 1, 1, []))
    rig.hear(R3, TimeoutNow(2))
    assert rig.raft._SyncObj__raftState == 0
    asked = rig.hear(R2, TimeoutNow(2))
    assert RequestVote(3, 4, 1) in asked


def test_a_committed_entry_that_a_leader_contradicts_stops_the_replica(rig: Rig) -> None:
    rig.hear(R2, Append(2, 4, 4, 1, 1, []))
    assert rig.commit == 4
    with pytest.raises(InvariantViolated):
        rig.hear(R2, Append(2, 4, 3, 1, 1, entries((4, 2))))


def test_a_follower_behind_the_journal_is_sent_the_dump_piece_by_piece(tmp_path: Path) -> None:
    files = Files(tmp_path / "journal", tmp_path / "dump")
    write_taken(files.dump, Dump(Position(1, 50), b"x" * 600_000))
    FileJournal(files.journal, "r1").set_base(50, 1)
    rig = Rig(tmp_path, [], Position(1, 50))
    rig.lead()
    term = rig.raft._SyncObj__raftCurrentTerm
    sent = rig.hear(R2, Answer(term, 3, False, 1))
    got, offset = b"", 0
    while len(got) < files.dump.stat().st_size:
        [chunk] = [message for message in sent if isinstance(message, DumpChunk)]
        assert (chunk.index, chunk.index_term, chunk.offset) == (50, 1, offset)
        got += chunk.piece
        offset += len(chunk.piece)
        if offset < chunk.size:
            sent = rig.hear(R2, DumpAnswer(term, 50, offset, 1))
    assert got == files.dump.read_bytes()
    sent = rig.hear(R2, Answer(term, 51, True, 1))
    assert [m.prev_index for m in sent if isinstance(m, Append)][:1] == [50]
    rig.close()
