"""A restore from object storage: what it writes, which snapshot it takes, what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cron.errors import NotFound
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.storage.folders import Folders, name_of
from cron.storage.new_generation import NewGeneration, begin_generation
from cron.storage.restoring import Report
from snapshots.errors import StoreAway
from snapshots.layout import (
    manifest_object,
    segment_object,
    snapshot_object,
)
from snapshots.manifest import Manifest
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import (
    CELL,
    NOW_MS,
    Backed,
    copy_of,
    no,
    opened,
    restore,
    segments_in,
    tree,
)


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    return Backed(tmp_path)


@pytest.fixture
def store(backed: Backed) -> MemoryStore:
    assert isinstance(backed.store, MemoryStore)
    return backed.store


def snapshot_of(manifest: Manifest) -> str:
    return snapshot_object(CELL, manifest.generation, manifest.term, manifest.index)


def manifest_of(manifest: Manifest) -> str:
    return manifest_object(CELL, manifest.generation, manifest.term, manifest.index)


# --- what is written


def test_the_disk_opens_and_has_what_the_snapshot_had(backed: Backed, tmp_path: Path) -> None:
    records = backed.seal() + backed.seal()
    one = backed.snapshot()
    expected = copy_of(backed.state)
    report = restore(backed.backup_store, tmp_path / "r1", by="bob")
    position, image = opened(tmp_path / "r1")
    keys = frozenset(one.key for one in records)
    at = (one.generation, one.term, one.index, one.taken_ms)
    life = NewGeneration(2, NOW_MS, "bob", backed.store.url, "drawn", keys, snapshot=at)
    assert begin_generation(expected, life) == position
    assert expected.history.backup.index == one.index, "not the one before, of which it knows"
    assert image == encode_state(expected)
    assert decode_state([image]).digest == expected.digest == backed.state.digest
    assert segments_in(tmp_path / "r1") == {name_of(one) for one in records}
    for one in records:
        assert Folders(tmp_path / "r1", CELL).read(one) == backed.folders.read(one)
    assert sorted(path.name for path in (tmp_path / "r1").iterdir()) == [
        "raft", "segments", "snapshots",
    ]  # fmt: skip
    assert report.is_done


def test_the_report_says_what_is_restored(backed: Backed, tmp_path: Path) -> None:
    backed.seal(rows=4)
    manifest = backed.snapshot()
    backed.rig.trigger("request-1")
    backed.snapshot()
    seen: list[Report] = []

    def agree(report: Report) -> bool:
        assert not report.is_done
        seen.append(report)
        return True

    report = restore(backed.backup_store, tmp_path / "r1", agree=agree)
    assert seen == [report]
    assert (report.source, report.cell, report.data) == (
        "memory://test", CELL, str(tmp_path / "r1"),
    )  # fmt: skip
    assert (report.generation, report.new_generation) == (1, 2)
    assert report.index > manifest.index
    assert report.index == backed.state.history.taken.index
    assert report.taken_ms == backed.state.at_ms
    assert (report.jobs, report.executors, report.open_launches) == (1, 1, 1)
    assert (report.segments, report.rows) == (2, 4)
    assert report.missing == report.passed_over == []


def test_the_marker_says_who_restored_from_what(backed: Backed, tmp_path: Path) -> None:
    manifest = backed.snapshot()
    restore(backed.backup_store, tmp_path / "r1", by="bob")
    marker = backed.backup_store.generations()[-1]
    assert (marker.generation, marker.id, marker.by) == (2, "drawn", "bob")
    assert (marker.from_snapshot, marker.from_index) == (f"1/{manifest.index}", manifest.index)
    assert marker.claimed_ms == NOW_MS
    assert marker.host


def test_who_says_no_has_changed_nothing(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    backed.seal()
    backed.snapshot()
    objects = dict(store.objects)
    before = tree(tmp_path)
    report = restore(backed.backup_store, tmp_path / "new" / "r1", agree=no)
    assert not report.is_done
    assert (report.new_generation, report.segments) == (2, 2)
    assert store.objects == objects
    assert tree(tmp_path) == before


def test_an_empty_folder_that_was_there_stays_and_stays_empty(
    backed: Backed, tmp_path: Path
) -> None:
    backed.snapshot()
    (tmp_path / "r1").mkdir()
    restore(backed.backup_store, tmp_path / "r1", agree=no)
    assert list((tmp_path / "r1").iterdir()) == []


@pytest.mark.parametrize("away", ["", "cannot be reached"])
def test_a_restore_that_cannot_begin_leaves_nothing(
    backed: Backed, store: MemoryStore, tmp_path: Path, away: str
) -> None:
    store.away = away
    with pytest.raises(StoreAway if away else NotFound):
        restore(backed.backup_store, tmp_path / "new" / "r1")
    assert not (tmp_path / "new").exists()


def test_progress_is_told(backed: Backed, tmp_path: Path) -> None:
    backed.seal()
    manifest = backed.snapshot()
    told: list[str] = []
    restore(backed.backup_store, tmp_path / "r1", tell=told.append)
    assert told == [
        "looks for snapshots of cell prod in memory://test",
        f"fetches the snapshot at index {manifest.index}: {manifest.file_bytes:,} bytes",
        "fetches history: 1 of 2 segments",
        "fetches history: 2 of 2 segments",
        "writes the replica's disk",
    ]


# --- which snapshot


def test_the_newest_that_is_not_too_new_is_taken(backed: Backed, tmp_path: Path) -> None:
    manifests = []
    for second in (100, 200, 300):
        backed.rig.to(second)
        manifests.append(backed.snapshot())
    first, second, third = manifests
    for number, (at_ms, expected) in enumerate(
        [
            (None, third),
            (third.taken_ms, third),
            (third.taken_ms - 1, second),
            (second.taken_ms, second),
            (first.taken_ms, first),
        ]
    ):
        report = restore(backed.backup_store, tmp_path / str(number), agree=no, at_ms=at_ms)
        assert (report.index, report.taken_ms) == (expected.index, expected.taken_ms)
    with pytest.raises(NotFound, match="no snapshot that is old enough of cell prod"):
        restore(backed.backup_store, tmp_path / "r1", at_ms=first.taken_ms - 1)


def test_a_cell_that_stored_nothing_is_not_restored(backed: Backed, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="memory://test has no snapshot of cell prod") as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert caught.value.hint == "check cell name and URL"


def spoil_snapshot(backed: Backed, manifest: Manifest, store: MemoryStore) -> None:
    name = snapshot_of(manifest)
    content = store.objects[name]
    store.objects[name] = content[:200] + bytes([content[200] ^ 1]) + content[201:]


def cut_snapshot(backed: Backed, manifest: Manifest, store: MemoryStore) -> None:
    name = snapshot_of(manifest)
    store.objects[name] = store.objects[name][:-1]


def lose_snapshot(backed: Backed, manifest: Manifest, store: MemoryStore) -> None:
    del store.objects[snapshot_of(manifest)]


def spoil_manifest(backed: Backed, manifest: Manifest, store: MemoryStore) -> None:
    store.objects[manifest_of(manifest)] = b"{}"


@pytest.mark.parametrize("spoil", [spoil_snapshot, cut_snapshot, lose_snapshot, spoil_manifest])
def test_what_is_damaged_is_passed_over_and_told(
    backed: Backed, store: MemoryStore, tmp_path: Path, spoil: Callable[..., None]
) -> None:
    older = backed.snapshot()
    backed.rig.to(60)
    newer = backed.snapshot()
    spoil(backed, newer, store)
    report = restore(backed.backup_store, tmp_path / "r1")
    assert report.index == older.index
    (told,) = report.passed_over
    assert f"{newer.index:016x}" in told


def test_a_snapshot_with_the_state_of_another_is_passed_over(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    """Its bytes are those that were written, but not those that the replicas agreed on."""
    older = backed.snapshot()
    real = backed.state.digest
    backed.rig.to(60)
    try:
        backed.rig.append()
        backed.state.digest = bytes(16)
        newer = backed.snapshot()
    finally:
        backed.state.digest = real
    lied = newer.state_digest
    content = store.objects[manifest_of(newer)]
    assert lied.encode() in content
    told: list[str] = []
    manifests = backed.backup_store.manifests()[0]
    assert len(manifests) == 2
    _resign(store, manifest_of(newer), newer, state_digest=real.hex())
    report = restore(backed.backup_store, tmp_path / "r1", tell=told.append)
    assert report.index == older.index
    assert "the state in it is not that of its manifest" in report.passed_over[0]
    assert any(line.startswith("passed over: ") for line in told)


def _resign(store: MemoryStore, name: str, manifest: Manifest, **fields: str) -> None:
    import msgspec

    from snapshots.manifest import encode

    store.objects[name] = encode(msgspec.structs.replace(manifest, **fields))


def test_where_all_are_damaged_it_says_why(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    cut_snapshot(backed, backed.snapshot(), store)
    with pytest.raises(NotFound) as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert caught.value.hint.startswith("1 cannot be used: ")
    assert not (tmp_path / "r1").exists()


@pytest.mark.parametrize(
    "version", ["cron.state.image.IMAGE_VERSION", "snapshots.format.FORMAT_VERSION"]
)
def test_a_snapshot_of_an_older_format_is_named_with_the_way_out(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(version, 2)
        manifest = backed.snapshot()
    with pytest.raises(NotFound) as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert str(caught.value) == f"{backed.store.url} has no snapshot of cell {CELL}"
    assert f"{manifest.index:016x}" in caught.value.hint
    assert "version 2, " in caught.value.hint or "format 2, " in caught.value.hint
    assert "use the release that wrote it; " in caught.value.hint


# --- history that is not there


def test_segments_that_are_not_in_the_store_are_told_and_counted(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    kept, lost = backed.seal(rows=3), backed.seal(rows=5)
    backed.snapshot()
    for record in lost:
        del store.objects[segment_object(CELL, name_of(record))]
    report = restore(backed.backup_store, tmp_path / "r1")
    assert sorted(report.missing) == sorted(name_of(one) for one in lost)
    assert (report.segments, report.rows) == (4, 3)
    state = decode_state([opened(tmp_path / "r1")[1]])
    assert list(state.history.segments) == [one.key for one in kept]
    assert state.history.retired == lost[0].number
    assert segments_in(tmp_path / "r1") == {name_of(one) for one in kept}


def test_what_is_missing_is_told_before_anybody_agrees(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    """Of what was only in the store, nothing is fetched that could show it."""
    archived, _ = backed.seal(), backed.seal()
    backed.rig.append(c.Retire(local=tuple(one.key for one in archived)))
    backed.snapshot()
    del store.objects[segment_object(CELL, name_of(archived[0]))]
    report = restore(backed.backup_store, tmp_path / "r1", agree=no)
    assert report.missing == [name_of(archived[0])]
    assert restore(backed.backup_store, tmp_path / "r1").missing == report.missing
    known = decode_state([opened(tmp_path / "r1")[1]]).history.segments
    assert archived[0].key not in known
    assert archived[1].key in known


def test_a_segment_that_is_damaged_is_left_out_told_and_not_counted(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    kept, (damaged, other) = backed.seal(rows=3), backed.seal(rows=5)
    backed.snapshot()
    name = segment_object(CELL, name_of(damaged))
    store.objects[name] = store.objects[name][:-3]
    told: list[str] = []
    report = restore(backed.backup_store, tmp_path / "r1", tell=told.append)
    assert report.missing == [name_of(damaged)]
    assert report.rows == 3 + other.rows
    assert any(line.startswith(f"left out: {name_of(damaged)}") for line in told)
    state = decode_state([opened(tmp_path / "r1")[1]])
    assert list(state.history.segments) == [*(one.key for one in kept), other.key]
    assert segments_in(tmp_path / "r1") == {name_of(one) for one in (*kept, other)}


def test_a_segment_of_other_rows_under_its_name_is_left_out(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    """Whole, of this cell, under its name: and not what the catalog knows."""
    (record, *_) = backed.seal()
    backed.snapshot()
    strange = Backed(tmp_path / "strange")
    strange.rig.to(7)
    (other, *_) = strange.seal(rows=5)
    assert name_of(other) == name_of(record)
    assert isinstance(strange.store, MemoryStore)
    name = segment_object(CELL, name_of(record))
    store.objects[name] = strange.store.objects[name]
    assert restore(backed.backup_store, tmp_path / "r1").missing == [name_of(record)]
    assert name_of(record) not in segments_in(tmp_path / "r1")


def test_what_was_only_in_the_store_stays_there(backed: Backed, tmp_path: Path) -> None:
    archived, kept = backed.seal(), backed.seal()
    backed.rig.append(c.Retire(local=tuple(one.key for one in archived)))
    backed.snapshot()
    report = restore(backed.backup_store, tmp_path / "r1")
    assert report.missing == []
    assert segments_in(tmp_path / "r1") == {name_of(one) for one in kept}
    state = decode_state([opened(tmp_path / "r1")[1]])
    marks = {one.key: (one.is_local, one.is_stored) for one in state.history.segments.values()}
    assert marks == {one.key: (False, True) for one in archived} | {
        one.key: (True, True) for one in kept
    }


def test_what_was_stored_after_the_snapshot_is_found_all_the_same(
    backed: Backed, tmp_path: Path
) -> None:
    """The log learns of an upload later than the store."""
    records = backed.seal(is_stored=False)
    backed.snapshot()
    for record in records:
        backed.backup_store.put_segment(backed.folders.segments / name_of(record))
    assert restore(backed.backup_store, tmp_path / "r1").missing == []
    state = decode_state([opened(tmp_path / "r1")[1]])
    assert all(one.is_stored for one in state.history.segments.values())
