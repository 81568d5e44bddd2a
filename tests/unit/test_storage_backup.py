"""A leader's backups: what goes into object storage, in which order, and what faults of it do."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from cron.state import commands as c
from cron.storage import uploader
from cron.storage.uploader import REST_MAX_MS, SILENT_MS
from cron.storage.uploads import Outline
from snapshots.backup_store import BackupStore
from snapshots.disk import SnapshotFile
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_rig import CELL, keeping


async def test_segments_come_before_the_snapshot_that_names_them_and_its_manifest_last(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        history = rig.leader.state.history
        assert [one.is_stored for one in history.segments.values()] == [True]
        taken = history.taken
        assert (history.backup.index, history.backup.term) == (taken.index, taken.term)
        assert history.backup.taken_ms == taken.at_ms
        snapshot = f"snapshots/0001-{taken.term:016x}-{taken.index:016x}"
        assert rig.puts() == [
            "segments/0001-0000000001-runs.seg", f"{snapshot}.snap", f"{snapshot}.json",
        ]  # fmt: skip
        (manifest,) = rig.manifests()
        assert [one.name for one in manifest.segments] == ["0001-0000000001-runs.seg"]
        assert (manifest.replica, manifest.release, manifest.jobs) == ("r1", "0.1.0", 1)
        assert all(one.state.history.backup == history.backup for one in rig.replicas.values())


async def test_what_nobody_changed_is_not_stored_again(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        before = rig.puts()
        for _ in range(5):
            rig.later(3600)
            await rig.look()
        assert rig.puts() == before
        assert len(rig.leader.segment_files.files) == 1


async def test_a_change_that_came_alone_after_a_snapshot_gets_into_the_next(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch()
        await rig.look()
        first = rig.leader.state.history.backup.index
        await rig.leader.submit(c.Pause((), "holidays", 0, "anna"))
        changed = rig.leader.state.index
        await rig.look()
        assert rig.leader.state.history.backup.index == first, "the interval is not over"
        rig.later(60)
        await rig.look()
        assert rig.leader.state.history.backup.index > changed


async def test_launches_go_on_while_the_store_is_away_and_the_backlog_is_stored_after(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        stored, old = rig.leader.state.history.backup, rig.puts()
        rig.store.away = "connection refused"
        rig.store.calls.clear()
        for _ in range(60):
            await rig.launch(3)
            for _ in range(10):
                rig.later(4.7)
                await rig.look()
        history = rig.leader.state.history
        assert history.backup == stored
        assert history.seals == 61, "sealing does not wait for the store"
        assert len(rig.leader.segment_files.files) >= 60, "nor do snapshots"
        trouble = rig.leader.backup.trouble
        away_s = (rig.clock.ms - trouble.since_ms) // 1000
        assert 3590 <= away_s <= 3605
        assert trouble.text == "memory://test: connection refused"
        (_, first), *others = rig.store.calls
        assert first.endswith("0000000002-runs.seg")
        assert {operation for operation, _ in others} == {"list"}, "nothing large is tried"
        assert 60 <= len(others) <= 80, "once a minute, after the first few"

        rig.store.away = ""
        rig.store.calls.clear()
        rig.later(REST_MAX_MS / 1000)
        await rig.look()
        await rig.look()
        assert rig.leader.backup.trouble.text == ""
        history = rig.leader.state.history
        assert all(one.is_stored for one in history.segments.values())
        snapshots = [name for name in rig.puts() if name.endswith(".snap")]
        assert len(snapshots) <= 2, "the newest, and none of those before it"
        assert not set(old) & set(rig.puts())
        newest = rig.manifests()[0]
        assert newest.index == history.backup.index
        assert {one.name for one in newest.segments} == rig.leader.segment_files.segments()


async def test_what_was_stored_before_the_store_failed_is_not_stored_again(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:

        def fail(_operation: str, name: str) -> None:
            rig.store.away = "slow down" if "0000000002" in name else ""

        rig.store.hook = fail
        for number in (1, 2):
            await rig.launch(3)
            await rig.leader.submit(c.Seal(number))
        await rig.look()
        stored = [one.is_stored for one in rig.leader.state.history.segments.values()]
        assert stored == [True, False]
        rig.store.hook = lambda operation, name: None
        rig.store.away = ""
        before = len(rig.puts())
        await rig.look()
        again = [name for name in rig.puts()[before:] if name.endswith(".seg")]
        assert again == ["segments/0001-0000000002-runs.seg"]


async def test_what_a_leader_has_not_seen_may_be_a_change(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        leader = rig.leader
        await leader.submit(c.Pause((), "holidays", 0, "anna"))
        changed = leader.state.index
        leader.with_backup()  # as after a restart from a dump
        await leader.submit(c.BackedUp("memory://test"))
        rig.later(60)
        await rig.look()
        assert leader.state.history.backup.index > changed


async def test_a_store_that_refuses_is_told_with_the_way_out(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        rig.store.refused = "access denied"
        await rig.look()
        text = rig.leader.backup.trouble.text
        assert text.startswith("memory://test: access denied: check credentials")


async def test_a_store_that_hangs_holds_up_neither_seals_nor_snapshots_and_is_told_of(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        hangs, goes_on = threading.Event(), threading.Event()

        def hang(operation: str, name: str) -> None:
            if name.endswith(".seg"):
                hangs.set()
                goes_on.wait(60)

        rig.store.hook = hang
        await rig.launch(3)
        backup = rig.leader.backup
        await backup.look()
        await rig.until(hangs.is_set)
        began_ms = rig.clock.ms
        await rig.launch(3)
        rig.later(60)
        await backup.look()
        assert rig.leader.state.history.seals == 2
        assert len(rig.leader.segment_files.files) == 2
        assert rig.clock.ms - began_ms > SILENT_MS
        trouble = backup.trouble
        assert trouble.since_ms == began_ms
        assert trouble.text == "memory://test: no answer yet: stores segment 1 of 1"
        goes_on.set()
        await backup.finish_turn()
        assert backup.trouble.text == ""
        await rig.look()
        assert rig.leader.state.history.backup.index == rig.leader.state.history.taken.index


async def test_an_upload_that_hangs_is_named_within_ten_seconds_and_not_at_once(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        hangs, goes_on = threading.Event(), threading.Event()

        def hang(operation: str, name: str) -> None:
            hangs.set()
            goes_on.wait(60)

        rig.store.hook = hang
        backup = rig.leader.backup
        await backup.look()
        await rig.until(hangs.is_set)
        assert backup.trouble.text == ""
        rig.later(8)  # a snapshot is written, and noticed, within two more
        assert "no answer yet: looks whose place it is" in backup.trouble.text
        goes_on.set()
        await backup.finish_turn()
        assert backup.trouble.text == ""


async def test_a_failure_stays_told_until_the_store_has_answered(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        rig.store.away = "connection refused"
        rig.later(30)  # its place is looked at: nothing else is to be done
        await rig.look()
        assert rig.leader.backup.trouble.text
        for _ in range(3):
            rig.later(REST_MAX_MS / 1000)
            await rig.look()
            assert rig.leader.backup.trouble.text
        rig.store.away = ""
        rig.later(REST_MAX_MS / 1000)
        await rig.look()
        assert not rig.leader.backup.trouble.text


async def test_a_segment_that_is_not_on_this_disk_yet_holds_back_the_snapshot_and_no_other(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        rig.leader.segment_files.missing = {"0001-0000000001-runs.seg"}
        for _ in range(2):
            await rig.launch(3)
            await rig.look()
        assert rig.puts() == ["segments/0001-0000000002-runs.seg"]
        assert rig.manifests() == []
        rig.leader.segment_files.missing = set()
        await rig.look()
        assert len(rig.manifests()[0].segments) in (1, 2)
        assert all(one.is_stored for one in rig.leader.state.history.segments.values())


async def test_where_the_newest_snapshot_waits_the_one_before_it_is_stored(tmp_path: Path) -> None:
    """History that is sealed faster than it is stored would keep every snapshot waiting."""
    async with keeping(tmp_path) as rig:
        rig.store.away = "connection refused"
        for _ in range(3):
            await rig.launch(3)
            rig.later(60)
            await rig.look()
        first, second, third = reversed(rig.leader.segment_files.snapshots())
        rig.leader.segment_files.missing = {"0001-0000000003-runs.seg"}
        rig.store.away = ""
        rig.later(REST_MAX_MS / 1000)
        await rig.look()
        assert [one.index for one in rig.manifests()] == [second.header.index]
        assert rig.leader.state.history.backup.index == second.header.index
        rig.leader.segment_files.missing = set()
        await rig.look()
        assert [one.index for one in rig.manifests()] == [third.header.index, second.header.index]
        assert first.header.index < second.header.index, "and an older one is of no use any more"


async def test_what_somebody_deleted_from_the_store_is_stored_again(tmp_path: Path) -> None:
    """Before a snapshot says that it is there."""
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        newest = rig.manifests()[0].index
        deleted = [name for name in rig.store.objects if name.endswith(".seg")]
        for name in deleted:
            del rig.store.objects[name]
        await rig.launch(3)
        rig.later(60)
        await rig.look()
        assert rig.leader.state.history.backup.index == newest, "what is not there is not named"
        await rig.look()
        assert set(deleted) <= rig.store.objects.keys()
        assert rig.manifests()[0].index > newest
        assert all(one.is_stored for one in rig.leader.state.history.segments.values())


async def test_a_snapshot_is_read_once_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    outline_of = uploader.outline_of

    def counted(file: SnapshotFile) -> Outline:
        reads.append(file)
        return outline_of(file)

    monkeypatch.setattr(uploader, "outline_of", counted)
    async with keeping(tmp_path) as rig:
        rig.leader.segment_files.missing = {"0001-0000000001-runs.seg"}
        await rig.launch(3)
        for _ in range(5):
            await rig.look()
        assert len(reads) == 1


async def test_another_segment_under_the_same_name_is_told_and_not_overwritten(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        name = f"cells/{CELL}/segments/0001-0000000001-runs.seg"
        rig.store.objects[name] = b"of another cell"
        await rig.launch(3)
        await rig.look()
        text = rig.leader.backup.trouble.text
        assert text.startswith("0001-0000000001-runs.seg: memory://test has ")
        assert "two cells write to one prefix" in text, "the way out"
        assert rig.store.objects[name] == b"of another cell"
        assert rig.manifests() == []


async def test_without_a_store_the_archive_is_kept_on_the_disks_alone(tmp_path: Path) -> None:
    async with keeping(tmp_path, store="") as rig:
        await rig.launch(3)
        await rig.look()
        history = rig.leader.state.history
        assert (history.seals, len(rig.leader.segment_files.files)) == (1, 1)
        assert history.backup.store == ""
        assert rig.leader.backup.trouble.text == ""
        assert rig.store.calls == []


async def test_a_new_store_gets_everything_and_the_old_one_is_still_ours(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        rig.stores["memory://new"] = new = MemoryStore("memory://new")
        await rig.launch(3)
        await rig.look()
        claim = rig.leader.state.history.backup.claim
        leader = rig.leader
        leader.with_backup(msgspec.structs.replace(rig.settings, store="memory://new"))
        await rig.look()
        assert {name for name in new.objects if "/segments/" in name} == {
            name for name in rig.store.objects if "/segments/" in name
        }
        assert leader.state.history.backup.store == "memory://new"
        assert leader.state.history.backup.index == leader.state.history.taken.index
        assert leader.state.history.backup.claim == claim
        assert BackupStore(new, CELL).generations()[0].id == claim
        leader.with_backup()
        await rig.look()
        assert leader.backup.trouble.text == ""
        assert leader.state.history.backup.store == "memory://test"
