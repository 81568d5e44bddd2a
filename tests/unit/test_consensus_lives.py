"""Disks of two lives of one cell, from before and after a restore, do not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from consensus.engine.config import EngineConfig
from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import TakeDump
from consensus.engine.membership import (
    UNKNOWN,
    WAIT,
    Found,
    change_members,
    encode_change,
    encode_members,
    judge,
    judge_life,
)
from consensus.engine.network.wire import (
    Answer,
    DumpChunk,
    Goodbye,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Vote,
)
from consensus.engine.roster import Roster
from consensus.engine.storage.dump import IN_FORCE, Dump, write_dump
from consensus.engine.storage.segments import Identity
from consensus.errors import Replaced
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.raft_rig import R2, R3, TOKENS, Rig

IDS = ("r1", "r2", "r3")
FAR = Position(7, 3 * 10**12)
LIFE, OTHER = 500, 600
OLD = Found([("r1", 111), ("r2", 122), ("r3", 133)])
NEW = Found(sorted(TOKENS.items()))


class Side:
    """One disk's view of the cell, and its gate."""

    def __init__(self, name: str, token: int, founded: Found | None = None, life: int = 0) -> None:
        self.name = name
        peers = {one: f"127.0.0.1:{port}" for port, one in enumerate(IDS, 1)}
        config = EngineConfig(replica=name, peers=peers, data="-")
        self.roster = Roster(Identity("default", name, token, joins=False), IDS)
        start = FAR.index if life else 1
        self.roster.start(start, {}, (), life=life)
        self.last = start + 2
        if founded is not None:
            change = seal(MEMBERS, Origin(name, 0, 0), encode_change(founded))
            self.roster.added(self.last, 1, change)
        self.gate = Gatekeeper(config, self.roster)
        self.gate.committed = lambda: start

    def knows_commits(self) -> None:
        self.gate.committed = lambda: self.last

    def judges(self, other: Side) -> str:
        """What becomes of `other`, whichever of the two has dialled."""
        for said in (other.gate.hello(self.name), other.gate.welcome(self.name, 2)):
            goodbye = self.gate.judge(said)
            if goodbye is not None:
                return goodbye.reason
        return "let in"


def old(name: str = "r3") -> Side:
    token = dict(OLD.tokens)[name]
    return Side(name, token, OLD)


def seeded(name: str = "r1", life: int = LIFE) -> Side:
    return Side(name, TOKENS[name], life=life)


def empty(name: str = "r2") -> Side:
    return Side(name, TOKENS[name])


def member(name: str, life: int = LIFE) -> Side:
    return Side(name, TOKENS[name], NEW, life)


# --- an old disk, of the cell's life before


@pytest.mark.parametrize("knows", [False, True])
def test_an_old_disk_and_a_seeded_one_refuse_each_other(knows: bool) -> None:
    one, other = old(), seeded()
    if knows:
        one.knows_commits()
    assert one.judges(other) == (UNKNOWN if knows else WAIT)
    assert other.judges(one) == WAIT, "it is not told that it was replaced: perhaps it is right"


def test_an_old_disk_and_an_empty_one_have_no_connection() -> None:
    assert old().judges(empty()) == WAIT
    assert empty().judges(old()) == "let in", "but it is not let in there, and so never speaks"


def test_an_old_disk_and_a_member_of_the_new_cell_refuse_each_other() -> None:
    one, other = old(), member("r2")
    # Both have just started and know no commit: by their members alone, each could have to learn
    # from the other.
    assert (one.judges(other), other.judges(one)) == (WAIT, WAIT)
    one.roster.life = other.roster.life
    assert (one.judges(other), other.judges(one)) == ("let in", "let in")


def test_what_an_old_disk_says_to_a_new_one_does_not_end_a_member() -> None:
    mine = member("r2")
    goodbye = old("r1").gate.judge(mine.gate.hello("r1"))
    assert goodbye is not None
    mine.gate.refused("r1", goodbye)
    assert "another" in mine.gate.refusal


def test_a_seeded_disk_ends_when_a_living_cell_knows_another_one() -> None:
    one, mine = old("r2"), seeded()
    one.knows_commits()
    goodbye = one.gate.judge(mine.gate.hello("r2"))
    assert goodbye is not None
    with pytest.raises(Replaced, match="known with another disk"):
        mine.gate.refused("r2", goodbye)


# --- two that were seeded


def test_two_seeded_disks_refuse_each_other_and_neither_is_ended() -> None:
    one, other = seeded("r1", LIFE), seeded("r2", OTHER)
    for here, there in ((one, other), (other, one)):
        assert here.judges(there) == WAIT
        goodbye = here.gate.judge(there.gate.hello(here.name))
        assert goodbye is not None
        there.gate.refused(here.name, goodbye)
        assert "another life of this cell" in there.gate.refusal
        assert "empty the data directory" in there.gate.refusal


def test_a_seeded_disk_is_no_member_of_a_cell_that_was_seeded_otherwise() -> None:
    assert member("r2").judges(seeded("r1", OTHER)) != "let in"
    assert seeded("r1", OTHER).judges(member("r2")) == WAIT


# --- those of one life


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (seeded("r1"), empty("r2")),
        (empty("r2"), seeded("r1")),
        (seeded("r1"), member("r2")),
        (member("r2"), seeded("r1")),
        (empty("r2"), member("r3")),
        (member("r3"), empty("r2")),
        (empty("r2"), empty("r3")),
        (old("r1"), old("r2")),
    ],
)
def test_disks_of_one_life_and_empty_ones_let_each_other_in(here: Side, there: Side) -> None:
    assert here.judges(there) == "let in"


def test_a_new_disk_that_joins_knows_of_no_life() -> None:
    goodbye = judge_life(LIFE, member("r1").roster.members, Rig.hello("r2", 99, 0, joins=True))
    assert goodbye is None


def test_a_foreign_disk_is_told_its_incarnation_but_not_sent_away_for_good() -> None:
    members = member("r1").roster.members
    assert judge(members, Rig.hello("r2", TOKENS["r2"])) is None
    goodbye = judge_life(OTHER, members, Rig.hello("r2", TOKENS["r2"]))
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.reason, goodbye.number) == (WAIT, 1)


# --- a Raft on a seeded disk


def state_of(life: int, members: bytes = encode_members({})) -> Callable[[MemoryDisk], Dump]:
    return lambda disk: write_dump(disk, IN_FORCE, FAR, members, [b"state"], life=life)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """It was seeded, and the others are empty."""
    made = Rig(monkeypatch, [], dump=state_of(LIFE))
    for name, token in TOKENS.items():
        made.transport.callers[name] = made.hello(name, token, 0)
    yield made
    made.close()


@pytest.mark.parametrize("place", [(1, 0), (2, 1), (90, 60), (FAR.index - 1, FAR.term + 1)])
def test_it_votes_for_nothing_that_ends_before_its_state(rig: Rig, place: tuple[int, int]) -> None:
    """A log that was never founded may have any term; it holds nothing that was acknowledged."""
    assert rig.hear(R2, PreVote(90, *place)) == [PreVoteAnswer(FAR.term, 90, False)]
    assert rig.hear(R2, RequestVote(90, *place)) == []
    assert rig.raft.vote is None


def test_an_empty_one_votes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Rig(monkeypatch, [])
    assert new.hear(R2, PreVote(8, FAR.index, FAR.term)) == [PreVoteAnswer(0, 8, True)]
    assert Vote(8) in new.hear(R2, RequestVote(8, FAR.index, FAR.term))
    new.close()


def test_it_founds_the_cell_with_the_votes_of_all_and_sends_its_state(rig: Rig) -> None:
    question = rig.ask()
    assert (question.last_index, question.last_term) == (FAR.index, FAR.term)
    rig.hear(R2, PreVoteAnswer(FAR.term, question.term, True))
    assert not rig.raft.is_candidate, "one of three has not said yes yet"
    rig.hear(R3, PreVoteAnswer(FAR.term, question.term, True))
    rig.hear(R2, Vote(rig.raft.term))
    assert not rig.raft.leads
    rig.hear(R3, Vote(rig.raft.term))
    assert rig.raft.leads
    assert rig.roster.members == change_members({}, NEW)
    assert rig.journal[-1][1:] == (FAR.index + 2, FAR.term + 1)
    sent = rig.hear(R2, Answer(rig.raft.term, 2, False, rig.now_ms()))
    [chunk] = [message for message in sent if isinstance(message, DumpChunk)]
    assert (chunk.index, chunk.index_term) == (FAR.index, FAR.term)


def test_its_later_dumps_are_of_the_same_life(rig: Rig) -> None:
    question = rig.ask()
    for node in (R2, R3):
        rig.hear(node, PreVoteAnswer(FAR.term, question.term, True))
    for node in (R2, R3):
        rig.hear(node, Vote(rig.raft.term))
    for node in (R2, R3):
        rig.hear(node, Answer(rig.raft.term, FAR.index + 3, True, rig.now_ms()))
    assert rig.raft.commit == FAR.index + 2
    rig.raft.want_dump()
    rig.tick()
    [wanted] = [event for event in rig.handover.events if isinstance(event, TakeDump)]
    assert wanted.life == LIFE
    assert wanted.position == Position(FAR.term + 1, FAR.index + 2)


def test_who_takes_its_state_takes_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    new, elsewhere = Rig(monkeypatch, []), MemoryDisk()
    dump = state_of(LIFE)(elsewhere)
    content = elsewhere.content(IN_FORCE)
    new.hear(R2, DumpChunk(8, FAR.index, FAR.term, len(content), 0, 9, content, dump.digest))
    assert new.raft.applied == FAR.index
    assert new.roster.life == LIFE
    assert new.gate.hello("r2").life == new.gate.welcome("r2", 2).life == LIFE
    assert new.transport.judged, "who is connected is judged again"
    new.close()
