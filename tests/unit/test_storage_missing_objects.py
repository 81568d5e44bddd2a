"""Segments that cannot be stored hold back no backup for ever: State comes first."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import msgspec
import pytest

from cron.state.archive import History
from cron.storage.retention_planner import DAY_MS
from cron.storage.uploader import HELD_MS, PRUNE_MS
from snapshots.backup_store import BackupStore
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_rig import CELL, Replica, Rig, keeping

DAY_S = DAY_MS // 1000
FIRST = "0001-0000000001-runs.seg"
SECOND = "0001-0000000002-runs.seg"
NEW = "memory://new"


async def sealed(rig: Rig) -> None:
    """Another segment, and the snapshot that names it."""
    await rig.launch(3)
    rig.later(60)
    await rig.look()


def is_backed_up(history: History) -> bool:
    return history.backup.index == history.taken.index


async def moved(rig: Rig) -> tuple[Replica, BackupStore]:
    """The first segment is in the store alone when another store is configured."""
    await sealed(rig)
    rig.later(7 * DAY_S)
    await sealed(rig)
    assert rig.leader.segment_files.segment_path(FIRST) is None
    rig.stores[NEW] = store = MemoryStore(NEW)
    leader = rig.leader
    leader.with_backup(msgspec.structs.replace(rig.settings, store=NEW))
    await rig.look()
    return leader, BackupStore(store, CELL)


async def test_a_new_store_gets_snapshots_though_old_history_is_in_the_old_one_alone(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS) as rig:
        leader, backup_store = await moved(rig)
        history = leader.state.history
        assert history.backup.store == NEW
        assert is_backed_up(history), "nothing that could be lost waits for what is lost here"
        (manifest,), damaged = backup_store.manifests()
        assert not damaged
        assert [one.name for one in manifest.segments] == [SECOND], "it names what is there"
        assert FIRST in leader.backup.trouble.text
        assert NEW in leader.backup.trouble.text
        assert leader.backup.trouble.since_ms > 0
        await sealed(rig)
        assert is_backed_up(history)


async def test_what_a_person_copies_into_the_new_store_is_found_there(tmp_path: Path) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS) as rig:
        leader, backup_store = await moved(rig)
        name = f"cells/{CELL}/segments/{FIRST}"
        backup_store.store.put(name, rig.store.objects[name])
        rig.later(PRUNE_MS / 1000)
        await sealed(rig)
        assert all(one.is_stored for one in leader.state.history.segments.values())
        await sealed(rig)
        assert leader.backup.trouble.text == ""
        newest = backup_store.manifests()[0][0]
        assert [one.name for one in newest.segments][:2] == [FIRST, SECOND]


async def test_what_is_damaged_there_is_not_taken_for_it(tmp_path: Path) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS) as rig:
        leader, backup_store = await moved(rig)
        name = f"cells/{CELL}/segments/{FIRST}"
        backup_store.store.put(name, rig.store.objects[name][:-1])
        rig.later(PRUNE_MS / 1000)
        await sealed(rig)
        assert not leader.state.history.segments[(1, 1, 0)].is_stored
        assert is_backed_up(leader.state.history)
        assert FIRST in leader.backup.trouble.text


async def test_no_room_to_read_a_copy_holds_up_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS) as rig:
        leader, backup_store = await moved(rig)
        name = f"cells/{CELL}/segments/{FIRST}"
        backup_store.store.put(name, rig.store.objects[name])

        def refuse(*_: object, **__: object) -> str:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
        rig.later(PRUNE_MS / 1000)
        await sealed(rig)
        assert is_backed_up(leader.state.history)
        assert FIRST in leader.backup.trouble.text
        monkeypatch.undo()
        rig.later(PRUNE_MS / 1000)
        await sealed(rig)
        assert leader.state.history.segments[(1, 1, 0)].is_stored


async def test_what_nobody_has_any_more_goes_when_its_time_is_over(tmp_path: Path) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS, keep_ms=30 * DAY_MS) as rig:
        leader, _ = await moved(rig)
        rig.later(31 * DAY_S)
        await sealed(rig)
        assert (1, 1, 0) not in leader.state.history.segments
        await sealed(rig)
        assert leader.backup.trouble.text == ""


async def test_a_segment_that_is_lost_on_all_disks_holds_snapshots_back_for_ten_minutes(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        rig.leader.segment_files.missing = {FIRST}
        await sealed(rig)
        await sealed(rig)
        assert rig.manifests() == [], "it may be on its way from a peer"
        assert rig.leader.backup.trouble.text == ""
        rig.later(HELD_MS / 1000)
        await rig.look()
        assert is_backed_up(rig.leader.state.history)
        assert [one.name for one in rig.manifests()[0].segments] == [SECOND]
        assert FIRST in rig.leader.backup.trouble.text
        rig.leader.segment_files.missing = set()
        await sealed(rig)
        assert rig.leader.backup.trouble.text == ""
        assert [one.name for one in rig.manifests()[0].segments][:2] == [FIRST, SECOND]


async def test_a_new_leader_waits_for_its_own_peers_before_it_goes_on_without(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        for one in rig.replicas.values():
            one.segment_files.missing = {FIRST}
        await sealed(rig)
        rig.later(HELD_MS / 1000 - 60)
        await rig.elect("r2")
        await sealed(rig)
        await sealed(rig)
        assert rig.manifests() == []
        rig.later(HELD_MS / 1000)
        await rig.look()
        assert is_backed_up(rig.leader.state.history)


async def test_damage_under_the_name_of_a_segment_holds_up_no_other_and_no_snapshot_for_ever(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        name = f"cells/{CELL}/segments/{FIRST}"
        rig.store.objects[name] = b"half of it"
        await sealed(rig)
        await sealed(rig)
        history = rig.leader.state.history
        assert {key[1]: one.is_stored for key, one in history.segments.items()} == {
            1: False, 2: True,
        }  # fmt: skip
        assert rig.manifests() == []
        assert FIRST in rig.leader.backup.trouble.text, "at once: only a person can help"
        since_ms = rig.leader.backup.trouble.since_ms
        rig.later(HELD_MS / 1000)
        await rig.look()
        assert is_backed_up(history)
        assert [one.name for one in rig.manifests()[0].segments] == [SECOND]
        trouble = rig.leader.backup.trouble
        assert FIRST in trouble.text
        assert trouble.since_ms == since_ms
        assert rig.store.objects[name] == b"half of it", "it is not ours to remove"
        del rig.store.objects[name]
        rig.later(60)
        await sealed(rig)
        await sealed(rig)
        assert rig.leader.backup.trouble.text == ""
        assert [one.name for one in rig.manifests()[0].segments][:2] == [FIRST, SECOND]
