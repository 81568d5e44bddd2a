"""A log need not begin at 1, nor are its indexes small: restored cells begin far away."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.handover import Committed, Dumped, Restored, TakeDump
from consensus.engine.loading import load
from consensus.engine.membership import Admit, Join, Member, Replace, encode_change, encode_members
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    FrameReader,
    Message,
    PreVoteAnswer,
    RequestVote,
    Vote,
    encode_frame,
)
from consensus.engine.seeding import seed_disk
from consensus.engine.storage.dump import IN_FORCE, Dump, write_dump
from consensus.leadership import Position
from consensus.limits import MESSAGE_BYTES_MAX
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.raft_rig import R2, R3, TOKENS, Rig
from tests.unit.storage_rig import CONFIG, IDENTITY, Sent, fill, segments, whole
from tests.unit.storage_rig import Rig as StorageRig

BASES = [10**12, 3 * 10**12, 10**15, 2**62 - 1_000]
TERM = 7
FOUNDED = {name: Member(1, token, votes=True) for name, token in TOKENS.items()}


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


class SeededRig(StorageRig):
    """A replica whose log begins with a state at `base`."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.seeded = MemoryDisk()
        seed_disk(self.seeded, IDENTITY, Position(TERM, base), [b"state at %d" % base])
        super().__init__(0)
        self.disk = self.seeded
        self.take(self.loaded())


# --- on the disk


def test_what_is_appended_there_is_read_back_after_a_crash_and_a_power_cut(base: int) -> None:
    rig = SeededRig(base)
    fill(rig.journal, base + 60, TERM + 1)
    rig.journal.cut_from(base + 41)
    fill(rig.journal, base + 50, TERM + 2)
    expected = whole(rig.journal)
    assert [entry[1] for entry in expected] == list(range(base, base + 51))
    assert len(segments(rig.disk)) > 3, "the log goes over many segments"
    assert whole(rig.restart().journal) == expected
    rig.disk.power_cut(random.Random(1))
    assert whole(rig.restart().journal) == expected


def test_its_dumps_let_segments_go_and_are_gone_on_from(base: int) -> None:
    rig = SeededRig(base)
    fill(rig.journal, base + 100, TERM)
    before = len(segments(rig.disk))
    assert rig.compaction.begin(base + 49, 0.0) is None, "so few entries need none"
    assert rig.dump(base + 80) == Dumped(Position(TERM, base + 80), None)
    assert len(segments(rig.disk)) < before
    loaded = rig.restart()
    assert loaded.dump is not None
    assert loaded.dump.position == Position(TERM, base + 80)
    assert base + 60 < loaded.journal[0][1] <= base + 70, "whole segments go"
    assert loaded.journal[-1][1] == base + 100
    assert rig.in_force() == b"state at %d" % (base + 80)


def test_an_empty_replica_goes_on_behind_a_dump_from_there(base: int) -> None:
    rig = StorageRig(0)
    sent = Sent(Position(TERM, base))
    [installed] = sent.deliver(rig, 20)
    assert installed.position == Position(TERM, base)
    fill(rig.journal, base + 10, TERM + 1)
    loaded = rig.restart()
    assert [entry[1] for entry in whole(loaded.journal)] == list(range(base, base + 11))


@pytest.mark.parametrize("jump", [1, 500, 10**12])
def test_a_dump_from_further_on_takes_the_place_of_all(jump: int) -> None:
    base = 10**12
    rig = SeededRig(base)
    fill(rig.journal, base + 20, TERM)
    Sent(Position(TERM + 1, base + 20 + jump)).deliver(rig)
    loaded = rig.restart()
    assert whole(loaded.journal) == [(b"\x01", base + 20 + jump, TERM + 1)]


def test_a_crash_while_it_comes_into_force_is_recovered_from(base: int) -> None:
    """From index 1 to there is one step: every moment in it is a place to die."""
    for step in range(60):
        rig = StorageRig(0)
        sent, left = Sent(Position(TERM, base)), [step]

        def before(*_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        rig.disk.before = before
        try:
            sent.deliver(rig)
        except KeyboardInterrupt:
            rig.disk.power_cut(random.Random(step))
            loaded = rig.restart()
            begin = loaded.journal[0][1]
            assert begin == (1 if loaded.dump is None else base)
            sent.deliver(rig)
            assert whole(rig.journal) == [(b"\x01", base, TERM)]
            continue
        assert step > 5
        return
    pytest.fail("it never ends")


def test_a_disk_that_was_seeded_starts_in_whatever_way_it_is_told(base: int) -> None:
    disk = SeededRig(base).disk
    assert load(disk, CONFIG, lambda: 99).journal.identity.joins is False


# --- on the wire


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(9, 2**62 - 1, 8),
        Append(9, 2**62 - 2, 2**62 - 2, 8, 1, [(b"x", 2**62 - 1, 9)]),
        Answer(9, 2**62, True, 1),
        DumpChunk(9, 3 * 10**12, 8, 10, 0, 1, b"x", b"y"),
        DumpAnswer(9, 3 * 10**12, 10, 1),
    ],
)
def test_messages_carry_them(message: Message) -> None:
    reader = FrameReader(MESSAGE_BYTES_MAX)
    reader.feed(encode_frame(message))
    assert reader.next() == message


# --- in a Raft


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, base: int) -> Iterator[Rig]:
    """A member, with a state at `base` and nothing behind it."""

    def dump(disk: MemoryDisk) -> Dump:
        at = Position(TERM, base)
        return write_dump(disk, IN_FORCE, at, encode_members(FOUNDED), [b"state"], life=5)

    made = Rig(monkeypatch, [], dump=dump)
    yield made
    made.close()


def follow(rig: Rig, base: int, last: int) -> list[Message]:
    entries = [(b"\x01", base + at, TERM + 1) for at in range(1, last + 1)]
    return rig.hear(R2, Append(TERM + 1, base + last, base, TERM, 7, entries))


def test_a_follower_appends_commits_and_cuts_there(rig: Rig, base: int) -> None:
    assert follow(rig, base, 5) == [Answer(TERM + 1, base + 6, True, 7)]
    assert rig.raft.commit == base + 5
    assert rig.handed() == [(base + at, TERM + 1) for at in range(1, 6)]
    more = [(b"\x01", base + at, TERM + 1) for at in (6, 7, 8)]
    rig.hear(R2, Append(TERM + 1, base + 5, base + 5, TERM + 1, 8, more))
    rest = [(b"\x01", base + 7, TERM + 2)]
    answers = rig.hear(R3, Append(TERM + 2, base + 7, base + 6, TERM + 1, 9, rest))
    assert answers == [Answer(TERM + 2, base + 8, True, 9)]
    assert whole(rig.journal)[-1] == (b"\x01", base + 7, TERM + 2)


def test_a_follower_says_from_where_it_needs_more(rig: Rig, base: int) -> None:
    answers = rig.hear(R2, Append(TERM + 1, base + 90, base + 90, TERM + 1, 7, []))
    assert answers == [Answer(TERM + 1, base + 1, False, 7)]


def test_a_leader_sends_counts_and_commits_there(rig: Rig, base: int) -> None:
    rig.lead()
    assert rig.raft.last_index == base + 1
    rig.hear(R2, Answer(rig.raft.term, base + 2, True, rig.now_ms()))
    assert rig.raft.commit == base + 1
    rig.raft.offer(1, b"\x01")
    [append] = [m for to, m in rig.tick() if to == "r2" and isinstance(m, Append)]
    assert append.prev_index == base + 1
    assert [entry[1] for entry in append.entries] == [base + 2]
    rig.hear(R2, Answer(rig.raft.term, base + 3, True, rig.now_ms()))
    assert rig.handed()[-1] == (base + 2, rig.raft.term)


def test_a_leader_sends_its_state_to_who_has_nothing(rig: Rig, base: int) -> None:
    rig.lead()
    sent = rig.hear(R3, Answer(rig.raft.term, 2, False, rig.now_ms()))
    [chunk] = [message for message in sent if isinstance(message, DumpChunk)]
    assert (chunk.index, chunk.index_term) == (base, TERM)
    sent = rig.hear(R3, Answer(rig.raft.term, base + 1, True, rig.now_ms()))
    assert [m.prev_index for m in sent if isinstance(m, Append)] == [base]


def test_a_dump_is_taken_there_and_entries_before_it_go(rig: Rig, base: int) -> None:
    follow(rig, base, 30)
    rig.raft.want_dump()
    rig.tick()
    [wanted] = [event for event in rig.handover.events if isinstance(event, TakeDump)]
    assert (wanted.position, wanted.life) == (Position(TERM + 1, base + 30), 5)


def test_a_follower_far_behind_takes_a_dump_from_there(
    monkeypatch: pytest.MonkeyPatch, base: int
) -> None:
    new, elsewhere = Rig(monkeypatch), MemoryDisk()
    at = Position(TERM, base)
    dump = write_dump(elsewhere, IN_FORCE, at, encode_members(FOUNDED), [b"state"])
    content = elsewhere.content(IN_FORCE)
    chunk = DumpChunk(TERM, base, TERM, len(content), 0, 9, content, dump.digest)
    assert Answer(TERM, base + 1, True, 9) in new.hear(R2, chunk)
    [restored] = [event for event in new.handover.events if isinstance(event, Restored)]
    assert restored.dump.position == at
    new.handover.events.clear()
    follow(new, base, 3)
    assert new.handed() == [(base + at, TERM + 1) for at in (1, 2, 3)]
    assert all(isinstance(e, Committed) for e in new.handover.events if hasattr(e, "entries"))
    new.close()


def test_members_change_there(rig: Rig, base: int) -> None:
    follow(rig, base, 1)
    changes = [Replace("r3", 2, "", ""), Admit("r3", 2, 99), Join("r3", 2)]
    origin = Origin("r2", 0, 0)
    entries = [
        (seal(MEMBERS, origin, encode_change(change)), base + at, TERM + 1)
        for at, change in enumerate(changes, 2)
    ]
    rig.hear(R2, Append(TERM + 1, base + 1, base + 1, TERM + 1, 7, entries))
    assert rig.roster.changed_at == base + 4
    assert rig.roster.members["r3"].token == 99
    assert rig.roster.at(base + 2)["r3"].token == 0
    assert rig.roster.at(base) == FOUNDED
    rig.journal.cut_from(base + 3)
    assert rig.roster.members == rig.roster.at(base + 2)
    assert not rig.roster.counts("r3")


def test_a_leader_there_takes_a_new_disk_in(rig: Rig, base: int) -> None:
    rig.lead()
    rig.hear(R2, Answer(rig.raft.term, base + 2, True, rig.now_ms()))
    rig.raft.ask(lambda: rig.raft.leading.replace("r3", "", "", Origin("r1", 1, 1)))
    rig.tick()
    rig.hear(R2, Answer(rig.raft.term, base + 3, True, rig.now_ms()))
    rig.transport.callers["r3"] = rig.hello("r3", 99, 0, joins=True)
    rig.tick()
    assert rig.roster.members["r3"].token == 99
    rig.hear(R2, Answer(rig.raft.term, base + 4, True, rig.now_ms()))
    rig.hear(R3, Answer(rig.raft.term, base + 4, True, rig.now_ms()))
    rig.hear(R2, Answer(rig.raft.term, base + 5, True, rig.now_ms()))
    rig.tick()
    assert rig.roster.members["r3"].votes


def test_votes_there_go_to_the_longer_log(rig: Rig, base: int) -> None:
    follow(rig, base, 5)
    shorter = RequestVote(TERM + 2, base + 4, TERM + 1)
    assert Vote(TERM + 2) not in rig.hear(R3, shorter)
    question = rig.ask()
    assert (question.last_index, question.last_term) == (base + 5, TERM + 1)
    rig.hear(R3, PreVoteAnswer(question.term - 1, question.term, True))
    assert RequestVote(question.term, base + 5, TERM + 1) in rig.sent_to(R2)
