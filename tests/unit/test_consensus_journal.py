"""The journal: what was synced comes back; what was torn is cut; what is damaged is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consensus.engine.storage.journal import MARK, FileJournal
from consensus.errors import InvariantViolated, LogDamaged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def reopened(path: Path) -> FileJournal:
    return FileJournal(path, "r1")


def filled(path: Path, count: int = 5) -> FileJournal:
    journal = FileJournal(path, "r1")
    journal.setCurrentTerm(3, "r2")
    for index in range(1, count + 1):
        journal.add(b"entry %d" % index, index, 3)
        journal.sync()
    return journal


def test_entries_term_and_vote_come_back(path: Path) -> None:
    before = filled(path)
    after = reopened(path)
    assert after.entries == before.entries
    assert (after.getCurrentTerm(), after.getVotedForNodeId()) == (3, "r2")
    assert after[-1] == (b"entry 5", 5, 3)
    assert [entry[1] for entry in after[1:3]] == [2, 3]


def test_a_term_without_a_vote_forgets_the_vote(path: Path) -> None:
    filled(path).setCurrentTerm(4, None)
    assert (reopened(path).term, reopened(path).vote) == (4, None)


def test_a_vote_is_on_the_disk_when_the_call_returns(path: Path) -> None:
    journal = FileJournal(path, "r1")
    syncs = journal.syncs
    journal.setCurrentTerm(9, "r3")
    assert journal.syncs == syncs + 1
    assert reopened(path).vote == "r3"


def test_many_entries_cost_one_sync(path: Path) -> None:
    journal = FileJournal(path, "r1")
    for index in range(1, 101):
        journal.add(b"x", index, 1)
    journal.sync()
    journal.sync()
    assert journal.syncs == 1
    assert len(reopened(path)) == 100


def test_what_was_not_synced_is_not_there(path: Path) -> None:
    journal = filled(path)
    journal.add(b"lost", 6, 3)
    assert len(reopened(path)) == 5


def test_a_cut_and_what_replaces_it_come_back_together(path: Path) -> None:
    journal = filled(path)
    journal.cut_from(4)
    journal.add(b"other", 4, 4)
    journal.sync()
    assert reopened(path).entries == journal.entries
    assert [entry[2] for entry in journal.entries] == [3, 3, 3, 4]


def test_a_journal_cut_at_any_byte_gives_a_beginning_and_can_go_on(
    path: Path, tmp_path: Path
) -> None:
    full = filled(path, 3).entries
    content = path.read_bytes()
    header = len(content) - sum(len(frame) + len(MARK) for frame in content.split(MARK)[1:])
    lengths = set()
    for end in range(header, len(content)):
        torn = tmp_path / "torn"
        torn.write_bytes(content[:end])
        journal = reopened(torn)
        assert journal.entries == full[: len(journal)]
        lengths.add(len(journal))
        journal.add(b"new", len(journal) + 1, 5)
        journal.sync()
        assert reopened(torn).entries == journal.entries
        journal._destroy()
    assert lengths == {0, 1, 2}


def test_a_damaged_frame_with_a_good_one_behind_it_is_reported(path: Path) -> None:
    filled(path)
    content = path.read_bytes()
    for place in (content.index(b"entry 2"), content.index(b"entry 4")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(LogDamaged, match="damaged, with a good one behind it"):
            reopened(path)


def test_a_hole_of_zeros_in_the_middle_is_reported(path: Path) -> None:
    filled(path)
    content = bytearray(path.read_bytes())
    place = content.index(b"entry 2")
    content[place - 40 : place + 20] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(LogDamaged):
        reopened(path)


def test_a_frame_that_is_missing_is_reported(path: Path) -> None:
    filled(path)
    content = path.read_bytes()
    starts = [place for place in range(len(content)) if content.startswith(MARK, place)]
    path.write_bytes(content[: starts[2]] + content[starts[3] :])
    with pytest.raises(LogDamaged):
        reopened(path)


def test_a_tail_of_garbage_is_cut(path: Path) -> None:
    before = filled(path).entries
    for garbage in (b"\x00" * 5_000, os.urandom(100), MARK * 10):
        with path.open("ab") as file:
            file.write(garbage)
        journal = reopened(path)
        assert journal.entries == before
        assert path.stat().st_size == journal.size_bytes


def test_an_entry_that_holds_a_journal_is_not_taken_for_one(path: Path, tmp_path: Path) -> None:
    inner = filled(tmp_path / "inner").path.read_bytes()
    journal = filled(path, 2)
    journal.add(inner, 3, 3)
    journal.sync()
    assert reopened(path).entries == journal.entries
    torn = path.read_bytes()[:-3]
    path.write_bytes(torn)
    assert len(reopened(path)) == 2, "the torn entry is cut, its content is no frame of ours"


def test_a_journal_of_another_replica_is_refused(path: Path) -> None:
    filled(path)
    with pytest.raises(LogDamaged, match="belongs to replica r1, not r2"):
        FileJournal(path, "r2")


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"RCJOURN1" + b"\x00" * 50])
def test_a_file_that_is_no_journal_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LogDamaged):
        reopened(path)


def test_what_is_forgotten_is_gone_and_the_rest_is_whole(path: Path) -> None:
    journal = filled(path, 20)
    size = path.stat().st_size
    journal.forget_before(15)
    assert path.stat().st_size == journal.size_bytes < size
    journal.add(b"later", 21, 4)
    journal.sync()
    after = reopened(path)
    assert after.entries == journal.entries
    assert [entry[1] for entry in after.entries] == list(range(15, 22))
    assert after[1] == (b"entry 16", 16, 3)
    assert (after.term, after.vote) == (3, "r2")


def test_a_crash_while_forgetting_leaves_the_old_journal(path: Path) -> None:
    before = filled(path, 20).entries
    path.with_suffix(".new").write_bytes(b"half of a new journal")
    assert reopened(path).entries == before
    assert not path.with_suffix(".new").exists()


def test_forgetting_again_and_again_keeps_the_frames_in_sequence(path: Path) -> None:
    journal = filled(path, 5)
    for index in range(6, 30):
        journal.add(b"entry", index, 4)
        journal.sync()
        if index % 7 == 0:
            journal.forget_before(index - 2)
        assert reopened(path).entries == journal.entries


def test_a_base_replaces_everything(path: Path) -> None:
    journal = filled(path)
    journal.set_base(100, 7)
    journal.add(b"next", 101, 7)
    journal.sync()
    assert [entry[1:] for entry in reopened(path).entries] == [(100, 7), (101, 7)]


def test_an_index_that_does_not_follow_is_a_bug(path: Path) -> None:
    journal = filled(path)
    with pytest.raises(InvariantViolated):
        journal.add(b"gap", 7, 3)
    with pytest.raises(InvariantViolated):
        journal.cut_from(1)
