"""A follower's rules, by example and against arbitrary logs of a correct leader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.engine.following import match_log
from consensus.engine.network.wire import Append
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.errors import InvariantViolated
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import created, opened, whole


def journal_of(terms: list[int], base: int = 1, disk: MemoryDisk | None = None) -> FileJournal:
    """A journal whose entries from `base` on have these terms."""
    journal = created(disk or MemoryDisk())
    journal.set_base(base, terms[0])
    for index, term in enumerate(terms[1:], base + 1):
        journal.add(b"%d@%d" % (index, term), index, term)
    return journal


def message(terms: list[int], previous: int, upto: int) -> Append:
    """What a leader with these terms from index 1 on sends after `previous`."""
    entries: list[Entry] = [
        (b"%d@%d" % (index, terms[index - 1]), index, terms[index - 1])
        for index in range(previous + 1, upto + 1)
    ]
    return Append(terms[-1], 0, previous, terms[previous - 1], 0, entries)


def test_a_leader_that_contradicts_what_is_committed_proves_a_bug() -> None:
    journal = journal_of([0, 1, 1, 1])
    with pytest.raises(InvariantViolated):
        match_log(journal, message([0, 1, 2, 2], 2, 4), 1, 3)
    with pytest.raises(InvariantViolated):
        match_log(journal, message([0, 1, 2, 2], 3, 4), 1, 3)
    assert len(journal) == 4


def test_entries_that_do_not_follow_each_other_are_not_used() -> None:
    journal = journal_of([0, 1])
    odd = Append(1, 0, 2, 1, 0, [(b"x", 3, 1), (b"y", 5, 1)])
    assert match_log(journal, odd, 1, 1) == (2, False)
    assert len(journal) == 2


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, int]:
    """A leader's terms, a follower's that share a beginning, the follower's commit index within
    it, and a slice that the leader sends."""
    common = [0, *sorted(draw(st.lists(st.integers(1, 4), max_size=6)))]
    top = common[-1]
    leader = common + sorted(draw(st.lists(st.integers(top + 1, top + 4), max_size=5)))
    tail = sorted(draw(st.lists(st.integers(top + 5, top + 8), max_size=5)))
    if draw(st.booleans()):
        leader, tail = common + tail, leader[len(common) :]
    commit = draw(st.integers(1, len(common)))
    previous = draw(st.integers(1, len(leader)))
    upto = draw(st.integers(previous, len(leader)))
    return leader, common + tail, commit, previous, upto


@given(logs())
def test_what_is_verified_equals_the_leaders_log_and_nothing_committed_moves(
    drawn: tuple[list[int], list[int], int, int, int],
) -> None:
    leader, follower, commit, previous, upto = drawn
    disk = MemoryDisk()
    journal = journal_of(follower, disk=disk)
    committed = whole(journal)[:commit]
    verified, accepted = match_log(journal, message(leader, previous, upto), 1, commit)
    ours = [entry[2] for entry in whole(journal)]
    assert whole(journal)[:commit] == committed
    assert [entry[1] for entry in whole(journal)] == list(range(1, len(ours) + 1))
    if accepted:
        assert verified == upto
        assert ours[:verified] == leader[:verified]
    else:
        assert ours == follower
        assert verified < previous, "a refusal moves the leader back"
        assert verified >= min(commit, len(leader)) or verified >= len(follower)
    journal.sync()
    assert whole(opened(disk)) == whole(journal)


def test_a_journal_that_holds_the_dumps_last_entry_keeps_its_tail() -> None:
    journal = journal_of([0, 1, 1, 2, 2])
    journal.continue_dump(Position(2, 4))
    assert len(journal) == 5


@pytest.mark.parametrize("dumped", [Position(3, 4), Position(2, 9)])
def test_a_journal_that_does_not_hold_it_begins_behind_the_dump(dumped: Position) -> None:
    journal = journal_of([0, 1, 1, 2, 2])
    journal.continue_dump(dumped)
    assert [entry[1:] for entry in whole(journal)] == [(dumped.index, dumped.term)]
