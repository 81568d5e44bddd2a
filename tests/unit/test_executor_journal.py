"""The journal's file: what was synced is read again or missed, and what is torn is left out."""

from __future__ import annotations

import pytest

from launcher.errors import LedgerDamaged
from launcher.executor import journal as journal_module
from launcher.executor.journal import Disk, Journal, read
from launcher.executor.ledger import new_uuid
from tests.unit.journal_rig import MemoryDisk

BODIES = [f"record {number} ".encode() * (number % 5 + 1) for number in range(8)]


def opened(disk: MemoryDisk | Disk) -> tuple[Journal, list[bytes]]:
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
