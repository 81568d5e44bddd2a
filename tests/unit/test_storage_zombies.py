"""A leader whose cell was restored elsewhere deletes nothing that the new life may need."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron.state import commands as c
from cron.storage.uploader import PRUNE_MS
from snapshots.manifest import Generation
from tests.unit.backup_rig import CELL, Rig, keeping


async def full(rig: Rig) -> None:
    """Five snapshots, of which three are to stay; and a segment that is still to be stored."""
    for _ in range(5):
        await rig.launch(3)
        rig.later(60)
        await rig.look()
    assert len(rig.manifests()) == 5
    await rig.launch(3)
    await rig.leader.submit(c.Seal(rig.leader.state.history.seals + 1))
    rig.later(PRUNE_MS / 1000)


def restore_at(rig: Rig, operation: str, part: str) -> None:
    """Somebody begins the next life just before the leader does this for the first time."""

    def claim(found: str, name: str) -> None:
        if found == operation and part in name:
            rig.store.hook = lambda operation, name: None
            rig.backup_store.claim_generation(Generation(cell=CELL, generation=2, id="restore"))

    rig.store.hook = claim


async def test_nothing_is_deleted_once_another_life_was_begun(tmp_path: Path) -> None:
    async with keeping(tmp_path, interval_ms=10**9) as rig:
        for _ in range(5):
            await rig.launch(3)
            await rig.leader.submit(c.SnapshotAt())
            await rig.look()
        before = rig.manifests()
        assert len(before) == 5
        await rig.launch(3)
        rig.later(PRUNE_MS / 1000)
        restore_at(rig, "put", ".seg")
        await rig.look()
        assert rig.manifests() == before, "it may be fetching the oldest of them just now"
        assert len(rig["r1"].superseded) == 1


async def test_a_pruning_that_wakes_up_late_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await full(rig)
        stored: set[str] = set()

        def meanwhile(operation: str, name: str) -> None:
            if operation != "delete":
                return
            # It has listed what there was; a day later another leader has stored more.
            rig.store.hook = lambda operation, name: None
            rig.later(2 * 86_400)
            for kind in ("segments/0001-0000000099-runs.seg", "lineages/0002.json"):
                rig.store.put(f"cells/{CELL}/{kind}", b"of another leader")
            stored.update(rig.store.objects)

        rig.store.hook = meanwhile
        await rig.look()
        gone = stored - rig.store.objects.keys()
        assert all("/snapshots/" in name for name in gone), gone
        assert len(rig.manifests()) == 3


async def test_a_pruning_that_wakes_up_in_another_life_deletes_no_segment(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await full(rig)
        left = f"cells/{CELL}/segments/0001-0000000077-runs.seg"
        rig.store.put(left, b"retired here, and in the snapshot that is being restored")
        rig.later(3 * 86_400)
        for operation in ("delete", "list"):
            restore_at(rig, operation, "/segments/" if operation == "list" else "/snapshots/")
        await rig.look()
        assert rig.backup_store.newest_generation() == 2
        assert left in rig.store.objects


async def test_a_manifest_that_cannot_be_read_is_told_when_it_holds_up_retention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with keeping(tmp_path) as rig:
        await full(rig)
        newest = max(name for name in rig.store.objects if name.endswith(".json"))
        rig.store.objects[newest] = rig.store.objects[newest][:-5]
        await rig.look()
        said = [line for line in capsys.readouterr().out.splitlines() if "manifest.damaged" in line]
        assert len(said) == 1
        assert newest in said[0]
