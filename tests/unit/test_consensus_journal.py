"""The journal: what was synced comes back, one sync for all that came, term and vote at once."""

from __future__ import annotations

import errno

import pytest

from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.errors import DiskFull, InvariantViolated, LogDamaged
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import TINY, created, fill, opened, segments, whole


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk("r1")


def test_whose_disk_it_is_comes_back(disk: MemoryDisk) -> None:
    joiner = Identity("c", "räplica", 2**62, joins=True)
    FileJournal.create(disk, joiner)
    assert FileJournal.open(disk, "räplica", "c").identity == joiner


@pytest.mark.parametrize(("replica", "cell"), [("r2", "default"), ("r1", "other")])
def test_a_journal_of_another_replica_or_cell_is_refused(
    disk: MemoryDisk, replica: str, cell: str
) -> None:
    created(disk)
    with pytest.raises(LogDamaged, match=r"belongs to (replica r1|cell default), not"):
        FileJournal.open(disk, replica, cell)


def test_many_entries_cost_one_sync(disk: MemoryDisk) -> None:
    journal = created(disk)
    syncs = disk.syncs
    fill(journal, 101, each=False)
    journal.sync()
    assert disk.syncs == syncs + 1
    assert len(opened(disk)) == 101


def test_an_index_that_does_not_follow_is_a_bug(disk: MemoryDisk) -> None:
    journal = fill(created(disk), 5)
    with pytest.raises(InvariantViolated):
        journal.add(b"gap", 7, 3)
    with pytest.raises(InvariantViolated):
        journal.cut_from(1)
    with pytest.raises(InvariantViolated):
        journal.forget_before(6)


class Mirror:
    """A watcher that keeps what it was told."""

    def __init__(self) -> None:
        self.begin = 1
        self.entries: list[tuple[bytes, int, int]] = []

    def added(self, index: int, term: int, command: bytes) -> None:
        self.entries.append((command, index, term))

    def cut(self, index: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] < index]

    def based(self, index: int) -> None:
        self.begin = index
        self.entries = [entry for entry in self.entries if entry[1] > index]


def test_a_watcher_is_told_all_before_it_is_durable(disk: MemoryDisk) -> None:
    journal = created(disk)
    journal.watcher = mirror = Mirror()
    for step in (
        lambda: journal.add(b"a", 2, 1),
        lambda: fill(journal, 9),
        lambda: journal.cut_from(5),
        lambda: fill(journal, 20, 4),
        lambda: journal.forget_before(12),
        lambda: journal.set_base(30, 4),
        lambda: fill(journal, 33, 4),
    ):
        step()
        assert mirror.entries == whole(journal)[1:]
        assert mirror.begin == journal[0][1]


def test_a_base_that_the_log_reaches_drops_the_rest_for_the_watcher_too(disk: MemoryDisk) -> None:
    journal = fill(created(disk), 20)
    journal.watcher = mirror = Mirror()
    for command, index, term in whole(journal)[1:]:
        mirror.added(index, term, command)
    journal.set_base(10, 9)
    assert mirror.entries == whole(journal)[1:] == []


def test_a_full_disk_is_reported_as_such_and_nothing_is_lost(disk: MemoryDisk) -> None:
    journal = fill(created(disk), 5)
    disk.room = 30
    with pytest.raises(DiskFull, match="r1: disk full"):
        fill(journal, 6)
    journal._destroy()
    disk.crash()
    disk.room = 2**20
    assert whole(opened(disk)) == whole(journal)[:5]
    assert fill(opened(disk), 7)[-1][1] == 7


def test_no_room_for_the_next_segment_is_reported_too(disk: MemoryDisk) -> None:
    journal = created(disk, segment_bytes=TINY)
    disk.room = TINY - 50
    with pytest.raises(DiskFull):
        fill(journal, 100)
    disk.crash()
    disk.room = 2**20
    after = opened(disk, segment_bytes=TINY)
    assert whole(after) == whole(journal)[: len(after)]
    fill(after, 100)
    assert whole(opened(disk)) == whole(after)


def test_a_journal_that_cannot_even_begin_is_a_full_disk() -> None:
    with pytest.raises(DiskFull):
        created(MemoryDisk(room=20))


def test_after_a_failed_sync_nothing_is_written_any_more(disk: MemoryDisk) -> None:
    journal = fill(created(disk), 5)
    disk.fail_sync()
    with pytest.raises(OSError, match="injected") as caught:
        fill(journal, 6)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == disk.place, "an operator has to know whose disk it is"
    content = disk.content(segments(disk)[0])
    journal.add(b"more", 7, 3)
    with pytest.raises(InvariantViolated, match="after its disk failed"):
        journal.sync()
    journal._destroy()
    assert disk.content(segments(disk)[0]) == content
