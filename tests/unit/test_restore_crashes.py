"""A restore that dies or fails at any of its steps, and the folder that it leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from consensus.errors import ConsensusError
from cron import failpoints
from cron.errors import ConfigError, CronError
from cron.storage.folders import name_of
from cron.storage.restore_target import NOTE, Target
from cron.storage.restoring import Report
from snapshots.errors import SnapshotError, StoreError
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import (
    CELL,
    Backed,
    Died,
    failing,
    opened,
    restore,
    segments_in,
    target_of,
    tree,
)

STEPS_MAX = 400


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    made = Backed(tmp_path)
    made.records = made.seal()
    made.snapshot()
    return made


@pytest.fixture
def store(backed: Backed) -> MemoryStore:
    assert isinstance(backed.store, MemoryStore)
    return backed.store


def claimed(backed: Backed) -> list[int]:
    return [one.generation for one in backed.backup_store.generations()]


def expect_whole(backed: Backed, data: Path, report: Report) -> None:
    """The one disk of generation 2, with all history and nothing else."""
    assert report.is_done
    assert report.new_generation == 2, "the same claim, not another one"
    assert claimed(backed) == [1, 2]
    assert opened(data)[0].index == 10**12
    assert segments_in(data) == {name_of(one) for one in backed.state.history.segments.values()}
    assert sorted(path.name for path in data.iterdir()) == ["raft", "segments", "snapshots"]


def is_whole(data: Path) -> bool:
    """Whether a replica would start on what is there; what it would not start on is none."""
    if not (data / "raft").is_dir():
        return False
    try:
        opened(data)
    except ConsensusError:
        return False
    return True


def test_who_is_killed_at_any_step_goes_on_under_the_same_generation(
    backed: Backed, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = dict(store.objects)
    image = b""
    for step in range(STEPS_MAX):
        data = tmp_path / f"at-{step}" / "r1"
        store.objects = dict(objects)
        with failing(monkeypatch, store, step, Died()) as steps:
            try:
                report = restore(backed.backup_store, data)
            except Died:
                report = None
        if report is None and is_whole(data):
            assert claimed(backed) == [1, 2], "no disk without its claim"
            if not (data / NOTE).exists():
                continue  # nothing was left to do
        whole = report or restore(backed.backup_store, data, draw="again")
        expect_whole(backed, data, whole)
        found = opened(data)[1].replace(b"again", b"drawn")
        assert found == (image or found), "the same State, but for whose claim it is"
        image = found
        if report is not None:
            assert steps() == step > 40, "the steps are counted"
            return
        shutil.rmtree(data.parent)
    pytest.fail("it never ends")


def test_an_operation_that_fails_leaves_nothing_or_what_the_next_try_ends(
    backed: Backed, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = dict(store.objects)
    for step in range(STEPS_MAX):
        data = tmp_path / f"at-{step}" / "r1"
        store.objects = dict(objects)
        failed = False
        full = OSError(errno.ENOSPC, "No space left on device")
        with failing(monkeypatch, store, step, full) as steps:
            try:
                restore(backed.backup_store, data)
            except (OSError, CronError, ConsensusError, SnapshotError, StoreError):
                failed = True
            if steps() <= step:
                assert step > 40, "the steps are counted"
                return
        if failed and claimed(backed) == [1]:
            assert not data.exists() or (data / NOTE).exists() or not any(data.iterdir())
        if not failed:
            continue  # it was of no consequence
        expect_whole(backed, data, restore(backed.backup_store, data, draw="second"))
        shutil.rmtree(data.parent)
    pytest.fail("it never ends")


@pytest.mark.parametrize("point", ["restore-claimed", "restore-seeded"])
def test_the_named_points_are_between_the_claim_and_the_disk(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    reached: list[str] = []

    def hit(name: str) -> None:
        reached.append(name)
        if name == point:
            raise Died

    monkeypatch.setattr("cron.storage.restoring.hit", hit)
    monkeypatch.setattr("cron.storage.restore_target.hit", hit)
    data = tmp_path / "r1"
    with pytest.raises(Died):
        restore(backed.backup_store, data)
    assert set(reached) <= failpoints.NAMES.keys()
    assert claimed(backed) == [1, 2]
    assert not is_whole(data)
    assert bool(segments_in(data)) == (point == "restore-seeded")
    note = json.loads((data / NOTE).read_bytes())
    assert note == {"claim": "drawn", "cell": CELL, "lineage": 2, "replica": "r1"}
    monkeypatch.undo()
    expect_whole(backed, data, restore(backed.backup_store, data, draw="second"))


def test_who_goes_on_may_choose_another_snapshot(backed: Backed, tmp_path: Path) -> None:
    """The generation is begun; which snapshot it begins with is open until the disk is written."""
    data = tmp_path / "r1"
    first = backed.backup_store.manifests()[0][0]
    target = target_of(data)
    note = target.open("drawn")
    import msgspec

    target.keep(msgspec.structs.replace(note, generation=2))
    backed.rig.to(10_000)
    backed.snapshot()
    report = restore(backed.backup_store, data, at_ms=first.taken_ms)
    assert (report.index, report.new_generation) == (first.index, 2)


def test_a_restore_that_had_written_all_is_only_tidied_up(
    backed: Backed, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "r1"

    def die(self: Target) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Target, "clear", die)
        with pytest.raises(Died):
            restore(backed.backup_store, data)
    before = tree(data / "raft")
    report = restore(backed.backup_store, data, agree=lambda _: False)
    assert not report.is_done
    assert (data / NOTE).exists(), "who says no changes nothing"
    store.calls.clear()
    expect_whole(backed, data, restore(backed.backup_store, data))
    assert tree(data / "raft") == before
    assert "put" not in {operation for operation, _ in store.calls}


# --- a stranger's folder


@pytest.mark.parametrize(
    "name", ["raft/wal-0000000001", "history.sqlite", "segments/x.seg", "restore/x", "notes.txt"]
)
def test_a_strangers_file_is_refused_and_untouched(
    backed: Backed, tmp_path: Path, name: str
) -> None:
    data = tmp_path / "r1"
    (data / name).parent.mkdir(parents=True)
    (data / name).write_text("precious")
    before = tree(data)
    first = name.partition("/")[0]
    with pytest.raises(ConfigError, match=f"{data}: it is not empty: there is {first}") as caught:
        restore(backed.backup_store, data)
    assert caught.value.hint == "restore into an empty folder, or move this one away"
    assert tree(data) == before
    assert claimed(backed) == [1]


@pytest.mark.parametrize("generation", [0, 2])
def test_a_note_does_not_make_a_strangers_file_ours(
    backed: Backed, tmp_path: Path, generation: int
) -> None:
    data = tmp_path / "r1"
    data.mkdir()
    note = {"claim": "drawn", "cell": CELL, "lineage": generation, "replica": "r1"}
    (data / NOTE).write_text(json.dumps(note))
    (data / "history.sqlite").write_text("precious")
    before = tree(data)
    with pytest.raises(ConfigError, match=r"there is history\.sqlite"):
        restore(backed.backup_store, data)
    assert tree(data) == before


def test_a_log_is_a_strangers_where_no_generation_was_begun(backed: Backed, tmp_path: Path) -> None:
    """It would be taken for the one that was to be written, and called restored."""
    data = tmp_path / "r1"
    (data / "raft").mkdir(parents=True)
    (data / "raft" / "wal-0000000001").write_text("precious")
    (data / NOTE).write_text(json.dumps({"claim": "drawn", "cell": CELL, "lineage": 0}))
    before = tree(data)
    with pytest.raises(ConfigError, match="there is raft"):
        restore(backed.backup_store, data)
    assert tree(data) == before


@pytest.mark.parametrize(("cell", "replica"), [("other", "r1"), (CELL, "r2"), ("other", "r2")])
def test_what_a_restore_of_another_replica_left_is_not_gone_on_with(
    backed: Backed, tmp_path: Path, cell: str, replica: str
) -> None:
    data = tmp_path / "r1"
    data.mkdir()
    note = {"claim": "drawn", "cell": cell, "lineage": 2, "replica": replica}
    (data / NOTE).write_text(json.dumps(note))
    text = f"{data}: a restore of replica {replica} of cell {cell} died here"
    with pytest.raises(ConfigError, match=text):
        restore(backed.backup_store, data)
    assert claimed(backed) == [1]
    assert list(tree(data)) == [NOTE]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"claim": 1}', b'{"claim": "\xff"}'])
def test_a_note_that_cannot_be_read_is_told(backed: Backed, tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "r1"
    data.mkdir()
    (data / NOTE).write_bytes(content)
    with pytest.raises(ConfigError, match=str(data / NOTE)) as caught:
        restore(backed.backup_store, data)
    assert caught.value.hint == "remove it to begin anew, under another generation"
    assert (data / NOTE).read_bytes() == content


def test_a_file_in_the_place_of_the_folder_is_told(backed: Backed, tmp_path: Path) -> None:
    (tmp_path / "r1").write_text("precious")
    with pytest.raises(ConfigError, match=str(tmp_path / "r1")) as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert caught.value.hint == "name a folder that you may write"
    assert (tmp_path / "r1").read_text() == "precious"


def test_the_note_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut an empty note would stop every further try."""
    done: list[str] = []
    real_replace = os.replace

    def fsync(number: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{number}")).name)

    def replace(old: str, new: str) -> None:
        done.append(f"name {Path(new).name}")
        real_replace(old, new)

    target = target_of(tmp_path / "r1")
    note = target.open("drawn")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    target.keep(note)
    assert done == [f"sync {NOTE}.unfinished", f"name {NOTE}", "sync r1"]


def test_folders_that_are_made_are_synced_from_the_outside_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut may take the claim's identity with the folder, and leave the claim."""
    synced: list[str] = []

    def fsync(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    target_of(tmp_path / "a" / "b" / "r1").open("drawn")
    assert synced[:5] == [tmp_path.name, "a", "b", f"{NOTE}.unfinished", "r1"]


def test_folders_are_made_as_deep_as_need_be_and_only_those_are_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = target_of(tmp_path / "there" / "a" / "b")
    target.open("drawn")
    assert (tmp_path / "there" / "a" / "b" / NOTE).exists()
    target.leave()
    assert tree(tmp_path) == {"there": b""}


def test_what_somebody_else_put_there_meanwhile_stays(tmp_path: Path) -> None:
    target = target_of(tmp_path / "a" / "r1")
    target.open("drawn")
    (tmp_path / "a" / "r1" / "precious").write_text("x")
    target.leave()
    assert tree(tmp_path) == {"a": b"", "a/r1": b"", "a/r1/precious": b"x"}
