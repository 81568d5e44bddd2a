"""What a cell keeps in a store: in an order in which every step may be the last."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import layout
from snapshots.directory import DirectoryStore
from snapshots.disk import SnapshotFile, read_snapshot, write_segment, write_snapshot
from snapshots.errors import (
    LineageTaken,
    NotConditional,
    SegmentClash,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMissing,
)
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.manifest import Lineage, Manifest, SegmentName, decode_manifest, encode
from snapshots.memory import MemoryStore
from snapshots.retention import (
    DAY_MS,
    GRACE_MS,
    SnapshotPolicy,
    StoredSegment,
    segments_to_delete,
    snapshots_to_delete,
)
from snapshots.vault import Vault


class Crash(BaseException):
    """The process is killed here."""


def segment_file(folder: Path, number: int, content: bytes = b"rows") -> Path:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    header = SegmentHeader("prod", 1, number, "runs", number * 10, number * 10 + 10, 1, digest)
    return write_segment(folder, header, content).path


def snapshot_file(folder: Path, index: int) -> SnapshotFile:
    header = SnapshotHeader("prod", 1, 3, index, bytes(16), index * 1000)
    return write_snapshot(folder, header, [b"state at %d" % index])


def manifest_of(file: SnapshotFile, segments: list[Path], lineage: int = 1) -> Manifest:
    return Manifest(
        cell="prod", lineage=lineage, term=3, index=file.header.index,
        taken_ms=file.header.taken_ms, state_digest=file.header.digest.hex(),
        file_bytes=file.file_bytes, checksum=file.checksum.hex(),
        content_bytes=file.content_bytes,
        segments=[SegmentName(path.name, 1, 0, 0, 1, "") for path in segments],
    )  # fmt: skip


def back_up(vault: Vault, folder: Path, index: int, segments: list[Path]) -> None:
    """What a leader does."""
    for path in segments:
        vault.put_segment(path)
    file = snapshot_file(folder, index)
    vault.put_snapshot(file, manifest_of(file, segments))


def check(vault: Vault, folder: Path) -> int:
    """Everything that is listed can be restored; return how much that is."""
    manifests, skipped = vault.manifests()
    assert not skipped
    stored = vault.segments()
    for manifest in manifests:
        vault.fetch_snapshot(manifest, folder)
        assert {segment.name for segment in manifest.segments} <= stored.keys()
    return len(manifests)


def test_a_backup_comes_back(tmp_path: Path) -> None:
    vault = Vault(MemoryStore(), "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2)]
    back_up(vault, tmp_path, 100, segments)
    (manifest,), skipped = vault.manifests()
    assert not skipped
    target = tmp_path / "target"
    target.mkdir()
    file = vault.fetch_snapshot(manifest, target)
    assert b"".join(read_snapshot(file.path, "prod")[1]) == b"state at 100"
    assert vault.fetch_segment(segments[0].name, target).path == target / segments[0].name
    assert (target / segments[0].name).read_bytes() == segments[0].read_bytes()


def test_a_segment_is_stored_once_and_never_overwritten(tmp_path: Path) -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    path = segment_file(tmp_path, 1)
    assert vault.put_segment(path)
    assert not vault.put_segment(path)
    other = tmp_path / "other"
    other.mkdir()
    clashing = segment_file(other, 1, b"other rows")
    with pytest.raises(SegmentClash):
        vault.put_segment(clashing)
    assert store.objects[layout.segment_object("prod", path.name)] == path.read_bytes()


def test_damage_in_the_store_is_found_and_told(tmp_path: Path) -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    path = segment_file(tmp_path, 1)
    back_up(vault, tmp_path, 100, [path])
    back_up(vault, tmp_path, 200, [])
    (newest, older), _ = vault.manifests()
    name = layout.snapshot_object("prod", 1, 3, 200)
    store.objects[name] = store.objects[name][:-5]
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(SnapshotCorrupt):
        vault.fetch_snapshot(newest, target)
    assert list(target.iterdir()) == []
    vault.fetch_snapshot(older, target)
    store.objects[layout.segment_object("prod", path.name)] = b"\0" * 100
    with pytest.raises(SnapshotError):
        vault.fetch_segment(path.name, target)
    store.objects[layout.manifest_object("prod", 1, 3, 200)] = b"{"
    manifests, skipped = vault.manifests()
    assert [one.index for one in manifests] == [100]
    assert len(skipped) == 1


def test_a_snapshot_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    back_up(vault, tmp_path, 100, [])
    back_up(vault, tmp_path, 200, [])
    swapped = store.objects[layout.snapshot_object("prod", 1, 3, 100)]
    store.objects[layout.snapshot_object("prod", 1, 3, 200)] = swapped
    (newest, _), _ = vault.manifests()
    with pytest.raises(SnapshotCorrupt, match="not the snapshot of its manifest"):
        vault.fetch_snapshot(newest, tmp_path)


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    vault = Vault(MemoryStore(), "prod")
    with pytest.raises(SnapshotMissing):
        vault.fetch_segment("0001-0000000001-runs.seg", tmp_path)


def test_other_cells_and_other_objects_are_left_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    back_up(Vault(store, "prod"), tmp_path, 100, [])
    other = Vault(store, "prod2")
    assert other.manifests() == ([], [])
    assert other.newest_lineage() == 0
    store.objects["cells/prod/snapshots/readme.txt"] = b"hello"
    store.objects["cells/prod/segments/readme.txt"] = b"hello"
    vault = Vault(store, "prod")
    vault.prune(SnapshotPolicy(1, 0), 10**15, ())
    assert store.objects["cells/prod/segments/readme.txt"] == b"hello"


def crash_at(store: MemoryStore, step: int) -> Callable[[], int]:
    """Let the process die before its operation number `step`; returns how many there were."""
    done = 0

    def hook(operation: str, name: str) -> None:
        nonlocal done
        if done == step:
            store.hook = lambda operation, name: None
            raise Crash(f"{operation} {name}")
        done += 1

    store.hook = hook
    return lambda: done


def test_a_backup_may_die_at_every_step(tmp_path: Path) -> None:
    for step in range(100):
        store = MemoryStore()
        vault = Vault(store, "prod")
        segments = [segment_file(tmp_path, number) for number in (1, 2)]
        back_up(vault, tmp_path, 100, segments[:1])
        crash_at(store, step)
        try:
            back_up(vault, tmp_path, 200, segments)
        except Crash:
            assert check(vault, tmp_path) in (1, 2)
            back_up(vault, tmp_path, 200, segments)  # the next leader
            assert check(vault, tmp_path) == 2
        else:
            assert step > 5, "hardly anything was tried"
            return
    pytest.fail("it never ends")


def snapshots_in(store: MemoryStore) -> int:
    return sum(name.endswith(".snap") for name in store.objects)


def test_a_pruning_may_die_at_every_step(tmp_path: Path) -> None:
    for step in range(100):
        store = MemoryStore()
        vault = Vault(store, "prod")
        segments = [segment_file(tmp_path, number) for number in (1, 2, 3)]
        for number in (1, 2, 3):
            back_up(vault, tmp_path, number * 100, segments[number - 1 :])
        now_ms = 10 * GRACE_MS
        crash_at(store, step)
        try:
            pruned = vault.prune(SnapshotPolicy(newest=1, daily=0), now_ms, ())
        except Crash:
            assert check(vault, tmp_path) >= 1
            vault.prune(SnapshotPolicy(newest=1, daily=0), now_ms, ())
            assert check(vault, tmp_path) == 1
            assert snapshots_in(store) == 1
        else:
            assert step > 5
            store.hook = lambda operation, name: None
            assert pruned.segments == [segments[0].name, segments[1].name]
            assert vault.segments().keys() == {segments[2].name}
            assert snapshots_in(store) == 1
            return
    pytest.fail("it never ends")


def test_nothing_is_pruned_that_a_damaged_manifest_might_name(tmp_path: Path) -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    segments = [segment_file(tmp_path, number) for number in (1, 2)]
    back_up(vault, tmp_path, 100, segments[:1])
    back_up(vault, tmp_path, 200, segments[1:])
    store.objects[layout.manifest_object("prod", 1, 3, 100)] = b"\0"
    assert vault.prune(SnapshotPolicy(1, 0), 10**15, ()).segments == []
    assert len(vault.segments()) == 2


# --- lineages


def lineage(number: int = 2, claim: str = "a") -> Lineage:
    return Lineage(cell="prod", lineage=number, id=claim, by="ada", host="h1")


def test_a_lineage_has_one_owner_who_may_come_again() -> None:
    vault = Vault(MemoryStore(), "prod")
    vault.claim_lineage(lineage(1))
    vault.claim_lineage(lineage(2, "a"))
    vault.claim_lineage(lineage(2, "a"))
    with pytest.raises(LineageTaken, match="by ada on h1") as taken:
        vault.claim_lineage(lineage(2, "b"))
    assert taken.value.lineage == lineage(2, "a")
    assert vault.newest_lineage() == 2
    assert [one.lineage for one in vault.lineages()] == [1, 2]


def test_of_two_restores_at_once_one_succeeds(tmp_path: Path) -> None:
    vault = Vault(DirectoryStore(tmp_path), "prod")
    won: list[str] = []
    gate = threading.Barrier(6)

    def claim(name: str) -> None:
        gate.wait()
        try:
            vault.claim_lineage(lineage(2, name))
            won.append(name)
        except LineageTaken:
            pass

    threads = [threading.Thread(target=claim, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_store_without_conditions_needs_somebody_who_takes_the_risk() -> None:
    store = MemoryStore()
    store.conditions = False
    vault = Vault(store, "prod")
    with pytest.raises(NotConditional, match="conditional"):
        vault.claim_lineage(lineage())
    vault.claim_lineage(lineage(), unconditional=True)
    with pytest.raises(LineageTaken):
        vault.claim_lineage(lineage(2, "b"), unconditional=True)


def test_output_is_kept_by_its_launch() -> None:
    vault = Vault(MemoryStore(), "prod")
    name = "default/backup@2026-11-20T15:00:00Z+t1"
    vault.put_output(name, 2, b"printed")
    assert vault.get_output(name, 2) == b"printed"
    assert vault.get_output(name, 1) is None


# --- retention


def manifest(index: int, day: int = 0, names: tuple[str, ...] = (), life: int = 1) -> Manifest:
    return Manifest(
        cell="prod", lineage=life, term=1, index=index, taken_ms=day * DAY_MS + index,
        state_digest="", file_bytes=0, checksum="", content_bytes=0,
        segments=[SegmentName(name, 0, 0, 0, 0, "") for name in names],
    )  # fmt: skip


def test_the_newest_ones_stay_and_the_last_of_each_day() -> None:
    manifests = [manifest(day * 10 + hour, day) for day in range(5) for hour in range(3)]
    gone = snapshots_to_delete(manifests, SnapshotPolicy(newest=2, daily=3))
    kept = {one.index for one in manifests} - {one.index for one in gone}
    assert kept == {42, 41, 32, 22}


_names = st.lists(st.integers(0, 9).map(lambda n: layout.segment_name(1, n, "runs")), max_size=4)
_manifests = st.lists(
    st.builds(
        manifest,
        st.integers(0, 50),
        st.integers(0, 9),
        _names.map(tuple),
        st.integers(1, 2),
    ),
    max_size=12,
    unique_by=lambda one: one.position,
)


@settings(max_examples=200)
@given(_manifests, st.integers(0, 4), st.integers(-1, 4), _names, st.integers(0, 10**15))
def test_what_the_newest_snapshot_needs_is_never_deleted(
    manifests: list[Manifest], newest: int, daily: int, wanted: list[str], now_ms: int
) -> None:
    policy = SnapshotPolicy(newest, daily)
    gone = snapshots_to_delete(manifests, policy)
    kept = [one for one in manifests if one not in gone]
    stored = [StoredSegment(layout.segment_name(1, number, "runs"), 0) for number in range(10)]
    deleted = set(segments_to_delete(stored, kept, wanted, now_ms))
    assert not deleted & set(wanted)
    if manifests:
        last = max(manifests, key=lambda one: one.position)
        assert last in kept
        for one in kept:
            assert not deleted & {segment.name for segment in one.segments}
    else:
        assert not deleted
    assert snapshots_to_delete(kept, policy) == [], "once is enough"


def test_a_young_segment_may_be_on_its_way() -> None:
    stored = [StoredSegment(layout.segment_name(1, 1, "runs"), 5 * DAY_MS)]
    assert segments_to_delete(stored, [manifest(1)], (), 5 * DAY_MS + GRACE_MS) == []
    assert segments_to_delete(stored, [manifest(1)], (), 5 * DAY_MS + GRACE_MS + 1) != []


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 100_000])
def test_other_json_is_no_manifest(content: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_manifest(content, "m.json", "prod")


def test_a_manifest_is_for_people_too() -> None:
    encoded = encode(manifest(7, names=("0001-0000000001-runs.seg",)))
    assert decode_manifest(encoded, "m", "prod") == manifest(7, names=("0001-0000000001-runs.seg",))
    assert b'\n "index": 7,' in encoded
    with pytest.raises(SnapshotError, match="'prod', not 'test'"):
        decode_manifest(encoded, "m", "test")
    newer = msgspec.json.encode(msgspec.structs.replace(manifest(7), format=9))
    with pytest.raises(SnapshotError, match="format 9"):
        decode_manifest(newer, "m", "prod")
