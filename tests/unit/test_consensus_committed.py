"""What a disk knows of its committed entries after a restart: a leader whose log lacks them is
refused, and nothing is cut off."""

from __future__ import annotations

import pytest

from consensus.engine.network.wire import Append
from consensus.engine.storage.committed import EVERY_S, FILES, CommitNote
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.errors import ConsensusError, OtherLog
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.raft_rig import R2, Rig


def journal_on(disk: MemoryDisk, *terms: int) -> FileJournal:
    """A journal with an entry of each term behind its base, at index 1."""
    journal = FileJournal.create(disk, Identity("c", "r1", 11, False))
    for index, term in enumerate(terms, 2):
        journal.add(b"x", index, term)
    journal.sync()
    return journal


def noted(disk: MemoryDisk, journal: FileJournal, *indexes: int) -> None:
    note = CommitNote(disk, journal.log)
    for place, index in enumerate(indexes):
        note.note(index, place * EVERY_S)


def known(disk: MemoryDisk, journal: FileJournal) -> int:
    return CommitNote(disk, journal.log).index


def test_the_newest_index_is_known_after_a_restart() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, 1, 1, 2, 2)
    assert known(disk, journal) == 0
    for index in (2, 3, 4, 5):
        noted(disk, journal, index)
        assert known(disk, journal) == index
    assert set(FILES) <= set(disk.names())


def test_it_is_written_once_in_a_while_and_only_where_it_has_risen() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, 1, 1, 1)
    note = CommitNote(disk, journal.log)
    note.note(2, 0.0)
    note.note(4, EVERY_S / 2)
    assert known(disk, journal) == 2
    note.note(4, EVERY_S)
    assert known(disk, journal) == 4
    note.note(3, 9 * EVERY_S)
    assert known(disk, journal) == 4


@pytest.mark.parametrize("content", [b"", b"torn", bytes(20), b"x" * 20, b"x" * 99])
def test_a_torn_note_leaves_the_one_before(content: bytes) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, 1, 1, 1)
    noted(disk, journal, 2, 3)  # committed.1, then committed.0
    disk.put(FILES[0], content)
    assert known(disk, journal) == 2
    noted(disk, journal, 4)
    assert known(disk, journal) == 4
    for name in FILES:
        disk.put(name, content)
    assert known(disk, journal) == 0


def test_a_note_about_an_entry_that_the_journal_lacks_says_nothing() -> None:
    """The parts of a copy that was made while a replica ran may be of different moments."""
    disk, other = MemoryDisk(), MemoryDisk()
    noted(disk, journal_on(other, 1, 1, 1, 1), 5)
    assert known(disk, journal_on(MemoryDisk(), 1, 1)) == 0
    assert known(disk, journal_on(MemoryDisk(), 1, 1, 1, 2)) == 0
    assert known(disk, journal_on(MemoryDisk(), 1, 1, 1, 1, 3)) == 5


def test_a_full_disk_is_the_journals_to_report() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, 1, 1)
    disk.room = 3
    noted(disk, journal, 3)
    disk.room = None
    assert known(disk, journal) == 0


def test_a_replica_that_returns_keeps_what_was_committed_and_follows_no_older_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Rig(monkeypatch)
    before.hear(R2, Append(2, 4, 4, 1, 1, []))
    before.tick()
    before.close()

    def put(disk: MemoryDisk) -> None:
        disk.put(FILES[1], before.disk.content(FILES[1]))

    again = Rig(monkeypatch, dump=put)  # type: ignore[arg-type] - it has no dump
    assert again.raft.commit == 4
    with pytest.raises(OtherLog, match="leader of term 7 has another entry 3") as caught:
        again.hear(R2, Append(7, 1, 2, 1, 1, [(b"\x01", 3, 7)]))
    assert isinstance(caught.value, ConsensusError)
    assert "restore --from-data" in caught.value.hint
    assert [again.journal[at][2] for at in range(len(again.journal))] == [0, 1, 1, 1]
    again.close()
