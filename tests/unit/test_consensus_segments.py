"""The journal's files: a torn end is cut, all other damage is reported, nothing is invented."""

from __future__ import annotations

import os
import random
import zlib

import pytest

from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry, pack_start, pack_vote
from consensus.engine.storage.segments import (
    MARK,
    Header,
    Identity,
    Segment,
    segment_name,
    segment_numbers,
    write_segment,
)
from consensus.errors import LogDamaged, UnknownFormat
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import IDENTITY, TINY, created, fill, opened, segments, whole

FIRST, SECOND, THIRD = segment_name(1), segment_name(2), segment_name(3)


def few(disk: MemoryDisk) -> FileJournal:
    """A few segments under 4 KiB in all, with entries, votes and a cut."""
    journal = created(disk, segment_bytes=TINY)
    journal.setCurrentTerm(2, "r2")
    fill(journal, 6, 2)
    journal.cut_from(5)
    fill(journal, 9, 3)
    journal.setCurrentTerm(4, None)
    fill(journal, 15, 4)
    assert journal.size_bytes < 4096
    assert len(segments(disk)) >= 3
    return journal


def frames(content: bytes) -> list[int]:
    return [place for place in range(len(content)) if content.startswith(MARK, place)]


class History:
    """Everything a journal may say after a torn write: its state after each frame."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.states: list[tuple[list[Entry], int, str | None]] = []
        content = disk.content(segments(disk)[-1])
        for end in [*frames(content)[1:], len(content)]:
            copy = disk.fork()
            copy.put(segments(disk)[-1], content[:end])
            self.states.append(said(opened(copy)))


def said(journal: FileJournal) -> tuple[list[Entry], int, str | None]:
    return whole(journal), journal.term, journal.vote


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk("r1")


def test_a_full_segment_is_followed_by_another_one_and_all_comes_back(disk: MemoryDisk) -> None:
    journal = few(disk)
    assert segment_numbers(disk.names()) == list(range(1, len(disk.names()) + 1))
    assert said(opened(disk)) == said(journal)
    assert max(len(disk.content(name)) for name in disk.names()) < 2 * TINY


def test_a_segment_gets_its_name_when_it_is_whole(disk: MemoryDisk) -> None:
    steps: list[str] = []
    journal = fill(created(disk, segment_bytes=TINY), 4)
    disk.before = lambda act, name: steps.append(f"{act} {name}".strip())
    while len(segments(disk)) == 1:
        steps.clear()
        fill(journal, journal[-1][1] + 1)
    assert steps == [
        f"append {FIRST}", f"sync {FIRST}",
        "create wal.new", "append wal.new", "append wal.new", "sync wal.new",
        f"rename wal.new {SECOND}", "sync_names",
    ]  # fmt: skip


def test_a_journal_cut_at_any_byte_of_its_end_is_a_beginning_and_goes_on(disk: MemoryDisk) -> None:
    few(disk)
    last = segments(disk)[-1]
    content = disk.content(last)
    history = History(disk)
    opening = frames(content)[1]
    seen = []
    for end in range(len(content)):
        torn = disk.fork()
        torn.put(last, content[:end])
        if end < opening:
            # Header and first frame were on the disk before the segment had its name.
            with pytest.raises(LogDamaged, match=last):
                opened(torn)
            continue
        journal = opened(torn, segment_bytes=TINY)
        assert said(journal) in history.states
        seen.append(len(journal))
        fill(journal, journal[-1][1] + 3, 9)
        assert said(opened(torn)) == said(journal)
    assert len(set(seen)) >= 3


def test_a_flipped_bit_anywhere_is_a_refusal_or_a_torn_end(disk: MemoryDisk) -> None:
    whole = said(few(disk))
    *_, shorter, full = History(disk).states
    assert full == whole
    refused = torn = 0
    for name in segments(disk):
        content = disk.content(name)
        last_frame = frames(content)[-1] if name == segments(disk)[-1] else len(content)
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 1 << place * 5 % 8
            flipped = disk.fork()
            flipped.put(name, bytes(changed))
            if place < last_frame:
                with pytest.raises(LogDamaged):
                    opened(flipped)
                refused += 1
            else:
                assert said(opened(flipped)) == shorter
                torn += 1
    assert refused > 500
    assert torn > 20


def test_a_segment_but_the_last_that_is_cut_anywhere_is_reported(disk: MemoryDisk) -> None:
    few(disk)
    content = disk.content(FIRST)
    for end in range(len(content)):
        cut = disk.fork()
        cut.put(FIRST, content[:end])
        with pytest.raises(LogDamaged, match=f"{FIRST}|{SECOND}: begins with frame"):
            opened(cut)


def test_the_message_says_what_where_and_the_hint_what_to_do(disk: MemoryDisk) -> None:
    few(disk)
    changed = bytearray(disk.content(FIRST))
    place = frames(bytes(changed))[2]
    changed[place + 25] ^= 1
    disk.put(FIRST, bytes(changed))
    with pytest.raises(LogDamaged) as caught:
        opened(disk)
    assert str(caught.value) == (
        f"r1/{FIRST}: frame at byte {place} is damaged, and a later segment exists"
    )
    assert "replica replace" in caught.value.hint


def test_a_damaged_frame_with_a_good_one_behind_it_is_reported(disk: MemoryDisk) -> None:
    fill(created(disk), 6)
    content = disk.content(FIRST)
    for place in (content.index(b"entry 2"), content.index(b"entry 5")):
        damaged = bytearray(content)
        damaged[place] ^= 1
        disk.put(FIRST, bytes(damaged))
        with pytest.raises(LogDamaged, match="damaged, with a good one behind it"):
            opened(disk)


def test_a_hole_of_zeros_in_the_middle_is_reported(disk: MemoryDisk) -> None:
    fill(created(disk), 6)
    content = bytearray(disk.content(FIRST))
    place = content.index(b"entry 2")
    content[place - 40 : place + 20] = bytes(60)
    disk.put(FIRST, bytes(content))
    with pytest.raises(LogDamaged):
        opened(disk)


def test_a_frame_that_is_missing_or_is_there_twice_is_reported(disk: MemoryDisk) -> None:
    fill(created(disk), 6)
    content = disk.content(FIRST)
    starts = frames(content)
    for changed in (
        content[: starts[2]] + content[starts[3] :],
        content[: starts[3]] + content[starts[2] :],
    ):
        disk.put(FIRST, changed)
        with pytest.raises(LogDamaged):
            opened(disk)


def test_a_tail_of_garbage_is_cut(disk: MemoryDisk) -> None:
    before = whole(fill(created(disk), 5))
    content = disk.content(FIRST)
    for garbage in (b"\x00" * 5_000, random.Random(1).randbytes(100), MARK * 10):
        disk.put(FIRST, content + garbage)
        assert whole(opened(disk)) == before
        assert disk.content(FIRST) == content


def test_an_entry_that_holds_a_journal_is_not_taken_for_one(disk: MemoryDisk) -> None:
    stranger = MemoryDisk()
    fill(FileJournal.create(stranger, Identity("default", "r1", 78, joins=False)), 5)
    journal = fill(created(disk), 3)
    for inner in (stranger.content(FIRST), disk.content(FIRST)):
        journal.add(inner, journal[-1][1] + 1, 3)
        journal.sync()
        copy = disk.fork()
        assert whole(opened(copy)) == whole(journal)
        copy.put(FIRST, disk.content(FIRST)[:-3])
        assert whole(opened(copy)) == whole(journal)[:-1], "cut, and its content is no frame"


def test_a_missing_segment_is_reported(disk: MemoryDisk) -> None:
    few(disk)
    disk.remove(SECOND)
    with pytest.raises(LogDamaged, match=f"r1/{SECOND}: missing, but {THIRD} is there"):
        opened(disk)


def test_without_its_first_segment_a_log_begins_late_and_the_dump_decides(
    disk: MemoryDisk,
) -> None:
    journal = fill(created(disk, segment_bytes=TINY), 20)
    disk.remove(FIRST)
    after = opened(disk)
    assert 1 < after[0][1] < 20
    assert whole(after)[1:] == whole(journal)[after[0][1] :]


def test_a_segment_under_anothers_name_is_reported(disk: MemoryDisk) -> None:
    few(disk)
    last = segments(disk)[-1]
    number = segment_numbers(disk.names())[-1]
    disk.put(segment_name(number + 1), disk.content(last))
    with pytest.raises(LogDamaged, match=f"says that it is segment {number}"):
        opened(disk)


def test_an_old_segment_in_the_place_of_its_successor_is_reported(disk: MemoryDisk) -> None:
    # A copy that somebody put back: every checksum is right, and it does not continue.
    journal = few(disk)
    last = segments(disk)[-1]
    number = segment_numbers(disk.names())[-1]
    for header, records, said_of in (
        (Header(number, 2, IDENTITY), b"", "begins with frame 2"),
        (Header(number, journal._sequence, IDENTITY), b"", "begins with frame"),
        (Header(number, 0, Identity("default", "r1", 5, joins=False)), b"", "another disk"),
    ):
        copy = disk.fork()
        copy.remove(last)
        frame = records or pack_vote(4, None) + pack_start(3, 2)
        write_segment(copy, header, frame)
        with pytest.raises(LogDamaged, match=said_of):
            opened(copy)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (pack_vote(3, None) + pack_start(1, 0), "hard state 3, None does not continue"),
        (pack_vote(0, None) + pack_start(3, 3), "entry 3 of term 3 does not end"),
        (pack_vote(0, None), "begins with the hard state"),
        (b"", "begins with the hard state"),
    ],
)
def test_a_segment_that_does_not_continue_the_one_before_is_reported(
    disk: MemoryDisk, frame: bytes, what: str
) -> None:
    fill(created(disk), 9)
    write_segment(disk, Header(2, 9, IDENTITY), frame)
    with pytest.raises(LogDamaged, match=what):
        opened(disk)


@pytest.mark.parametrize(
    ("records", "what"),
    [
        (b"E" + bytes(10), "record at byte 0"),
        (b"E" + bytes(16) + b"\xff\xff\xff\x00abc", "bytes from 21 on"),
        (b"V" + bytes(8) + b"\x02\x00\x00\x00\xff\xff", "record at byte 0"),
        (b"E" + (9).to_bytes(8, "little") + bytes(12), "entry 9 follows 3"),
        (b"T" + (1).to_bytes(8, "little"), "what it continues was cut later"),
        (pack_start(1, 1), "in the middle"),
    ],
)
def test_a_whole_frame_of_nonsense_is_damage_not_a_crash(
    disk: MemoryDisk, records: bytes, what: str
) -> None:
    fill(created(disk), 3)
    Segment(disk.open(FIRST), Header(1, 0, IDENTITY)).append(3, records)
    with pytest.raises(LogDamaged, match=what):
        opened(disk)


def test_a_record_of_an_unknown_kind_is_of_a_newer_version(disk: MemoryDisk) -> None:
    fill(created(disk), 3)
    Segment(disk.open(FIRST), Header(1, 0, IDENTITY)).append(3, b"Z")
    with pytest.raises(UnknownFormat, match="kind b'Z'") as caught:
        opened(disk)
    assert caught.value.hint == "upgrade this replica"


def test_a_newer_format_is_told_from_damage(disk: MemoryDisk) -> None:
    created(disk)
    content = bytearray(disk.content(FIRST))
    content[8] = 2
    disk.put(FIRST, bytes(content))
    with pytest.raises(LogDamaged, match="checksum"):
        opened(disk)
    end = 16 + int.from_bytes(content[12:16], "little")
    content[end : end + 4] = zlib.crc32(content[:end]).to_bytes(4, "little")
    disk.put(FIRST, bytes(content))
    with pytest.raises(UnknownFormat, match=f"{FIRST}: format 2 is newer than 1"):
        opened(disk)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"RCSEGMNT" + b"\x01" * 50, bytes(40)])
def test_a_file_that_is_no_segment_is_refused(disk: MemoryDisk, content: bytes) -> None:
    disk.put(FIRST, content)
    with pytest.raises(LogDamaged):
        opened(disk)


def test_a_header_that_says_nonsense_is_refused(disk: MemoryDisk) -> None:
    lead = b"RCSEGMNT" + (1).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"\x93\x01\xc1"
    disk.put(FIRST, lead + zlib.crc32(lead).to_bytes(4, "little") + os.urandom(30))
    with pytest.raises(LogDamaged, match="cannot be read"):
        opened(disk)
