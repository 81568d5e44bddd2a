"""A leader replaces a disk: who counts at which moment, and who is let in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consensus.engine.envelope import Origin
from consensus.engine.handover import Declined
from consensus.engine.membership import REPLACED, UNKNOWN, WAIT, Admit, Found, Join, Member, Replace
from consensus.engine.network.wire import Answer, Append, Goodbye, Vote
from consensus.engine.standing import Standing
from consensus.errors import ChangeRefused, Replaced
from tests.unit.raft_rig import R2, R3, TOKENS, Rig

ORIGIN = Origin("r1", 5, 1)
OLD = TOKENS["r3"]


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """r1 leads, and has committed an entry of its own term."""
    made = Rig(monkeypatch)
    made.lead()
    settle(made, R2, R3)
    yield made
    made.close()


def accept(rig: Rig, node: object, upto: int) -> None:
    """Have a follower say that it has everything up to `upto`."""
    assert node in (R2, R3)
    rig.hear(node, Answer(rig.raft.term, upto + 1, True, rig.now_ms()))  # type: ignore[arg-type]
    rig.raft.doTick(0.0)


def settle(rig: Rig, *nodes: object) -> None:
    for node in nodes:
        accept(rig, node, rig.raft.last_index)


def replace_r3(rig: Rig) -> None:
    rig.raft.ask(lambda: rig.raft.leading.replace("r3", "h:1", "h:2", ORIGIN))
    rig.raft.doTick(0.0)


def declined(rig: Rig) -> str:
    return str([e for e in rig.handover.events if isinstance(e, Declined)][-1].error)


def test_from_its_appending_on_the_old_disk_does_not_count(leader: Rig) -> None:
    replace_r3(leader)
    at = leader.raft.last_index
    assert leader.roster.members["r3"] == Member(2, 0, False, "h:1", "h:2", (OLD,))
    accept(leader, R3, at)
    assert leader.raft.commit == at - 1, "only r1 and r2 may commit it"
    accept(leader, R2, at)
    assert leader.raft.commit == at
    assert leader.transport.addresses["r3"] == "h:1"
    assert leader.transport.judged >= 2, "connections of the old disk end"


def test_what_the_old_disk_had_acknowledged_stops_counting_too(leader: Rig) -> None:
    leader.raft.offer(1, b"\x01x")
    leader.raft.doTick(0.0)
    accept(leader, R3, leader.raft.last_index - 1)
    replace_r3(leader)
    assert leader.raft.matched[R3] == 0


def test_the_old_disk_does_not_keep_a_leader_in_office(leader: Rig) -> None:
    replace_r3(leader)
    for _ in range(20):
        leader.now += 0.1
        leader.hear(R3, Answer(leader.raft.term, 5, True, leader.now_ms()))
    assert not leader.raft.leads, "no majority has answered for two seconds"


def test_a_new_disk_is_admitted_learns_joins_and_only_then_counts(leader: Rig) -> None:
    replace_r3(leader)
    settle(leader, R2)
    leader.transport.callers["r3"] = leader.hello("r3", 99, 0, joins=True)
    leader.raft.doTick(0.0)
    assert leader.roster.members["r3"] == Member(2, 99, False, "h:1", "h:2", (OLD,))
    settle(leader, R2)
    goal = leader.raft.commit
    accept(leader, R3, goal - 1)
    assert not leader.roster.members["r3"].votes
    leader.raft.offer(1, b"\x01x")
    leader.raft.doTick(0.0)
    assert leader.raft.matched[R3] == 0
    accept(leader, R3, goal)
    assert leader.roster.members["r3"].votes, "it holds what was committed when it was admitted"
    accept(leader, R3, leader.raft.last_index)
    assert leader.raft.commit == leader.raft.last_index, "r1 and r3 are a majority again"


def test_what_a_newcomer_had_learned_counts_once_it_votes(leader: Rig) -> None:
    replace_r3(leader)
    settle(leader, R2)
    leader.transport.callers["r3"] = leader.hello("r3", 99, 0, joins=True)
    leader.raft.doTick(0.0)
    settle(leader, R2)
    learned = leader.raft.last_index
    accept(leader, R3, learned)
    leader.raft.doTick(0.0)
    assert leader.raft.matched[R3] == learned


def test_changes_come_one_after_the_other(leader: Rig) -> None:
    replace_r3(leader)
    replace_r3(leader)
    assert "another change of the members is under way" in declined(leader)
    leader.transport.callers["r3"] = leader.hello("r3", 99, 0, joins=True)
    leader.raft.doTick(0.0)
    assert leader.roster.members["r3"].token == 0, "the place is not open before it is committed"


def test_a_leader_changes_nothing_before_an_entry_of_its_own_term_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Raft, erratum of 2015: single-server changes of two leaders could otherwise both commit
    rig = Rig(monkeypatch)
    rig.lead()
    replace_r3(rig)
    assert "another change" in declined(rig)
    rig.close()


def test_a_replacement_that_the_cell_could_not_agree_on_is_declined(leader: Rig) -> None:
    leader.raft.heard_s[R2] = leader.now - 30
    replace_r3(leader)
    assert "without r3 only r1 would be left" in declined(leader)
    assert leader.roster.members["r3"].number == 1


def test_the_old_disk_is_sent_away_for_good_only_once_that_is_committed(leader: Rig) -> None:
    replace_r3(leader)
    old = leader.hello("r3", TOKENS["r3"], 1)
    refused = leader.gate.judge(old)
    assert refused is not None
    assert refused.reason == WAIT
    settle(leader, R2)
    refused = leader.gate.judge(old)
    assert refused is not None
    assert (refused.reason, refused.number) == (REPLACED, 2)


def test_a_replacement_that_was_cut_off_has_never_been(leader: Rig) -> None:
    replace_r3(leader)
    term, at = leader.raft.term, leader.raft.last_index
    leader.hear(R2, Append(term + 1, at - 1, at - 1, term, 1, [(b"\x01", at, term + 1)]))
    assert leader.roster.members["r3"] == Member(1, TOKENS["r3"], True)
    assert leader.gate.judge(leader.hello("r3", TOKENS["r3"])) is None


def test_a_disk_that_a_peer_calls_replaced_stops(leader: Rig) -> None:
    with pytest.raises(Replaced, match="r1 is at incarnation 2"):
        leader.gate.refused("r2", Goodbye(REPLACED, 2, "r1 is at incarnation 2"))


def test_who_knows_less_cannot_stop_a_disk(leader: Rig) -> None:
    leader.gate.refused("r2", Goodbye(REPLACED, 1, "old news"))
    leader.gate.refused("r2", Goodbye(WAIT, 9, "not yet"))
    leader.gate.refused("r2", Goodbye(UNKNOWN, 1, "never heard of you"))
    assert leader.gate.refusal == "r2: never heard of you"


def test_an_emptied_disk_that_was_started_as_one_of_a_new_cell_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, [])
    with pytest.raises(Replaced, match="known with another disk") as caught:
        rig.gate.refused("r2", Goodbye(UNKNOWN, 1, "r1 is known with another disk"))
    ways = ("`raftcron replica replace r1`", "--join", "without --bootstrap", "an id of its own")
    assert [way for way in ways if way not in caught.value.hint] == []
    rig.close()


def test_leadership_is_given_to_nobody_who_does_not_vote(leader: Rig) -> None:
    replace_r3(leader)
    settle(leader, R2, R3)
    leader.raft.ask(lambda: leader.raft.leading.begin_transfer("r3"))
    leader.raft.doTick(0.0)
    assert not [m for m in leader.sent_to(R3) if type(m).__name__ == "TimeoutNow"]


def test_the_vote_of_a_disk_that_is_out_elects_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    rig.tick(2.5)
    rig.raft.stand_at_once()
    rig.raft.doTick(0.0)
    rig.hear(R3, Vote(rig.raft.term))
    assert not rig.raft.leads
    rig.hear(R2, Vote(rig.raft.term))
    assert rig.raft.leads
    rig.close()


def test_the_event_loop_learns_who_stands_for_which_id_from_what_is_committed(
    leader: Rig,
) -> None:
    standing = Standing("r1")
    standing.start(leader.roster)
    standing.restore(b"")
    standing.apply(Found(sorted(TOKENS.items())))
    made = standing.apply(Replace("r3", 2, "h:1", "h:2"))
    assert not isinstance(made, ChangeRefused)
    assert (made.incarnation, made.standing, made.about) == (2, "open", "h:2")
    standing.apply(Admit("r3", 2, 99))
    assert standing.views()["r3"].standing == "joining"
    standing.apply(Join("r3", 2))
    assert standing.views()["r3"].standing == "votes"
    assert isinstance(standing.apply(Replace("r3", 2, "", "")), ChangeRefused)
    assert standing.may_vote
    with pytest.raises(Replaced, match="this data directory is incarnation 1"):
        standing.apply(Replace("r1", 2, "", ""))


def test_a_disk_has_joined_once_it_has_applied_that_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # before that, who asked was told of the incarnation before: it was a member, and voted
    rig = Rig(monkeypatch, [], joins=True)
    standing = Standing("r1")
    standing.start(rig.roster)
    known = [Found([("r1", 5), ("r2", 22), ("r3", 33)]), Replace("r1", 2, "", "")]
    for change in (*known, Admit("r1", 2, TOKENS["r1"])):
        standing.apply(change)
        assert not standing.may_vote
    standing.apply(Join("r1", 2))
    assert standing.may_vote
    rig.close()
