"""Saving: what a leader answers who saves, lists and verifies snapshots, and asks for segments."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cron.api.snapshots import SegmentRequest, SnapshotView
from cron.errors import Conflict, InvalidInput, NotFound, StorageAway, Unavailable
from cron.service import snapshots
from cron.service.snapshots import Saving
from cron.state import commands as c
from cron.storage.folders import name_of
from snapshots.errors import StoreAway
from snapshots.layout import manifest_object, segment_object, snapshot_object
from snapshots.manifest import Manifest
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_rig import CELL, URL, Rig, keeping


def saving_of(rig: Rig, *, has_store: bool = True) -> Saving:
    one = rig["r1"]
    backup_store = rig.backup_store if has_store else None
    return Saving(one.leader, one.applier, one.segment_files, backup_store, rig.folder / "r1")


async def stored(rig: Rig) -> Manifest:
    """Let a snapshot be taken and stored, with a segment; return its manifest."""
    await rig.launch(3)
    await rig.look()
    rig.later(100)
    await rig["r1"].leader.append(c.SnapshotAt())
    for _ in range(3):
        await rig.look()
    return rig.manifests()[0]


async def verified(one: Saving, name: str = "", *, is_remote: bool = False) -> list[SnapshotView]:
    return [view async for view in one.verify(name, is_remote=is_remote)]


def objects_of(manifest: Manifest) -> tuple[str, str]:
    at = (CELL, manifest.generation, manifest.term, manifest.index)
    return snapshot_object(*at), manifest_object(*at)


# --- save and list


async def test_a_save_is_taken_by_every_replica_and_says_where(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        report = await saving_of(rig).save()
        state = rig["r1"].state
        assert (report.index, report.term) == (state.index, state.term)
        assert (report.generation, report.store) == (state.epoch.generation, URL)
        for name in ("r1", "r2", "r3"):
            replica = rig[name]
            await rig.until(lambda replica=replica: replica.segment_files.snapshots())
            assert replica.segment_files.snapshots()[0].header.index == report.index
        again = await saving_of(rig, has_store=False).save()
        assert again.index > report.index
        assert again.store == ""


async def test_what_is_here_and_what_is_stored_is_listed_newest_first(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        manifest = await stored(rig)
        await saving_of(rig).save()
        report = await saving_of(rig).list(is_remote=False)
        assert report.store == URL
        assert report.problems == []
        places = [(view.place, view.index) for view in report.snapshots]
        assert places == sorted(places, key=lambda one: one[1], reverse=True)
        local = [view for view in report.snapshots if view.place == "local"]
        remote = [view for view in report.snapshots if view.place == "remote"]
        assert [view.name for view in local] == [
            file.path.name for file in rig["r1"].segment_files.snapshots()
        ]
        newest = remote[0]
        assert (newest.index, newest.size) == (manifest.index, manifest.file_bytes)
        assert newest.segments == len(manifest.segments) > 0
        same = next(view for view in local if view.index == newest.index)
        assert (same.digest, same.taken_ms, same.content_size, same.generation, same.term) == (
            newest.digest, newest.taken_ms, newest.content_size, newest.generation, newest.term,
        )  # fmt: skip
        only = await saving_of(rig).list(is_remote=True)
        assert only.snapshots == remote


async def test_manifests_that_cannot_be_read_are_problems_of_a_list(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        name = objects_of(await stored(rig))[1]
        rig.store.objects[name] = b"{}"
        report = await saving_of(rig).list(is_remote=True)
        assert all(name != view.name for view in report.snapshots)
        (problem,) = report.problems
        assert problem.startswith(name)


async def test_without_a_store_there_is_only_what_is_here(tmp_path: Path) -> None:
    async with keeping(tmp_path, store="") as rig:
        one = saving_of(rig, has_store=False)
        await one.save()
        report = await one.list(is_remote=False)
        assert [view.place for view in report.snapshots] == ["local"]
        assert report.store == ""
        with pytest.raises(InvalidInput, match="no object storage is configured"):
            await one.list(is_remote=True)


async def test_what_is_here_is_listed_though_the_store_is_away(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await saving_of(rig).save()
        rig.store.away = "in its own words"
        report = await saving_of(rig).list(is_remote=False)
        assert [view.place for view in report.snapshots] == ["local"]
        (problem,) = report.problems
        assert "in its own words" in problem
        rig.store.away = ""


async def test_a_store_that_hangs_is_waited_for_no_longer_than_a_client_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LIST_S", 0.05)
    async with keeping(tmp_path) as rig:
        one, gate = saving_of(rig), threading.Event()
        await one.save()
        rig.store.hook = lambda _operation, _name: gate.wait(60)
        report = await one.list(is_remote=False)
        assert [view.place for view in report.snapshots] == ["local"]
        assert "no answer within 0.05 s" in report.problems[0]
        for ask in (one.list(is_remote=True), verified(one)):
            with pytest.raises(StorageAway, match="no answer within"):
                await ask
        gate.set()
        one.close()


@pytest.mark.parametrize(("field", "kind"), [("away", StorageAway), ("refused", Conflict)])
async def test_a_store_that_does_not_answer_is_told(
    tmp_path: Path, field: str, kind: type[Exception]
) -> None:
    async with keeping(tmp_path) as rig:
        setattr(rig.store, field, "in its own words")
        for ask in (saving_of(rig).list(is_remote=True), verified(saving_of(rig))):
            with pytest.raises(kind, match="in its own words") as caught:
                await ask
            assert caught.value.hint
        setattr(rig.store, field, "")


# --- verify


async def test_all_is_read_back_and_one_by_its_name(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await stored(rig)
        one = saving_of(rig)
        everything = await one.list(is_remote=False)
        views = await verified(one)
        assert {view.state for view in views} == {"verified"}
        assert {view.name for view in views} == {view.name for view in everything.snapshots}
        assert {view.place for view in await verified(one, is_remote=True)} == {"remote"}
        for wanted in everything.snapshots:
            (found,) = await verified(one, wanted.name)
            assert (found.name, found.place) == (wanted.name, wanted.place)
        with pytest.raises(NotFound, match="there is no snapshot x"):
            await verified(one, "x")
        assert not list((rig.folder / "r1").glob("verify-*"))


@pytest.mark.parametrize("how", ["bytes", "state"])
async def test_a_damaged_snapshot_here_is_found(tmp_path: Path, how: str) -> None:
    async with keeping(tmp_path) as rig:
        one = saving_of(rig)
        await one.save()
        (file, *_) = rig["r1"].segment_files.snapshots()
        if how == "bytes":
            file.path.write_bytes(file.path.read_bytes()[:-1])
        else:
            _write_other_state(file.path, file.header)
        (view, *_) = await verified(one, file.path.name)
        assert view.state == "damaged"
        assert view.problem


def _write_other_state(path: Path, header: Any) -> None:
    """A whole file, of which every sum is right, with what is no State in it."""
    from snapshots.disk import write_snapshot

    write_snapshot(path.parent, header, [b"\0\0\0\1\x90"])


@pytest.mark.parametrize("how", ["cut", "gone", "manifest", "segment"])
async def test_a_damaged_snapshot_in_the_store_is_found(tmp_path: Path, how: str) -> None:
    async with keeping(tmp_path) as rig:
        manifest = await stored(rig)
        snapshot, described = objects_of(manifest)
        objects = rig.store.objects
        if how == "cut":
            objects[snapshot] = objects[snapshot][:-1]
        elif how == "gone":
            del objects[snapshot]
        elif how == "manifest":
            objects[described] = b"{}"
        else:
            del objects[segment_object(CELL, manifest.segments[0].name)]
        views = await verified(saving_of(rig), is_remote=True)
        damaged = [view for view in views if view.state == "damaged"]
        assert manifest.index in {view.index for view in damaged}
        assert all(view.problem for view in damaged)
        name = snapshot.rpartition("/")[2]
        assert [view.state for view in await verified(saving_of(rig), name)] == ["damaged"]


async def test_what_is_deleted_from_the_store_meanwhile_is_no_damage(tmp_path: Path) -> None:
    """Reading all may take minutes, in which snapshots come and go."""
    async with keeping(tmp_path) as rig:
        manifest = await stored(rig)
        names = objects_of(manifest)

        def delete(operation: str, name: str) -> None:
            if operation == "get" and name == names[0]:
                for each in names:
                    rig.store.objects.pop(each, None)

        rig.store.hook = delete
        views = await verified(saving_of(rig), is_remote=True)
        rig.store.hook = lambda operation, name: None
        assert manifest.index not in {view.index for view in views}
        assert {view.state for view in views} <= {"verified"}


async def test_what_is_deleted_from_the_disk_meanwhile_is_no_damage(tmp_path: Path) -> None:
    async with keeping(tmp_path, store="") as rig:
        one, segment_files = saving_of(rig, has_store=False), rig["r1"].segment_files
        for _ in range(3):
            rig.later(1)
            await one.save()
        newest, second, gone = segment_files.files
        views = []
        async for view in one.verify("", is_remote=False):
            views.append((view.name, view.state))
            if gone in segment_files.files:
                segment_files.files = [newest, second]
                gone.path.unlink()
                second.path.unlink()
        assert views == [(newest.path.name, "verified"), (second.path.name, "damaged")], (
            "what is gone and still counted on is damage"
        )


async def test_a_store_that_goes_away_and_a_full_disk_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(tmp_path) as rig:
        await stored(rig)
        one = saving_of(rig)
        for error, words in (
            (StoreAway(URL, "connection reset"), "connection reset"),
            (OSError(28, "No space left on device", "/x"), "/x: No space left on device"),
        ):

            def fail(*_: Any, error: Exception = error, **__: Any) -> int:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(MemoryStore, "get_file", fail)
                with pytest.raises(Unavailable, match=words) as caught:
                    await verified(one, is_remote=True)
            assert caught.value.hint
            assert not list((rig.folder / "r1").glob("verify-*"))


async def test_what_a_killed_leader_had_fetched_goes_at_the_next_start(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        data = rig.folder / "r1"
        for name in ("verify-abc", "archive-abc", "segments"):
            (data / name).mkdir(exist_ok=True)
            (data / name / "half").write_text("x")
        saving_of(rig)
        assert not (data / "verify-abc").exists()
        assert not (data / "archive-abc").exists()
        assert (data / "segments" / "half").exists()


# --- segments, for other replicas


async def test_a_segment_is_given_in_pieces(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        (record, *_) = rig["r1"].state.history.segments.values()
        path = rig["r1"].segment_files.segment_path(name_of(record))
        assert path is not None
        content = path.read_bytes()
        one = saving_of(rig)
        pieces = [
            await one.segment(SegmentRequest(name=path.name, offset=offset, limit=50))
            for offset in range(0, len(content) + 50, 50)
        ]
        assert b"".join(piece.content for piece in pieces) == content
        assert {piece.size for piece in pieces} == {len(content)}


async def test_a_segment_that_is_not_here_is_not_found(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        (record, *_) = rig["r1"].state.history.segments.values()
        one, name = saving_of(rig), name_of(record)
        with pytest.raises(NotFound, match=r"0001-0000000009-runs\.seg is not on this disk"):
            await one.segment(SegmentRequest(name="0001-0000000009-runs.seg"))
        real = rig["r1"].segment_files.segment_path

        def removed(wanted: str) -> Path | None:
            path = real(wanted)
            if path is not None:
                path.unlink()
            return path

        rig["r1"].segment_files.segment_path = removed  # type: ignore[method-assign]
        with pytest.raises(NotFound, match=f"{name} is not on this disk any more"):
            await one.segment(SegmentRequest(name=name))
