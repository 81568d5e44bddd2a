"""Raft, message by message, on a network that only records: the hazards that cost others data."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import pytest

from consensus.engine.handover import Changed, Committed, Refused, Restored
from consensus.engine.membership import Member, encode_members
from consensus.engine.network.peering import ANSWERS_S
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Heartbeat,
    PreVoteAnswer,
    RequestVote,
    TimeoutNow,
    Vote,
)
from consensus.engine.storage.dump import IN_FORCE, Dump, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.errors import InvariantViolated
from consensus.leadership import Leadership, Position
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.raft_rig import R2, R3, TOKENS, Rig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.close()


class Unlucky(random.Random):
    """Chance that loses everything it can."""

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


def reopened(rig: Rig) -> FileJournal:
    """Return the journal as it would be after a power cut that takes all that was not synced."""
    disk = copy.deepcopy(rig.disk)
    disk.power_cut(Unlucky())
    return FileJournal.open(disk, "r1", "default")


def entries(*places: tuple[int, int]) -> list[tuple[bytes, int, int]]:
    return [(b"\x01", index, term) for index, term in places]


def test_a_follower_commits_only_what_the_message_has_verified(rig: Rig) -> None:
    # S1: its own tail after the verified part may be another leader's leftover
    answers = rig.hear(R2, Append(2, 4, 2, 1, 7, []))
    assert answers == [Answer(2, 3, True, 7)]
    assert rig.raft.commit == 2
    rig.hear(R2, Append(2, 4, 2, 1, 8, entries((3, 1), (4, 2))))
    assert rig.raft.commit == 4
    assert rig.handed() == [(2, 1), (3, 1), (4, 2)]


def dump_at(index: int, state: bytes) -> Callable[[MemoryDisk], Dump]:
    return lambda disk: write_dump(
        disk, IN_FORCE, Position(2, index), encode_members({}), [state[:1000], state[1000:]]
    )


def test_parts_of_a_dump_commit_nothing(rig: Rig) -> None:
    # S1: with stock PySyncObj, 3 of 3 uncommitted commands were reported as done
    elsewhere = MemoryDisk()
    dump = dump_at(50, b"state" * 100)(elsewhere)
    content = elsewhere.open(IN_FORCE).read(0, 10_000)
    chunk = DumpChunk(2, 50, 2, len(content), 0, 9, content[:100], dump.digest)
    assert rig.hear(R2, chunk) == [DumpAnswer(2, 50, 100, 9)]
    assert rig.raft.commit == 1
    assert not any(isinstance(event, Committed | Restored) for event in rig.handover.events)
    rest = DumpChunk(2, 50, 2, len(content), 100, 10, content[100:], dump.digest)
    assert Answer(2, 51, True, 10) in rig.hear(R2, rest)
    assert rig.raft.commit == 50
    [restored] = [e for e in rig.handover.events if isinstance(e, Restored)]
    assert restored.dump.position == dump.position
    assert b"".join(restored.pieces) == b"state" * 100
    assert rig.hear(R2, chunk) == [Answer(2, 51, True, 9)], "it is here already"


def test_a_repeated_older_message_cuts_nothing(rig: Rig) -> None:
    # S2: 6 of 10 acknowledged entries were lost this way
    assert rig.hear(R2, Append(1, 1, 1, 0, 1, entries((2, 1)))) == [Answer(1, 3, True, 1)]
    assert len(rig.journal) == 4


def test_an_answer_leaves_after_its_entries_are_durable(rig: Rig) -> None:
    rig.hear(R2, Append(2, 1, 4, 1, 1, entries((5, 2))))
    assert reopened(rig)[-1][1:] == (5, 2)


def test_a_leader_of_an_older_term_learns_the_newer_one(rig: Rig) -> None:
    rig.hear(R2, Append(5, 1, 4, 1, 1, []))
    assert rig.hear(R3, Append(4, 4, 4, 1, 2, [])) == [Answer(5, 0, False, 2)]
    assert rig.raft.commit == 1
    assert rig.belief == Leadership(5, False, "r2")


def test_one_vote_a_term_and_only_for_a_log_as_long(rig: Rig) -> None:
    assert rig.hear(R2, RequestVote(3, 3, 1)) == [], "its log is shorter"
    assert rig.hear(R2, RequestVote(3, 9, 0)) == [], "its last term is older"
    assert rig.hear(R2, RequestVote(3, 4, 1)) == [Vote(3)]
    assert rig.hear(R3, RequestVote(3, 9, 2)) == [], "the vote is given"
    assert reopened(rig).vote == "r2"
    assert rig.hear(R2, RequestVote(3, 4, 1)) == [Vote(3)], "the same one again"
    assert rig.hear(R3, RequestVote(2, 9, 2)) == [], "an older term"


def test_a_vote_of_another_term_does_not_count(rig: Rig) -> None:
    question = rig.ask()
    rig.hear(R2, PreVoteAnswer(1, question.term, True))
    assert rig.raft.term == 2
    rig.hear(R2, Vote(1))
    assert not rig.raft.leads, "a vote of another term"
    rig.hear(R2, Vote(2))
    assert rig.raft.leads
    assert rig.belief == Leadership(2, True, "r1")


def test_a_leader_commits_what_a_majority_has_in_its_own_term(rig: Rig) -> None:
    # Raft §5.4.2: entries of older terms commit only under one of the leader's own
    rig.lead()
    term, now = rig.raft.term, rig.now_ms()
    rig.hear(R2, Answer(term, 5, True, now))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == 1
    rig.hear(R2, Answer(term, 6, True, now))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == 5


def test_an_answer_of_an_earlier_leadership_counts_for_nothing(rig: Rig) -> None:
    # S14
    rig.lead()
    rig.hear(R2, Answer(rig.raft.term - 1, 6, True, 1))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == 1


def test_an_answer_beyond_the_own_log_counts_for_nothing(rig: Rig) -> None:
    rig.lead()
    rig.hear(R2, Answer(rig.raft.term, 100, True, 1))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == 1


def test_an_answer_of_a_newer_term_ends_a_leadership(rig: Rig) -> None:
    rig.lead()
    rig.hear(R2, Answer(99, 0, False, 1))
    assert rig.belief == Leadership(99, False, None)
    assert reopened(rig).term == 99


def test_a_refusal_moves_the_next_index_back_only_and_not_below_what_is_matched(rig: Rig) -> None:
    # D
    rig.lead()
    term, following = rig.raft.term, rig.raft.following
    rig.hear(R2, Answer(term, 4, True, 1))
    for hint, expected in ((100, 6), (5, 5), (2, 4), (1, 4), (6, 4)):
        [sent] = rig.hear(R2, Answer(term, hint, False, 1))[:1] or [None]
        assert following[R2] == expected
        if sent is not None:
            assert isinstance(sent, Append)
            assert sent.prev_index == expected - 1
    rig.hear(R2, Answer(term, 6, True, 1))
    assert following[R2] == 6


def test_a_refusal_of_an_older_term_of_ours_says_nothing_about_the_log(rig: Rig) -> None:
    # R2 stood for election in this term before us, and our last message of an older one came late.
    rig.lead()
    following, answered_s = rig.raft.following[R2], rig.raft.answered_s[R2]
    rig.hear(R2, Answer(rig.raft.term, 0, False, rig.now_ms()))
    assert rig.raft.following[R2] == following, "a log that begins at 1 would need a dump"
    assert rig.raft.answered_s[R2] == answered_s
    assert rig.raft.leads


def test_a_leader_without_answers_steps_down_by_the_time_of_sending(rig: Rig) -> None:
    # a late answer to an old message proves nothing about now
    rig.lead()
    term = rig.raft.term
    long_ago = rig.now - rig.config.fallback_ms / 1000 - 1
    for node in (R2, R3):
        rig.raft.answered_s[node] = long_ago
    rig.transport._onMessageReceived(R2, Answer(term, 6, True, int(long_ago * 1000)))
    rig.raft.doTick(0.0)
    assert not rig.raft.leads
    assert rig.belief == Leadership(term, False, None)


def test_appends_are_refused_where_nobody_leads_and_logged_together_where_one_does(
    rig: Rig,
) -> None:
    rig.raft.offer(1, b"\x01a")
    rig.raft.offer(2, b"\x01b")
    rig.raft.doTick(0.0)
    assert Refused([1, 2]) in rig.handover.events
    rig.lead()
    rig.hear(R2, Answer(rig.raft.term, 6, True, rig.now_ms()))
    syncs = rig.disk.syncs
    rig.transport.sent.clear()
    for counter in range(3, 13):
        rig.raft.offer(counter, b"\x01c")
    rig.raft.doTick(0.0)
    assert rig.disk.syncs == syncs + 1
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
    term, now = rig.raft.term, rig.now_ms()
    rig.raft.ask(lambda: rig.raft.leading.begin_transfer("r3"))
    rig.raft.offer(1, b"\x01x")
    assert TimeoutNow(term) not in rig.hear(R3, Answer(term, 5, True, now))
    assert rig.journal[-1][1] == 5, "new appends wait"
    assert TimeoutNow(term) in rig.hear(R3, Answer(term, 6, True, now))


def test_only_the_leader_can_ask_for_an_election(rig: Rig) -> None:
    rig.hear(R2, Append(2, 1, 4, 1, 1, []))
    rig.hear(R3, TimeoutNow(2))
    assert not rig.raft.is_candidate
    asked = rig.hear(R2, TimeoutNow(2))
    assert RequestVote(3, 4, 1) in asked


def test_a_committed_entry_that_a_leader_contradicts_stops_the_replica(rig: Rig) -> None:
    rig.hear(R2, Append(2, 4, 4, 1, 1, []))
    assert rig.raft.commit == 4
    with pytest.raises(InvariantViolated):
        rig.hear(R2, Append(2, 4, 3, 1, 1, entries((4, 2))))


def test_a_follower_behind_the_journal_is_sent_the_dump_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, [], dump=founded_dump)
    rig.lead()
    whole = rig.disk.open(IN_FORCE)
    sent = rig.hear(R2, Answer(rig.raft.term, 3, False, 1))
    got, offset = b"", 0
    while len(got) < whole.size:
        [chunk] = [message for message in sent if isinstance(message, DumpChunk)]
        assert (chunk.index, chunk.index_term, chunk.offset) == (50, 1, offset)
        got += chunk.piece
        offset += len(chunk.piece)
        if offset < chunk.size:
            sent = rig.hear(R2, DumpAnswer(rig.raft.term, 50, offset, 1))
    assert got == whole.read(0, whole.size)
    assert rig.raft.leading.peers()["r2"].dump_size == whole.size
    sent = rig.hear(R2, Answer(rig.raft.term, 51, True, 1))
    assert [m.prev_index for m in sent if isinstance(m, Append)][:1] == [50]
    assert rig.raft.leading.peers()["r2"].dump_size == 0
    rig.close()


def founded_dump(disk: MemoryDisk) -> Dump:
    members = {name: Member(1, token, votes=True) for name, token in TOKENS.items()}
    return write_dump(disk, IN_FORCE, Position(1, 50), encode_members(members), [b"x" * 600_000])


def lead_level(rig: Rig) -> None:
    """Lead two followers that have all entries."""
    rig.lead()
    for node in (R2, R3):
        rig.hear(node, Answer(rig.raft.term, 6, True, rig.now_ms()))
    rig.raft.doTick(0.0)


def test_entries_are_a_heartbeat_and_the_next_one_carries_the_commit_index(rig: Rig) -> None:
    lead_level(rig)
    rig.raft.offer(1, b"\x01x")
    rig.tick()
    for node in (R2, R3):
        rig.hear(node, Answer(rig.raft.term, 7, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == 6
    heartbeat_s = rig.config.heartbeat_ms / 1000
    assert rig.tick(0.9 * heartbeat_s) == []
    sent = dict(rig.tick(0.5 * heartbeat_s))
    assert {to: (m.commit_index, m.entries) for to, m in sent.items() if isinstance(m, Append)} == {
        "r2": (6, []),
        "r3": (6, []),
    }


def test_entries_that_wait_behind_others_are_no_heartbeat(rig: Rig) -> None:
    # A follower with a slow disk answers no entries, and must not cost the leader its leadership.
    lead_level(rig)
    beats = 0
    for counter in range(1, 1 + 6 * rig.config.heartbeat_ms // 50):
        rig.raft.offer(counter, b"\x01x")
        beats += sum(isinstance(message, Heartbeat) for _, message in rig.tick(0.05))
    assert beats >= 2 * 4, "two followers, for six intervals"


def test_a_leader_waits_for_the_other_answers_only_while_it_has_nothing_else_to_do(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[float] = []
    lead_level(rig)
    rig.tick()
    monkeypatch.setattr(rig.transport.network, "poll", polls.append, raising=False)
    rig.raft.doTick(0.1)
    assert polls == [0.1, ANSWERS_S]
    polls.clear()
    rig.raft.offer(1, b"\x01x")
    rig.raft.doTick(0.1)
    assert polls == [0.1], "the answers decide when the entry is committed"
    polls.clear()
    rig.now += rig.config.heartbeat_ms / 1000
    rig.hear(R2, Answer(rig.raft.term, 7, True, rig.now_ms()))
    rig.raft.step_down(rig.raft.term)
    polls.clear()
    rig.raft.doTick(0.1)
    assert polls == [0.1], "a follower has messages to answer"


def test_a_tick_that_did_all_there_is_to_do_waits_at_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tick that finds nothing to do costs as much as one that does something.
    polls: list[float] = []
    rig.hear(R2, Append(2, 1, 4, 1, rig.now_ms(), entries((5, 2))))
    monkeypatch.setattr(rig.transport.network, "poll", polls.append, raising=False)
    rig.transport._onMessageReceived(R2, Append(2, 5, 5, 2, rig.now_ms(), entries((6, 2))))
    assert (rig.raft.applied, rig.raft.pause_s()) == (1, 0), "an entry is committed"
    rig.raft.doTick(60.0)
    assert rig.handed()[-1] == (5, 2)
    assert reopened(rig)[-1][1:] == (6, 2)
    rig.lead()
    for node in (R2, R3):
        rig.hear(node, Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    followed_s = polls[0]
    polls.clear()
    rig.raft.offer(1, b"\x01x")
    rig.raft.doTick(60.0)
    assert reopened(rig)[-1][1:] == (8, rig.raft.term)
    assert len(polls) == 1, "the entry is on its way"
    assert min(followed_s, polls[0]) > rig.config.heartbeat_ms / 2_000
    rig.raft.stopping = True
    assert rig.raft.pause_s() == 0


def test_a_tick_waits_until_something_is_due(rig: Rig) -> None:
    heartbeat_s = rig.config.heartbeat_ms / 1000
    term = rig.raft.term + 1
    rig.hear(R2, Append(term, 1, 4, 1, rig.now_ms(), []))
    assert heartbeat_s < rig.raft.pause_s() < rig.config.election_min_ms / 2_000
    rig.now += rig.config.election_max_ms / 1000 - 0.01
    assert rig.raft.pause_s() <= 0.04, "its election timeout ends, or has ended"
    lead_level(rig)
    assert 0 < rig.raft.pause_s() < heartbeat_s + 0.002
    rig.raft.offer(1, b"\x01x")
    assert rig.raft.pause_s() == 0
