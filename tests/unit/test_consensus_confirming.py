"""How a leader learns that it still leads: rounds of heartbeats, without an entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pysyncobj.node import Node

from consensus.engine.network.wire import Answer, Heartbeat, HeartbeatAnswer
from tests.unit.raft_rig import R2, R3, Rig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    made.lead()
    for node in (R2, R3):
        made.hear(node, Answer(made.raft.term, made.raft.last_index + 1, True, made.now_ms()))
    yield made
    made.close()


def ask(rig: Rig, term: int | None = None) -> list[bool]:
    """Ask whether r1 leads; return the list that the answer comes to."""
    told: list[bool] = []
    rig.raft.ask(lambda: rig.raft.confirm(rig.raft.term if term is None else term, told.append))
    rig.transport.sent.clear()
    rig.raft.doTick(0.0)
    return told


def beats(rig: Rig) -> list[tuple[str, int]]:
    return [(to, m.round) for to, m in rig.transport.sent if isinstance(m, Heartbeat)]


def answer(rig: Rig, node: Node, number: int, *, term: int | None = None) -> None:
    term = rig.raft.term if term is None else term
    rig.hear(node, HeartbeatAnswer(term, rig.now_ms(), number))


def test_a_majority_that_answers_a_later_heartbeat_confirms_and_no_entry_is_logged(
    rig: Rig,
) -> None:
    last = rig.raft.last_index
    told = ask(rig)
    assert told == []
    assert [to for to, _ in beats(rig)] == ["r2", "r3"], "at once"
    answer(rig, R2, beats(rig)[0][1])
    assert told == [True]
    assert rig.raft.last_index == last


def test_an_answer_to_an_earlier_heartbeat_confirms_nothing(rig: Rig) -> None:
    first = ask(rig)
    [(_, earlier), _] = beats(rig)
    second = ask(rig)
    [(_, later), _] = beats(rig)
    assert later > earlier
    answer(rig, R2, earlier)
    assert (first, second) == ([True], [])
    rig.hear(R3, Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms()))
    assert second == [], "an answer about entries may be older than the question"
    answer(rig, R3, later)
    assert second == [True]


def test_questions_of_one_tick_share_a_round(rig: Rig) -> None:
    told: list[bool] = []
    for _ in range(50):
        rig.raft.ask(lambda: rig.raft.confirm(rig.raft.term, told.append))
    rig.transport.sent.clear()
    rig.raft.doTick(0.0)
    assert len(beats(rig)) == 2
    answer(rig, R3, beats(rig)[0][1])
    assert told == [True] * 50


def test_a_heartbeat_that_was_lost_is_sent_again(rig: Rig) -> None:
    told = ask(rig)
    number = beats(rig)[0][1]
    sent = [m for _, m in rig.tick(0.2) if isinstance(m, Heartbeat)]
    assert {m.round for m in sent} == {number}
    answer(rig, R2, number)
    assert told == [True]
    rig.tick(0.2)
    assert not [m for _, m in rig.tick(0.2) if isinstance(m, Heartbeat)], "nobody waits any more"


def test_the_end_of_the_leadership_answers_no(rig: Rig) -> None:
    told = ask(rig)
    answer(rig, R2, 0, term=rig.raft.term + 1)
    assert not rig.raft.leads
    assert told == [False]
    assert ask(rig) == [False]


def test_a_leader_that_nobody_answers_is_told_so_when_it_steps_down(rig: Rig) -> None:
    told = ask(rig)
    rig.tick(1.0)
    assert told == [False]


def test_a_question_of_an_earlier_term_is_answered_no(rig: Rig) -> None:
    assert ask(rig, rig.raft.term - 1) == [False]


def test_rounds_of_an_earlier_leadership_confirm_no_later_one(rig: Rig) -> None:
    ask(rig)
    number = beats(rig)[0][1]
    rig.raft.step_down(rig.raft.term)
    rig.lead()
    told = ask(rig)
    assert beats(rig)[0][1] > number
    answer(rig, R2, number)
    assert told == []


def test_a_replica_alone_is_confirmed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, [(b"\x01", 0)], alone=True)
    rig.tick(3.0)
    assert rig.raft.leads
    assert ask(rig) == [True]
    rig.close()
