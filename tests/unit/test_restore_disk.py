"""A restore from the one disk that is left: what it knows, what is missing, whose generation it
is."""

from __future__ import annotations

from pathlib import Path

import pytest

from consensus.engine.salvage import Salvage
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.journal import FileJournal
from consensus.errors import DataInUse, LogDamaged, NoData
from cron.errors import Conflict
from cron.state import commands as c
from cron.state.archive import SegmentRecord
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.state import State
from cron.storage.folders import name_of
from cron.storage.new_generation import NewGeneration, begin_generation
from cron.storage.restore_target import Target
from cron.storage.restoring import restore
from snapshots.layout import segment_object
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import (
    CELL,
    CHOICES,
    NOW_MS,
    Backed,
    copy_of,
    opened,
    restore_disk,
    segments_in,
    silent,
    tree,
    write_disk,
    yes,
)


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    """Its disk has two segments that are stored, and two that are not; nothing is a snapshot."""
    made = Backed(tmp_path)
    made.seal(rows=3)
    made.seal(rows=5, is_stored=False)
    return made


def restored(data: Path) -> State:
    return decode_state([opened(data)[1]])


def names(records: list[SegmentRecord]) -> list[str]:
    return sorted(name_of(one) for one in records)


def catalog(state: State) -> list[SegmentRecord]:
    return list(state.history.segments.values())


# --- what it knows


@pytest.mark.parametrize("dump_at", [0, 9])
@pytest.mark.parametrize("has_store", [True, False])
def test_all_that_the_disk_knows_is_in_the_new_life(
    backed: Backed, tmp_path: Path, dump_at: int, has_store: bool
) -> None:
    write_disk(backed.data, backed.rig, dump_at=dump_at)
    backup_store = backed.backup_store if has_store else None
    before = tree(backed.data)
    report = restore_disk(backed.data, backup_store, tmp_path / "r1")
    assert tree(backed.data) == before, "the last disk is only read"
    position, image = opened(tmp_path / "r1")
    state = decode_state([image])
    assert state.digest == backed.state.digest
    assert state.jobs.keys() == backed.state.jobs.keys()
    assert state.history.open_rows == backed.state.history.open_rows
    assert position.index == state.index == 10**12
    assert segments_in(tmp_path / "r1") == set(names(catalog(backed.state)))
    assert report.missing == report.passed_over == []
    assert (report.generation, report.new_generation, report.source) == (1, 2, str(backed.data))
    assert (report.segments, report.rows) == (4, 8)
    assert report.index == len(backed.rig.log) + 1
    assert report.is_done


def test_the_state_is_that_of_the_last_entry_begun_anew(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    restore_disk(backed.data, None, tmp_path / "r1")
    expected = copy_of(backed.state)
    position = begin_generation(expected, NewGeneration(2, NOW_MS, "ada"))
    assert opened(tmp_path / "r1") == (position, encode_state(expected))


def test_what_is_sealed_on_the_way_needs_no_file(backed: Backed, tmp_path: Path) -> None:
    """Rows of entries that are still in the journal are made from it again."""
    write_disk(backed.data, backed.rig)
    for path in backed.folders.segments.glob("*.seg"):
        path.unlink()
    assert restore_disk(backed.data, None, tmp_path / "r1").missing == []
    assert segments_in(tmp_path / "r1") == set(names(catalog(backed.state)))


def test_a_torn_end_was_told_to_nobody_and_is_left_out(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    (journal,) = (backed.data / "raft").glob("wal-*")
    journal.write_bytes(journal.read_bytes() + b"torn")
    restore_disk(backed.data, None, tmp_path / "r1")
    assert restored(tmp_path / "r1").digest == backed.state.digest


def test_the_term_of_the_disk_is_kept(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    disk = DirectoryDisk(backed.data / "raft")
    journal = FileJournal.open(disk, "r3", CELL)
    journal.setCurrentTerm(41, "r2")
    journal._destroy()
    disk.close()
    restore_disk(backed.data, None, tmp_path / "r1")
    assert opened(tmp_path / "r1")[0].term == 41


# --- what cannot be read


def test_a_damaged_journal_is_refused_and_leaves_nothing(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    (journal,) = (backed.data / "raft").glob("wal-*")
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    with pytest.raises(LogDamaged, match=str(backed.data / "raft")):
        restore_disk(backed.data, None, tmp_path / "new" / "r1")
    assert not (tmp_path / "new").exists()


def test_a_disk_of_another_cell_is_refused(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    target = Target(tmp_path / "r1", "staging", "r1")
    with pytest.raises(Conflict, match="is of cell prod, not staging") as caught:
        restore(target, CHOICES, "drawn", yes, silent, backup_store=None, data=backed.data)
    assert caught.value.hint == "give the configuration of that cell"
    assert not (tmp_path / "r1").exists()


def test_a_replica_that_runs_there_is_in_the_way(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    running = DirectoryDisk(backed.data / "raft")
    with pytest.raises(DataInUse, match=str(backed.data / "raft")):
        restore_disk(backed.data, None, tmp_path / "r1")
    running.close()
    assert restore_disk(backed.data, None, tmp_path / "r1").is_done


def test_nobody_starts_there_meanwhile(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    said: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        if line.startswith("reads "):
            with pytest.raises(DataInUse):
                DirectoryDisk(backed.data / "raft")

    restore_disk(backed.data, None, tmp_path / "r1", tell=tell)
    assert said[0] == f"reads {backed.data}"
    Salvage(backed.data / "raft").close()


@pytest.mark.parametrize("made", ["nothing", "empty"])
def test_where_no_replica_was_there_is_nothing_to_restore(
    backed: Backed, tmp_path: Path, made: str
) -> None:
    if made == "empty":
        (backed.data / "raft").mkdir()
    with pytest.raises(NoData, match=str(backed.data / "raft")):
        restore_disk(backed.data, None, tmp_path / "r1")
    assert not (tmp_path / "r1").exists()


def test_an_entry_of_a_later_release_is_told_and_nothing_is_made(
    backed: Backed, tmp_path: Path
) -> None:
    """Left out, it would be as if it had never happened."""
    backed.rig.log.append(b"\x92\xff\x00")
    write_disk(backed.data, backed.rig)
    with pytest.raises(Conflict, match=str(backed.data)) as caught:
        restore_disk(backed.data, None, tmp_path / "r1")
    assert caught.value.hint == "use the release that wrote it, or a newer one"
    assert not (tmp_path / "r1").exists()


# --- history


def behind_a_dump(backed: Backed) -> list[SegmentRecord]:
    """Write the disk so that no entry makes segments again; return its catalog."""
    write_disk(backed.data, backed.rig, dump_at=len(backed.rig.log) + 1)
    return catalog(backed.state)


def test_a_segment_that_is_only_here_and_damaged_is_lost_and_told(
    backed: Backed, tmp_path: Path
) -> None:
    records = behind_a_dump(backed)
    lost, *_ = [one for one in records if not one.is_stored]
    path = backed.folders.segments / name_of(lost)
    path.write_bytes(path.read_bytes()[:-1])
    told: list[str] = []
    report = restore_disk(backed.data, backed.backup_store, tmp_path / "r1", tell=told.append)
    assert report.missing == [name_of(lost)]
    assert report.rows == 8 - lost.rows
    assert any(line.startswith(f"not on this disk: {name_of(lost)}") for line in told)
    assert any(line.startswith(f"left out: {name_of(lost)}") for line in told)
    state = restored(tmp_path / "r1")
    assert lost.key not in state.history.segments
    assert state.history.retired == lost.number
    assert name_of(lost) not in segments_in(tmp_path / "r1")


@pytest.mark.parametrize("has_store", [True, False])
def test_a_segment_that_is_not_here_is_lost_unless_the_store_has_it(
    backed: Backed, tmp_path: Path, has_store: bool
) -> None:
    records = behind_a_dump(backed)
    stored = [one for one in records if one.is_stored]
    assert len(stored) == 2
    for record in stored:
        (backed.folders.segments / name_of(record)).unlink()
    report = restore_disk(backed.data, backed.backup_store if has_store else None, tmp_path / "r1")
    assert sorted(report.missing) == ([] if has_store else names(stored))
    known = restored(tmp_path / "r1").history.segments
    kept = records if has_store else [one for one in records if not one.is_stored]
    assert [one.key for one in known.values()] == [one.key for one in kept]
    assert [one.is_stored for one in known.values()] == [has_store and x.is_stored for x in kept]


@pytest.mark.parametrize("has_store", [True, False])
def test_what_was_only_in_the_store_is_lost_where_there_is_none(
    backed: Backed, tmp_path: Path, has_store: bool
) -> None:
    """A catalog that calls it local would have every replica look for it for ever."""
    stored = [one for one in catalog(backed.state) if one.is_stored]
    backed.rig.append(c.Retire(local=tuple(one.key for one in stored)))
    for record in stored:
        (backed.folders.segments / name_of(record)).unlink()
    behind_a_dump(backed)
    report = restore_disk(backed.data, backed.backup_store if has_store else None, tmp_path / "r1")
    known = restored(tmp_path / "r1").history.segments
    if has_store:
        assert report.missing == []
        assert all(known[one.key].is_stored and not known[one.key].is_local for one in stored)
    else:
        assert sorted(report.missing) == names(stored)
        assert not {one.key for one in stored} & known.keys()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_store_that_lacks_what_the_log_believes_stored_is_not_believed(
    backed: Backed, tmp_path: Path, is_here: bool
) -> None:
    """As where another one is given: what is not in it must be stored there, or is lost."""
    records = behind_a_dump(backed)
    missing, *_ = [one for one in records if one.is_stored]
    assert isinstance(backed.store, MemoryStore)
    del backed.store.objects[segment_object(CELL, name_of(missing))]
    if not is_here:
        (backed.folders.segments / name_of(missing)).unlink()
    report = restore_disk(backed.data, backed.backup_store, tmp_path / "r1")
    known = restored(tmp_path / "r1").history.segments
    if is_here:
        assert report.missing == []
        assert (known[missing.key].is_local, known[missing.key].is_stored) == (True, False)
    else:
        assert report.missing == [name_of(missing)]
        assert missing.key not in known


@pytest.mark.parametrize("is_same", [True, False])
def test_what_was_stored_and_the_log_does_not_know_is_fetched_if_it_is_the_same(
    backed: Backed, tmp_path: Path, is_same: bool
) -> None:
    """What this disk took for sealed may not be what a majority, and the store, has."""
    records = behind_a_dump(backed)
    unknown, *_ = [one for one in records if not one.is_stored]
    path = backed.folders.segments / name_of(unknown)
    if is_same:
        backed.backup_store.put_segment(path)
    else:
        other = Backed(tmp_path / "other")
        other.rig.to(7)
        other.seal()
        other.seal()
        backed.backup_store.put_segment(other.folders.segments / name_of(unknown))
    path.unlink()
    report = restore_disk(backed.data, backed.backup_store, tmp_path / "r1")
    known = restored(tmp_path / "r1").history.segments
    assert report.missing == ([] if is_same else [name_of(unknown)])
    assert (unknown.key in known) == is_same
    assert (name_of(unknown) in segments_in(tmp_path / "r1")) == is_same
    if is_same:
        assert (known[unknown.key].is_local, known[unknown.key].is_stored) == (True, False)


def test_a_half_written_segment_of_a_try_before_is_not_taken(
    backed: Backed, tmp_path: Path
) -> None:
    """What is there under its name is believed only if it is what the catalog says."""
    first, *_ = behind_a_dump(backed)
    data = tmp_path / "r1"
    target = Target(data, CELL, "r1")
    target.open("drawn")
    (data / "segments" / name_of(first)).write_bytes(b"")
    assert restore_disk(backed.data, None, data).missing == []
    assert target.folders.read(first) == backed.folders.read(first)
