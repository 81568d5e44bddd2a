"""A disk that begins with a state, and what can be read from the last one of a cell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from consensus.engine.envelope import BARRIER, ENTRY, Origin, seal
from consensus.engine.loading import load
from consensus.engine.membership import Member, decode_members, encode_members
from consensus.engine.salvage import Salvage
from consensus.engine.seeding import seed, seed_disk
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, read_pieces, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.errors import (
    DataInUse,
    DiskFull,
    InvariantViolated,
    LogDamaged,
    NoData,
    NotEmpty,
)
from consensus.leadership import Position
from consensus.limits import ROOM_BYTES_MIN
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import CONFIG, IDENTITY, whole

FAR = Position(7, 3 * 10**12)
STATE = [b"a state ", b"in pieces"]


class Died(Exception):
    """The process was killed."""


def test_a_seeded_disk_begins_with_its_state_and_without_members() -> None:
    disk = MemoryDisk()
    seed_disk(disk, IDENTITY, FAR, STATE)
    found = load(disk, CONFIG, lambda: 99)
    assert found.dump is not None
    assert found.dump.position == FAR
    assert decode_members(found.dump.members) == {}
    assert b"".join(read_pieces(disk, found.dump)) == b"".join(STATE)
    assert whole(found.journal) == [(b"\x01", FAR.index, FAR.term)]
    assert found.journal.getCurrentTerm() == FAR.term, "no older term may write behind it"
    assert found.journal.identity == IDENTITY
    assert found.dump.life == IDENTITY.token, "the life of the cell is named by its first disk"


def test_its_journal_goes_on_behind_it_and_is_read_back() -> None:
    disk = MemoryDisk()
    seed_disk(disk, IDENTITY, FAR, STATE)
    journal = load(disk, CONFIG, lambda: 99).journal
    for number in range(1, 200):
        journal.add(b"entry", FAR.index + number, 8)
        journal.sync()
    journal.cut_from(FAR.index + 150)
    journal.sync()
    journal._destroy()
    again = load(disk, CONFIG, lambda: 99).journal
    assert again[-1][1] == FAR.index + 149
    assert len(again) == 150


@pytest.mark.parametrize("power", [False, True])
def test_it_may_die_at_every_step_and_begin_again(power: bool) -> None:
    for step in range(100):
        disk = MemoryDisk()
        left = step

        def before(*_: str) -> None:
            nonlocal left
            if not left:
                raise Died
            left -= 1

        disk.before = before
        try:
            seed_disk(disk, IDENTITY, FAR, STATE)
        except Died:
            disk.before = None
            disk.power_cut(random.Random(step)) if power else disk.crash()
            _expect_none_or_whole(disk)
            continue
        assert step > 8
        return
    pytest.fail("it never ends")


def _expect_none_or_whole(disk: MemoryDisk) -> None:
    """What a crash left is no replica's disk, or the finished one."""
    try:
        found = load(disk, CONFIG_RESUME, lambda: 99)
    except (NoData, LogDamaged):
        seed_disk(disk, IDENTITY, FAR, STATE)
        found = load(disk, CONFIG_RESUME, lambda: 99)
    assert found.dump is not None
    assert found.dump.position == FAR


CONFIG_RESUME = type(CONFIG)(
    replica=CONFIG.replica, peers=CONFIG.peers, data=CONFIG.data, start="resume"
)


def test_what_is_there_is_never_overwritten() -> None:
    disk = MemoryDisk()
    FileJournal.create(disk, IDENTITY)._destroy()
    with pytest.raises(NotEmpty, match="wal-"):
        seed_disk(disk, IDENTITY, FAR, STATE)
    seeded = MemoryDisk()
    seed_disk(seeded, IDENTITY, FAR, STATE)
    with pytest.raises(NotEmpty):
        seed_disk(seeded, IDENTITY, FAR, STATE)


@pytest.mark.parametrize("start", ["resume", "bootstrap", "join"])
def test_what_is_half_seeded_is_told_from_a_lost_journal(start: str) -> None:
    disk = MemoryDisk("r1")
    write_dump(disk, IN_FORCE, FAR, encode_members({}), STATE, life=IDENTITY.token)
    config = msgspec.structs.replace(CONFIG, start=start)  # type: ignore[arg-type]
    with pytest.raises(LogDamaged, match="r1: a state was being put here") as caught:
        load(disk, config, lambda: 99)
    assert "restore` again" in caught.value.hint
    assert disk.names() == [IN_FORCE]


FOUNDED = encode_members({"r1": Member(1, 77, votes=True)})


@pytest.mark.parametrize(
    ("members", "life"), [(FOUNDED, 0), (FOUNDED, 77), (encode_members({}), 0)]
)
def test_the_dump_of_a_cell_is_never_taken_for_half_seeded(members: bytes, life: int) -> None:
    """Its journal is lost: it may be all that is left, and seeding would remove it."""
    disk = MemoryDisk("r1")
    write_dump(disk, IN_FORCE, FAR, members, STATE, life=life)
    with pytest.raises(NotEmpty, match="without its journal"):
        seed_disk(disk, IDENTITY, FAR, STATE)
    with pytest.raises(LogDamaged, match="journal is missing"):
        load(disk, CONFIG, lambda: 99)
    disk.put(IN_FORCE, disk.content(IN_FORCE)[:-1])
    with pytest.raises(NotEmpty, match="cannot be read"):
        seed_disk(disk, IDENTITY, FAR, STATE)
    assert disk.names() == [IN_FORCE]


@pytest.mark.parametrize("room", [0, ROOM_BYTES_MIN - 1])
def test_a_disk_that_is_full_is_said_to_be(room: int) -> None:
    disk = MemoryDisk("r1", room=room)
    with pytest.raises(DiskFull, match="r1: disk full"):
        seed_disk(disk, IDENTITY, FAR, STATE)
    assert disk.names() == []
    disk.room = None
    seed_disk(disk, IDENTITY, FAR, STATE)


def test_a_state_that_cannot_be_read_to_its_end_leaves_nothing() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a state"
        raise Died

    disk = MemoryDisk("r1")
    with pytest.raises(Died):
        seed_disk(disk, IDENTITY, FAR, pieces())
    assert disk.names() == []


@pytest.mark.parametrize("at", [Position(0, 5), Position(5, 0)])
def test_a_state_is_at_a_position(at: Position) -> None:
    with pytest.raises(InvariantViolated):
        seed_disk(MemoryDisk(), IDENTITY, at, STATE)


def test_a_directory_in_use_is_not_seeded(tmp_path: Path) -> None:
    held = DirectoryDisk(tmp_path)
    with pytest.raises(DataInUse):
        seed(tmp_path, "prod", "r2", FAR, STATE)
    held.close()


def test_a_directory_of_this_machine_is_seeded(tmp_path: Path) -> None:
    seed(tmp_path / "raft", "prod", "r2", FAR, STATE)
    salvage = Salvage(tmp_path / "raft")
    found = salvage.read()
    assert (found.cell, found.replica, found.dump, found.last) == ("prod", "r2", FAR, FAR)
    assert b"".join(salvage.pieces()) == b"".join(STATE)
    with pytest.raises(DataInUse):
        DirectoryDisk(tmp_path / "raft")
    salvage.close()


# --- salvage


def written(path: Path, dump_at: int = 0, last: int = 20) -> None:
    """A replica's disk, with entries of all kinds, and perhaps a dump."""
    disk = DirectoryDisk(path)
    journal = FileJournal.create(disk, Identity("prod", "r1", 5, joins=False))
    for index in range(2, last + 1):
        kind = BARRIER if index % 5 == 0 else ENTRY
        content = b"" if kind == BARRIER else b"entry %d" % index
        journal.add(seal(kind, Origin("r1", 1, index), content), index, 3)
        journal.sync()
    journal.setCurrentTerm(4, "r2")
    if dump_at:
        write_dump(disk, TAKEN, Position(3, dump_at), b"\x80", [b"state at %d" % dump_at])
        disk.rename(TAKEN, IN_FORCE)
    journal._destroy()
    disk.close()


@pytest.mark.parametrize("dump_at", [0, 7, 20])
def test_all_that_a_disk_knows_is_read(tmp_path: Path, dump_at: int) -> None:
    written(tmp_path, dump_at)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    salvage = Salvage(tmp_path)
    found = salvage.read()
    state = b"".join(salvage.pieces())
    salvage.close()
    assert state == (b"state at %d" % dump_at if dump_at else b"")
    expected = [index for index in range(2, 21) if index % 5 and index > dump_at]
    assert [one.position.index for one in found.entries] == expected
    assert all(one.entry == b"entry %d" % one.position.index for one in found.entries)
    assert (found.last, found.term) == (Position(3, 20), 4)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_torn_end_is_left_out_and_damage_is_not_passed_over(tmp_path: Path) -> None:
    written(tmp_path)
    (segment,) = tmp_path.glob("wal-*")
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"torn")
    salvage = Salvage(tmp_path)
    assert salvage.read().last == Position(3, 20)
    salvage.close()
    middle = len(whole) // 2
    segment.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    salvage = Salvage(tmp_path)
    with pytest.raises(LogDamaged):
        salvage.read()
    salvage.close()


def test_where_nothing_is_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        Salvage(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    salvage = Salvage(tmp_path / "empty")
    with pytest.raises(NoData):
        salvage.read()
    salvage.close()
    assert list((tmp_path / "empty").iterdir()) == [], "a lock neither"


def test_a_torn_write_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, dump_at=7)
    (segment,) = tmp_path.glob("wal-*")
    segment.write_bytes(segment.read_bytes() + b"torn")
    salvage = Salvage(tmp_path)
    found = salvage.read()
    salvage.close()
    assert found.last == Position(3, 20)
    assert not {10, 15, 20} & {one.position.index for one in found.entries}, "they are barriers"


def test_it_reads_what_it_may_not_write(tmp_path: Path) -> None:
    written(tmp_path, dump_at=7)
    for path in tmp_path.iterdir():
        path.chmod(0o400)
    tmp_path.chmod(0o500)
    salvage = Salvage(tmp_path)
    assert salvage.read().last == Position(3, 20)
    with pytest.raises(DataInUse):
        Salvage(tmp_path)
    salvage.close()
    tmp_path.chmod(0o700)


def test_a_dump_without_its_journal_is_not_an_empty_directory(tmp_path: Path) -> None:
    written(tmp_path, dump_at=7)
    for segment in tmp_path.glob("wal-*"):
        segment.unlink()
    salvage = Salvage(tmp_path)
    with pytest.raises(LogDamaged, match="journal is missing"):
        salvage.read()
    salvage.close()


def test_what_a_leaders_dump_has_replaced_is_not_salvaged(tmp_path: Path) -> None:
    """It died between the dump and the journal's new begin: the journal's entries are of a term
    that lost."""
    written(tmp_path, dump_at=7)
    disk = DirectoryDisk(tmp_path)
    write_dump(disk, IN_FORCE, Position(4, 7), b"\x80", [b"of another term"])
    disk.close()
    salvage = Salvage(tmp_path)
    found = salvage.read()
    assert (found.entries, found.last) == ([], Position(4, 7))
    salvage.close()


def test_a_journal_whose_dump_is_missing_is_damaged(tmp_path: Path) -> None:
    seed(tmp_path, "prod", "r1", FAR, STATE)
    (tmp_path / IN_FORCE).unlink()
    salvage = Salvage(tmp_path)
    with pytest.raises(LogDamaged, match="the dump before entry 3000000000000 is missing"):
        salvage.read()
    salvage.close()
