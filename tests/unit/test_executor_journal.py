"""The journal's file: what was synced is read again or missed, and what is torn is left out."""

from __future__ import annotations

import random

import pytest

from launcher.errors import LedgerDamaged, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor.disk import LocalDisk
from launcher.executor.journal import Journal, read
from launcher.executor.ledger import new_uuid
from tests.unit.journal_rig import MemoryDisk

RECORD_BYTES = 20
"""What a record takes beside its body."""
BODIES = [f"record {number} ".encode() * (number % 5 + 1) for number in range(8)]


def opened(disk: MemoryDisk | LocalDisk) -> tuple[Journal, list[bytes]]:
    """A journal on `disk`, written anew with what was there."""
    journal = Journal(disk)
    found = journal.load()
    if found is None:
        journal.uuid = new_uuid()
    journal.rewrite(found or [])
    return journal, found or []


def written(*synced: bool) -> MemoryDisk:
    """A disk with so many records, synced or not."""
    disk = MemoryDisk()
    journal, _ = opened(disk)
    for body, is_synced in zip(BODIES, synced, strict=False):
        journal.append(body, synced=is_synced)
    return disk


def found(disk: MemoryDisk) -> list[bytes]:
    return Journal(disk).load() or []


def test_what_was_appended_is_read_again_in_order_also_after_it_was_written_anew() -> None:
    disk = written(True, False, True)
    assert found(disk) == BODIES[:3]
    for count in (4, 5):
        journal, before = opened(disk)
        assert before == BODIES[: count - 1]
        journal.append(BODIES[count - 1], synced=True)
    assert found(disk) == BODIES[:5]


def test_one_sync_serves_all_that_was_appended_before_it() -> None:
    disk = MemoryDisk()
    journal, _ = opened(disk)
    before = disk.syncs
    journal.append(BODIES[0], synced=False)
    journal.append(BODIES[1], synced=False)
    assert disk.syncs == before
    journal.append(b"", synced=True)
    assert (disk.syncs, disk.durable_size) == (before + 1, len(disk.data or b""))
    journal.append(b"", synced=True)
    assert disk.syncs == before + 1


@pytest.mark.parametrize("was_synced", [False, True])
def test_an_end_that_is_cut_off_at_any_byte_is_left_out_unless_it_was_synced(
    was_synced: bool,
) -> None:
    disk = written(True, True, was_synced, was_synced)
    whole = bytes(disk.data or b"")
    ends = [len(bytes(written(*[True] * count).data or b"")) for count in range(2, 5)]
    for size in range(ends[0], len(whole)):
        cut = MemoryDisk(whole[:size], disk.mark)
        if was_synced:
            with pytest.raises(LedgerDamaged, match="bytes are missing: its end is cut off"):
                found(cut)
        else:
            count = sum(end <= size for end in ends) + 1
            assert found(cut) == BODIES[:count], size
        # Without a mark it cannot be told from an append that was under way.
        assert len(found(MemoryDisk(whole[:size]))) < 4


def test_a_flipped_bit_in_what_was_synced_is_never_overlooked() -> None:
    disk = written(True, True, True)
    whole = bytes(disk.data or b"")
    for at in range(len(whole)):
        for bit in (0, 3, 7):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            with pytest.raises(LedgerDamaged) as caught:
                found(MemoryDisk(bytes(flipped), disk.mark))
            assert "move /nowhere/data away" in caught.value.hint


def test_a_flipped_bit_before_a_synced_record_is_noticed_without_a_mark() -> None:
    disk = written(True, True, True)
    whole = bytes(disk.data or b"")
    last = len(bytes(written(True, True).data or b""))
    for at in range(last):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        with pytest.raises(LedgerDamaged):
            found(MemoryDisk(bytes(flipped)))


def test_a_damaged_record_that_was_never_synced_is_left_out_with_what_came_behind_it() -> None:
    # A power cut may leave a later page and not an earlier one.
    disk = written(True, False, False, False)
    whole = bytearray(disk.data or b"")
    first = len(bytes(written(True).data or b""))
    second = len(bytes(written(True, True).data or b""))
    whole[first:second] = bytes(second - first)
    assert found(MemoryDisk(bytes(whole), disk.mark)) == BODIES[:1]


def test_an_older_copy_is_noticed_also_when_the_journal_was_written_anew_since() -> None:
    disk = written(True, True)
    older = bytes(disk.data or b"")
    journal, _ = opened(disk)
    with pytest.raises(LedgerDamaged, match="or it is an older copy"):
        found(MemoryDisk(older, disk.mark))
    journal.rewrite([])  # shorter than ever
    journal.append(BODIES[2], synced=True)
    with pytest.raises(LedgerDamaged, match="or it is an older copy"):
        found(MemoryDisk(older, disk.mark))


@pytest.mark.parametrize("mark", [b"", b"x", b"\xff\xfe 7\n", b"a b c\n", b"other 99999999\n"])
def test_a_mark_that_says_nothing_or_of_another_journal_is_no_damage(mark: bytes) -> None:
    disk = written(True, True)
    assert found(MemoryDisk(bytes(disk.data or b""), mark)) == BODIES[:2]


def test_the_mark_says_no_more_than_what_is_synced() -> None:
    disk = written(True)
    before = disk.mark
    journal, _ = opened(disk)
    after = disk.mark
    journal.append(BODIES[1], synced=False)
    assert disk.mark == after > before
    journal.append(BODIES[2], synced=True)
    assert disk.mark > after


@pytest.mark.parametrize(
    "data", [b"", b"short", b"this is no journal at all, whatever its name says" * 9, bytes(500)]
)
def test_what_is_no_journal_is_refused(data: bytes) -> None:
    with pytest.raises(LedgerDamaged, match="its head is damaged"):
        found(MemoryDisk(data))


def test_a_journal_of_a_later_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "VERSION", journal_module.VERSION + 1)
    disk = written(True)
    monkeypatch.undo()
    ours = journal_module.VERSION
    with pytest.raises(LedgerDamaged, match=f"version {ours + 1} is not {ours}"):
        found(disk)


def test_a_record_at_another_place_is_no_record() -> None:
    # Bytes of an older journal may stand behind the end where a disk forgets to cut it off.
    disk = written(True)
    whole = bytes(disk.data or b"")
    size = len(whole) - len(bytes(written().data or b""))
    assert len(read(whole + whole[-size:]).records) == 1


# ---- a disk that is full, or fails


def test_on_a_full_disk_nothing_more_is_ever_written_and_what_was_synced_is_there() -> None:
    for room in range(200):
        disk = written(True)
        journal, _ = opened(disk)
        disk.room = room
        done = 1
        while len(BODIES[done]) + RECORD_BYTES <= disk.room:
            journal.append(BODIES[done], synced=True)
            done += 1
        with pytest.raises(LedgerStuck, match="cannot write: No space left on device") as caught:
            journal.append(BODIES[done], synced=True)
        assert "make room on the disk" in caught.value.hint
        disk.room = None
        before = bytes(disk.data or b"")
        with pytest.raises(LedgerStuck):
            journal.append(b"once more", synced=False)
        with pytest.raises(LedgerStuck):
            journal.rewrite([])
        assert disk.data == before
        assert found(disk) == BODIES[:done]


def test_after_a_sync_that_failed_nothing_more_is_ever_written() -> None:
    disk = written(True)
    journal, _ = opened(disk)
    disk.fails = True
    with pytest.raises(LedgerStuck, match="cannot be used: Input/output error") as caught:
        journal.append(BODIES[1], synced=True)
    assert "see to the disk of /nowhere/data" in caught.value.hint
    mark, disk.fails = disk.mark, False
    with pytest.raises(LedgerStuck):
        journal.append(b"", synced=True)
    assert disk.mark == mark
    assert found(disk.after_power_cut(random.Random(1)))[:1] == BODIES[:1]


@pytest.mark.parametrize("trouble", ["full", "fails"])
def test_what_cannot_be_written_anew_leaves_the_old_journal_in_its_place(trouble: str) -> None:
    disk = written(True, True)
    disk.room, disk.fails = (10, False) if trouble == "full" else (None, True)
    with pytest.raises(LedgerStuck):
        opened(disk)
    assert found(disk.copy()) == BODIES[:2]


def test_it_says_when_it_has_grown_past_twice_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_BYTES_MIN", 1)
    disk = MemoryDisk()
    journal, _ = opened(disk)
    journal.rewrite([b"x" * 1_000])
    size = len(disk.data or b"")
    while not journal.is_long:
        journal.append(b"y" * 10, synced=False)
    assert 2 * size < len(disk.data or b"") <= 2 * size + 40
    journal.rewrite([b"x" * 1_000])
    assert not journal.is_long
