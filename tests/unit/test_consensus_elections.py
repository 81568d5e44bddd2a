"""Elections: nobody is disturbed without need, nobody votes twice, a dead leader is missed soon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.membership import Replace, encode_change
from consensus.engine.network.wire import (
    Append,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    TimeoutNow,
    Vote,
)
from consensus.leadership import Leadership
from tests.unit.raft_rig import FOUND, R2, R3, TOKENS, Rig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A replica that has just started and reached the others."""
    made = Rig(monkeypatch, returns=True)
    yield made
    made.close()


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A replica of a cell that nobody has founded yet."""
    made = Rig(monkeypatch, [])
    yield made
    made.close()


def heartbeat(term: int) -> Append:
    return Append(term, 1, 4, 1, 1, [])


# --- as a candidate


def test_a_replica_asks_before_it_raises_its_term(rig: Rig) -> None:
    rig.tick(0.9)
    assert not rig.transport.sent, "the leader may still speak"
    question = rig.ask()
    assert question == PreVote(2, 4, 1)
    assert rig.raft.term == 1
    assert not rig.raft.is_candidate


def test_a_replica_that_starts_and_reaches_a_majority_asks_soon(back: Rig) -> None:
    """A whole cell that was down has no leader to wait for."""
    assert not back.tick(0.2), "a leader may be about to come back"
    assert PreVote(2, 4, 1) in [message for _, message in back.tick(0.6)]
    assert back.raft.term == 1


def test_a_replica_that_starts_does_not_ask_once_it_hears_the_leader(back: Rig) -> None:
    back.tick(0.2)
    back.hear(R2, heartbeat(1))
    assert not [message for _, message in back.tick(0.9) if isinstance(message, PreVote)]


def test_a_replica_hurries_once_after_its_start(back: Rig) -> None:
    back.hear(R2, heartbeat(1))
    for node in (R2, R3):
        back.transport._onNodeDisconnected(node)
        back.transport._onNodeConnected(node)
    assert not [message for _, message in back.tick(0.9) if isinstance(message, PreVote)]


def test_a_replica_that_nobody_answers_never_raises_its_term(rig: Rig) -> None:
    # cut off for long, it comes back with the term that it left with, and disturbs nobody
    rig.tick(60.0)
    assert rig.raft.term == 1


def test_it_asks_again_and_not_at_every_tick(rig: Rig) -> None:
    rig.ask()
    questions = [m for to, m in rig.tick(2.0) if to == "r2" and isinstance(m, PreVote)]
    assert 3 <= len(questions) <= 9


def test_with_a_majority_of_answers_it_stands(rig: Rig) -> None:
    question = rig.ask()
    asked = rig.hear(R2, PreVoteAnswer(1, question.term, True))
    assert RequestVote(2, 4, 1) in asked
    assert rig.raft.is_candidate
    rig.hear(R3, Vote(2))
    assert rig.belief == Leadership(2, True, "r1")


def test_refusals_and_answers_to_other_questions_do_not_count(rig: Rig) -> None:
    question = rig.ask()
    rig.hear(R2, PreVoteAnswer(1, question.term, False))
    rig.hear(R2, PreVoteAnswer(1, question.term - 1, True))
    rig.hear(R2, PreVoteAnswer(1, question.term + 1, True))
    assert rig.raft.term == 1


def test_answers_are_used_up_by_standing(rig: Rig) -> None:
    question = rig.ask()
    rig.hear(R2, PreVoteAnswer(1, question.term, True))
    assert rig.raft.term == 2
    rig.tick(30.0)
    assert rig.raft.term == 2, "the next term needs answers of its own"


def test_an_answer_of_a_newer_term_is_heeded_and_asked_for_again(rig: Rig) -> None:
    rig.ask()
    rig.hear(R2, PreVoteAnswer(7, 2, False))
    assert rig.raft.term == 7
    assert rig.ask() == PreVote(8, 4, 1)


def test_who_is_called_to_lead_does_not_ask(rig: Rig) -> None:
    rig.hear(R2, Append(2, 1, 4, 1, 1, []))
    assert RequestVote(3, 4, 1) in rig.hear(R2, TimeoutNow(2))


def test_votes_of_the_same_replica_count_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.roster, "ids", ("r1", "r2", "r3", "r4", "r5"))
    question = rig.ask()
    for node in (R2, R3):
        rig.hear(node, PreVoteAnswer(1, question.term, True))
    rig.hear(R2, Vote(2))
    rig.hear(R2, Vote(2))
    assert not rig.raft.leads
    rig.hear(R3, Vote(2))
    assert rig.raft.leads


# --- as a voter


def test_who_hears_a_leader_would_not_vote(rig: Rig) -> None:
    rig.hear(R2, heartbeat(1))
    assert rig.hear(R3, PreVote(2, 9, 1)) == [PreVoteAnswer(1, 2, False)]
    rig.tick(1.1)
    assert rig.hear(R3, PreVote(2, 9, 1)) == [PreVoteAnswer(1, 2, True)]


def test_a_leader_would_not_vote(rig: Rig) -> None:
    rig.lead()
    assert rig.hear(R3, PreVote(9, 9, 8))[-1] == PreVoteAnswer(2, 9, False)
    assert rig.raft.leads


def test_a_log_that_is_behind_would_get_no_vote(rig: Rig) -> None:
    rig.tick(1.1)
    assert rig.hear(R3, PreVote(2, 3, 1)) == [PreVoteAnswer(1, 2, False)]
    assert rig.hear(R3, PreVote(2, 9, 0)) == [PreVoteAnswer(1, 2, False)]
    assert rig.hear(R3, PreVote(1, 9, 9)) == [PreVoteAnswer(1, 1, False)], "no newer term"
    assert rig.hear(R3, PreVote(2, 4, 1)) == [PreVoteAnswer(1, 2, True)]


def test_an_answer_promises_nothing(rig: Rig) -> None:
    rig.tick(1.1)
    rig.hear(R3, PreVote(2, 4, 1))
    assert rig.raft.term == 1
    assert rig.raft.vote is None
    assert rig.hear(R2, RequestVote(2, 4, 1)) == [Vote(2)]


def test_a_term_that_has_a_leader_needs_no_other(rig: Rig) -> None:
    rig.hear(R2, heartbeat(2))
    assert rig.hear(R3, RequestVote(2, 9, 2)) == []


# --- a leader that died


def test_the_end_of_the_leaders_connection_is_noticed_at_once(rig: Rig) -> None:
    rig.hear(R2, heartbeat(1))
    rig.gate.caller_gone("r2")
    questions = [m for _, m in rig.tick(0.25) if isinstance(m, PreVote)]
    assert questions, "long before the election timeout of a second"
    assert rig.hear(R3, PreVote(2, 4, 1)) == [PreVoteAnswer(1, 2, True)]


def test_a_leader_that_comes_back_at_once_is_kept(rig: Rig) -> None:
    rig.hear(R2, heartbeat(1))
    rig.gate.caller_gone("r2")
    rig.hear(R2, heartbeat(1))
    assert not [m for _, m in rig.tick(0.9) if isinstance(m, PreVote)]


def test_the_end_of_another_connection_means_nothing(rig: Rig) -> None:
    rig.hear(R2, heartbeat(1))
    rig.gate.caller_gone("r3")
    assert not rig.tick(0.9)
    assert rig.hear(R3, PreVote(2, 4, 1)) == [PreVoteAnswer(1, 2, False)]


# --- founding


def test_the_first_replica_of_a_new_cell_does_not_wait_for_chance(new: Rig) -> None:
    assert [m for _, m in new.tick(0.2) if isinstance(m, PreVote)]


def test_a_cell_is_founded_by_the_votes_of_all(new: Rig) -> None:
    question = new.ask()
    new.hear(R2, PreVoteAnswer(0, question.term, True))
    assert new.raft.term == 0, "r3 may be an emptied disk of a cell that was founded"
    new.hear(R3, PreVoteAnswer(0, question.term, True))
    new.hear(R2, Vote(1))
    assert not new.raft.leads
    new.hear(R3, Vote(1))
    assert new.raft.leads
    assert {name: member.token for name, member in new.roster.members.items()} == TOKENS


def test_who_vanished_after_its_vote_founds_nothing(new: Rig) -> None:
    question = new.ask()
    for node in (R2, R3):
        new.hear(node, PreVoteAnswer(0, question.term, True))
    new.hear(R2, Vote(1))
    del new.transport.callers["r3"]
    new.hear(R3, Vote(1))
    assert not new.raft.leads
    assert not new.roster.is_founded


def test_a_disk_that_joins_neither_stands_nor_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, [], joins=True)
    assert rig.tick(10.0) == []
    assert rig.hear(R2, PreVote(1, 9, 1)) == [PreVoteAnswer(0, 1, False)]
    assert rig.hear(R2, RequestVote(1, 9, 1)) == []
    rig.hear(R2, Append(1, 1, 1, 0, 1, []))
    assert rig.hear(R2, TimeoutNow(1)) == []
    assert rig.tick(10.0) == []
    rig.close()


def test_a_disk_that_was_replaced_neither_stands_nor_votes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = seal(MEMBERS, Origin("r2", 0, 0), encode_change(Replace("r1", 2, "", "")))
    rig = Rig(monkeypatch, [(b"\x01", 0), (FOUND, 1), (out, 1)])
    assert rig.tick(10.0) == []
    assert rig.hear(R2, RequestVote(2, 9, 1)) == []
    rig.close()
