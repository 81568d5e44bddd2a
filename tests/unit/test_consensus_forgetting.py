"""Old segments go whole, and who dies in between, or reads what was not synced, loses nothing."""

from __future__ import annotations

import random

import msgspec
import pytest

from consensus.engine.storage.segments import segment_numbers
from consensus.errors import LogDamaged
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import CONFIG, TINY, Rig, created, fill, forget, opened, segments, whole


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk("r1")


def test_whole_segments_go_and_the_rest_is_as_it_was(disk: MemoryDisk) -> None:
    journal = fill(created(disk, segment_bytes=TINY), 40)
    names = segments(disk)
    journal.setCurrentTerm(5, "r2")
    forget(journal, 25)
    assert [entry[1] for entry in whole(journal)] == list(range(25, 41))
    assert journal[0][2] == 3
    kept = segments(disk)
    assert 0 < len(kept) < len(names)
    assert kept[: len(names)] == sorted({*names, *kept})[-len(kept) :]
    after = opened(disk)
    assert after[0][1] <= 25
    assert whole(after)[-15:] == whole(journal)[1:]
    assert (after.term, after.vote) == (5, "r2")


def test_forgetting_again_and_again_keeps_the_frames_in_sequence(disk: MemoryDisk) -> None:
    journal = created(disk, segment_bytes=TINY)
    for index in range(2, 80):
        journal.add(b"entry", index, 4)
        journal.sync()
        if index % 7 == 0:
            forget(journal, index - 2)
            assert len(segments(disk)) <= 2
        after = opened(disk.fork())
        assert whole(after)[whole(after).index(whole(journal)[1]) :] == whole(journal)[1:]


def test_a_segment_that_began_behind_a_point_that_was_cut_never_begins_a_log(
    disk: MemoryDisk,
) -> None:
    journal = fill(created(disk, segment_bytes=TINY), 30)
    begins = len(segments(disk))
    journal.cut_from(10)
    fill(journal, 60, 4)
    forget(journal, 20)
    after = opened(disk)
    assert whole(after)[-40:] == whole(journal)[-40:]
    assert after[0][1] <= 20
    assert len(segments(disk)) > begins, "nothing could go"
    forget(journal, 59)
    assert len(segments(disk)) <= 2
    assert opened(disk)[-1] == journal[-1]
    assert segment_numbers(disk.names())[0] > begins


def test_the_same_holds_after_a_restart(disk: MemoryDisk) -> None:
    fill(created(disk, segment_bytes=TINY), 30).cut_from(10)
    disk.crash()
    journal = opened(disk, segment_bytes=TINY)
    journal.cut_from(10)
    fill(journal, 60, 4)
    disk.crash()
    journal = opened(disk, segment_bytes=TINY)
    forget(journal, 20)
    assert whole(opened(disk))[-40:] == whole(journal)[-40:]


def test_what_a_start_has_read_stays_even_if_the_power_goes_then(disk: MemoryDisk) -> None:
    # The killed process wrote a frame and did not wait for the disk; the next life answers for it.
    journal = fill(created(disk), 3)
    disk.fail_sync()
    journal.add(b"written", 4, 3)
    with pytest.raises(OSError, match="injected"):
        journal.sync()
    disk.crash()
    read = opened(disk)
    assert whole(read)[-1] == (b"written", 4, 3)
    for seed in range(20):
        disk.power_cut(random.Random(seed))
        assert whole(opened(disk)) == whole(read)


def test_the_name_of_a_segment_that_a_start_has_read_stays_too(disk: MemoryDisk) -> None:
    def before(act: str, _: str) -> None:
        if act == "sync_names":
            raise InterruptedError

    journal = created(disk, segment_bytes=TINY)
    disk.before = before
    with pytest.raises(InterruptedError):
        fill(journal, 100)
    assert len(segments(disk)) == 2
    disk.crash()
    again = fill(opened(disk), journal[-1][1] + 5)
    for seed in range(10):
        disk.power_cut(random.Random(seed))
        assert whole(opened(disk)) == whole(again)


def test_who_dies_while_removing_old_segments_leaves_ones_that_begin_no_log(
    disk: MemoryDisk,
) -> None:
    journal = fill(created(disk, segment_bytes=TINY), 30)
    journal.cut_from(10)
    fill(journal, 60, 4)
    left = 0

    def before(act: str, _: str) -> None:
        nonlocal left
        left -= act == "remove"
        if left < 0:
            raise InterruptedError

    for steps in range(1, 12):
        copy = disk.fork()
        again = opened(copy, segment_bytes=TINY)
        left, copy.before = steps, before
        with pytest.raises(InterruptedError):
            forget(again, 59)
        copy.crash()
        found = opened(copy, segment_bytes=TINY)
        assert found[0][1] <= 59
        assert whole(found)[-1] == whole(journal)[-1]
        forget(found, 59)
        assert len(segments(copy)) <= 2


def test_a_log_whose_begin_was_cut_and_whose_earlier_segments_are_missing_is_reported(
    disk: MemoryDisk,
) -> None:
    journal = fill(created(disk, segment_bytes=TINY), 30)
    for name in segments(disk)[:-1]:
        disk.remove(name)
    journal._segment_bytes = 2**20
    journal.cut_from(10)
    journal.sync()
    with pytest.raises(LogDamaged, match="cut later; the segments before are missing"):
        opened(disk)


@pytest.mark.parametrize(("snapshot_bytes", "begins_at"), [(1 << 20, 60), (100, 110)])
def test_the_entries_behind_a_dump_that_is_sent_are_kept_while_the_journal_is_small(
    snapshot_bytes: int, begins_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = msgspec.structs.replace(CONFIG, snapshot_bytes=snapshot_bytes)
    rig = Rig(200)
    rig.dump(60)
    monkeypatch.setattr(rig.compaction, "_config", small)
    rig.compaction.sends_dump_of = lambda: 60
    rig.dump(120)
    assert rig.journal.log.begin == begins_at
    rig.compaction.sends_dump_of = lambda: None
    rig.dump(180)
    assert rig.journal.log.begin == 170
