"""A cell of one replica grows: which disks a majority needs, and which disks are admitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consensus.engine.admissions import Admissions
from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.handover import Refused
from consensus.engine.membership import (
    TAKEN,
    UNKNOWN,
    WAIT,
    Add,
    Admit,
    Change,
    Found,
    Join,
    Member,
    Members,
    Replace,
    change_members,
    encode_change,
    judge,
)
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import PROTOCOL, Answer, Append, Hello, PreVoteAnswer
from consensus.engine.storage.segments import Identity
from consensus.errors import BadConfig, ChangeRefused
from tests.unit.raft_rig import R2, Rig

IDS = ("r1", "r2", "r3")
FOUNDED = change_members({}, Found([("r1", 11)]))
ADDED = change_members(FOUNDED, Add("r2"))
ADMITTED = change_members(ADDED, Admit("r2", 1, 22))
GROWN = change_members(ADMITTED, Join("r2", 1))


def entry(change: Change) -> bytes:
    return seal(MEMBERS, Origin("r1", 0, 0), encode_change(change))


FIRST = ((b"\x01", 0), (entry(Found([("r1", 11)])), 1), (b"\x01", 1))


def membership_log(*changes: Change) -> MembershipLog:
    log = MembershipLog(Identity("c", "r1", 11, False), IDS)
    for index, change in enumerate((Found([("r1", 11)]), *changes), 2):
        log.added(index, 1, entry(change))
    return log


def hello(sender: str, number: int = 0, token: int = 22, *, joins: bool = True) -> Hello:
    return Hello(PROTOCOL, PROTOCOL, "default", sender, "r1", number, token, joins, peers=IDS)


# --- the members


def test_an_added_id_is_open_then_joins_then_votes() -> None:
    assert ADDED["r2"] == Member(1, 0, votes=False, is_new=True)
    assert ADMITTED["r2"] == Member(1, 22, votes=False, is_new=True)
    assert GROWN["r2"] == Member(1, 22, votes=True)
    assert ADDED["r1"] == FOUNDED["r1"]


def test_an_id_is_added_once_and_to_a_founded_cell() -> None:
    assert change_members(GROWN, Add("r2")) is GROWN
    assert change_members(ADMITTED, Add("r2")) is ADMITTED
    assert change_members({}, Add("r2")) == {}


def test_a_new_id_whose_first_disk_is_lost_is_still_new() -> None:
    again = change_members(ADMITTED, Replace("r2", 2, "", ""))
    assert again["r2"] == Member(2, 0, votes=False, past=(22,), is_new=True)
    joined = change_members(change_members(again, Admit("r2", 2, 23)), Join("r2", 2))
    assert not joined["r2"].is_new
    assert change_members(joined, Replace("r2", 3, "", ""))["r2"].is_new is False


TWO: tuple[Change, ...] = (Add("r2"), Admit("r2", 1, 22), Join("r2", 1))
THREE: tuple[Change, ...] = (*TWO, Add("r3"), Admit("r3", 1, 33), Join("r3", 1))


@pytest.mark.parametrize(
    ("changes", "enough", "too_few"),
    [
        ((), {"r1"}, {"r2", "r3"}),
        (TWO[:1], {"r1"}, {"r2"}),
        (TWO[:2], {"r1"}, {"r2"}),
        ((*TWO[:2], Replace("r2", 2, "", "")), {"r1"}, {"r2"}),
        (TWO, {"r1", "r2"}, {"r1"}),
        (THREE[:4], {"r1", "r2"}, {"r1", "r3"}),
        (THREE, {"r2", "r3"}, {"r1"}),
    ],
)
def test_a_majority_is_of_those_that_ever_voted(
    changes: tuple[Change, ...], enough: set[str], too_few: set[str]
) -> None:
    log = membership_log(*changes)
    assert log.has_quorum(enough)
    assert not log.has_quorum(too_few)


def test_an_old_majority_and_the_next_one_always_share_a_disk() -> None:
    """From one to five: no two sets that decide, before and after a change, are disjoint."""
    ids = tuple(f"r{number}" for number in range(1, 6))
    log = MembershipLog(Identity("c", "r1", 11, False), ids)
    changes: list[Change] = [Found([("r1", 11)])]
    for name in ids[1:]:
        changes += [Add(name), Admit(name, 1, int(name[1]) * 11), Join(name, 1)]
    before: list[set[str]] = []
    for index, change in enumerate(changes, 2):
        log.added(index, 1, entry(change))
        subsets = [{ids[n] for n in range(5) if bits >> n & 1} for bits in range(32)]
        now = [names for names in subsets if log.has_quorum(names)]
        assert all(one & other for one in now for other in now + before), change
        before = now


# --- which disks are admitted


def test_who_is_no_replica_of_the_cell_is_told_how_it_becomes_one() -> None:
    waits = judge(FOUNDED, hello("r2"))
    assert waits is not None
    assert (waits.reason, waits.number) == (WAIT, 0)
    assert "`raftcron cell grow r2` adds it" in waits.text
    strange = judge(FOUNDED, hello("r2", joins=False))
    assert strange is not None
    assert strange.reason == UNKNOWN
    assert "starts with --join" in strange.text
    assert judge(ADDED, hello("r2")) is None


def test_a_second_empty_disk_finds_the_place_taken() -> None:
    goodbye = judge(ADMITTED, hello("r2", token=23))
    assert goodbye is not None
    assert goodbye.reason == TAKEN
    assert "raftcron replica replace r2" in goodbye.text
    opened = change_members(ADMITTED, Replace("r2", 2, "", ""))
    assert judge(opened, hello("r2", token=23)) is None


def test_who_does_not_know_all_replicas_is_not_let_in() -> None:
    knows_two = Hello(PROTOCOL, PROTOCOL, "default", "r3", "r1", 0, 33, True, peers=("r1", "r3"))
    goodbye = judge(change_members(GROWN, Add("r3")), knows_two)
    assert goodbye is not None
    assert "its `peers` lacks r2" in goodbye.text


# --- the leader's rules


def refusal(members: MembershipLog, name: str, reached: set[str], **peers: Hello) -> str:
    with pytest.raises(ChangeRefused) as refused:
        Admissions(members).addition(name, leader="r1", reached=reached, peer=peers.get)
    return str(refused.value)


def test_one_replica_is_added_at_a_time_and_all_must_know_it() -> None:
    alone = membership_log()
    assert Admissions(alone).addition("r2", leader="r1", reached=set(), peer=lambda _: None) == Add(
        "r2"
    )
    assert "r1 is a replica of this cell already" in refusal(alone, "r1", set())
    assert "`peers` of r1 lacks r9" in refusal(alone, "r9", set())
    joining = membership_log(Add("r2"), Admit("r2", 1, 22))
    assert "r2 does not vote yet" in refusal(joining, "r3", set())
    two = membership_log(Add("r2"), Admit("r2", 1, 22), Join("r2", 1))
    assert "r2 does not answer" in refusal(two, "r3", set(), r2=hello("r2"))
    older = Hello(PROTOCOL, PROTOCOL, "default", "r2", "r1", 1, 22, True)
    assert "`peers` of r2 lacks r3" in refusal(two, "r3", {"r2"}, r2=older)
    added = Admissions(two).addition(
        "r3", leader="r1", reached={"r2"}, peer={"r2": hello("r2")}.get
    )
    assert added == Add("r3")


def test_a_cell_has_five_replicas_at_most() -> None:
    members: Members = {f"r{n}": Member(1, n, votes=True) for n in range(1, 6)}
    log = MembershipLog(Identity("c", "r1", 1, False), [*members, "r6"])
    log.start(5, members, [])
    assert "at most 5" in refusal(log, "r6", set(members))


# --- a leader that grows


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """r1, which is a cell of one by its log, and whose configuration names three."""
    rig = Rig(monkeypatch, FIRST)
    rig.transport.callers["r2"] = hello("r2")
    yield rig
    rig.close()


def grow(rig: Rig) -> None:
    """Add r2, and have its disk receive all entries that it is sent."""
    rig.raft.ask(lambda: rig.raft.leading.add("r2", Origin("r1", 1, 1)))
    rig.tick(0.2)
    answer_all(rig)


def answer_all(rig: Rig) -> None:
    """r2 has all entries that there are now, and answers."""
    answer = Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms())
    rig.hear(R2, answer)


def test_it_leads_alone_whatever_its_configuration_names(rig: Rig) -> None:
    rig.tick(0.3)
    assert rig.raft.leads, "it waits for nobody"
    last = rig.raft.last_index
    rig.tick(0.1)
    assert rig.raft.commit == last
    rig.tick(3.0)
    assert rig.raft.leads, "nobody else has to answer"
    assert rig.raft.leading.confirmed_s == rig.now, "what it reads is fresh"


def test_the_entry_that_makes_it_two_is_committed_by_two(rig: Rig) -> None:
    rig.tick(0.3)
    grow(rig)
    assert rig.membership_log.members["r2"] == GROWN["r2"]
    joined_at = rig.membership_log.changed_at
    rig.tick(0.3)
    assert rig.raft.leads
    assert rig.raft.commit < joined_at, "r1 alone is no majority any more"
    answer_all(rig)
    rig.tick()
    assert rig.raft.commit >= joined_at


def test_without_the_second_it_leads_no_more(rig: Rig) -> None:
    rig.tick(0.3)
    grow(rig)
    rig.tick(2.0)
    assert not rig.raft.leads
    term = rig.raft.term
    rig.tick(5.0)
    assert rig.raft.term == term, "it stood without the vote of r2"
    question = rig.ask()
    rig.hear(R2, PreVoteAnswer(rig.raft.term, question.term, True))
    assert rig.raft.term > term


def test_a_disk_that_is_silent_again_does_not_join(rig: Rig) -> None:
    """It would be needed from then on, and a cell of one would be down with it."""
    rig.tick(0.3)
    rig.raft.ask(lambda: rig.raft.leading.add("r2", Origin("r1", 1, 1)))
    rig.tick(0.2)
    assert rig.membership_log.members["r2"].token == 22, "it is admitted"
    old = Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms() - 5_000)
    rig.hear(R2, old)
    rig.tick(2.0)
    assert not rig.membership_log.members["r2"].votes
    assert rig.raft.leads


def test_a_refused_addition_is_answered(rig: Rig) -> None:
    rig.tick(0.3)
    rig.raft.ask(lambda: rig.raft.leading.add("r9", Origin("r1", 1, 7)))
    rig.tick(0.1)
    (refused,) = [event for event in rig.handover.events if isinstance(event, Refused)]
    assert refused.counters == [7]
    assert "`peers` of r1 lacks r9" in str(refused.error)


def test_a_cut_addition_is_undone(rig: Rig) -> None:
    """r1 was elected by r2 as one of two, and r2's log has no Join: it gives way."""
    rig.tick(0.3)
    grow(rig)
    at = rig.membership_log.changed_at
    before = rig.journal.log.term_at(at - 1)
    rig.hear(R2, Append(rig.raft.term + 1, at - 1, at - 1, before, 0, [(b"\x01", at, 9)]))
    assert rig.membership_log.has_quorum({"r1"})
    assert [node.id for node in rig.raft.electors] == []


def test_a_configuration_from_before_the_growth_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would count for itself, and for nobody else."""
    grown = [(entry(change), 1) for change in (Add("r2"), Admit("r2", 1, 22), Join("r2", 1))]
    rig = Rig(monkeypatch, (*FIRST, *grown), alone=True)
    with pytest.raises(BadConfig, match="`peers` of r1 lacks r2") as refused:
        rig.tick()
    assert "write all replicas" in refused.value.hint
    assert not rig.raft.leads
    rig.close()
