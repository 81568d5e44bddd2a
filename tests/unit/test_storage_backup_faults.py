"""Backups while leaders die, change, and are superseded: every step may be the last."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cron.endings import SUPERSEDED, exit_code
from cron.errors import Superseded
from cron.state import commands as c
from cron.state.state import Restored
from cron.storage.uploader import WATCH_MS
from cron.storage.uploads import PlaceTaken, Uploads
from snapshots import layout
from snapshots.manifest import Generation
from tests.fakes.memory_log import Loss
from tests.unit.backup_rig import CELL, Replica, Rig, keeping


class Crash(BaseException):
    """The leader is killed here."""


def crash_at(rig: Rig, number: int) -> None:
    """Kill the leader before the operation of this number, from now on."""
    left = [number]

    def count(_operation: str, _name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    rig.store.hook = count


def is_complete(rig: Rig) -> bool:
    history = rig.leader.state.history
    return history.backup.index == history.taken.index and all(
        one.is_stored for one in history.segments.values()
    )


async def test_a_leader_killed_at_any_operation_of_the_store_leaves_what_the_next_can_go_on_from(
    tmp_path: Path,
) -> None:
    number, is_over = 0, False
    while not is_over:
        async with keeping(tmp_path / str(number)) as rig:
            await rig.launch(3)
            await rig.look()
            restorable = rig.manifests()[0].index
            await rig.launch(3)
            await rig.launch(3)
            rig.later(60)
            crash_at(rig, number)
            try:
                await rig.look()
                is_over = True
            except Crash:
                pass
            rig.store.hook = lambda operation, name: None
            assert rig.manifests()[0].index >= restorable, "what was safe stays safe"
            await rig.elect("r2")
            await rig.look()
            await rig.look()
            assert is_complete(rig), f"killed at operation {number}"
            assert rig.manifests()[0].index == rig.leader.state.history.taken.index
        number += 1
    assert number > 8


@pytest.mark.parametrize("loss", ["committed", "dropped"])
async def test_an_entry_whose_outcome_is_unknown_does_no_harm(tmp_path: Path, loss: Loss) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        for _ in ("what is due", "the claim", "segments", "the snapshot"):
            rig.cell.lose_next(loss)
            await rig.leader.look()
            # The term ends with an append that is lost, and begins again after a rest.
            await rig.until(lambda: any(one.leader.epoch for one in rig.replicas.values()))
            rig.later(1)
        for _ in range(3):
            await rig.look()
        assert is_complete(rig)
        assert rig.manifests()


async def test_a_leader_deposed_during_an_upload_stops_there_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        for number in (2, 3):
            await rig.launch(3)
            await rig.leader.submit(c.Seal(number))
        waits, goes_on = threading.Event(), threading.Event()

        def wait(_operation: str, name: str) -> None:
            if name.endswith(".seg") and not waits.is_set():
                waits.set()
                goes_on.wait(60)

        rig.store.hook = wait
        old = rig.leader
        rig.later(60)
        await old.backup.look()
        await rig.until(waits.is_set)
        await rig.elect("r2")
        await rig.look()
        assert is_complete(rig)
        before = dict(rig.store.objects)
        rig.store.calls.clear()
        goes_on.set()
        await old.backup.finish_turn()
        assert old.backup.trouble.text == ""
        assert rig.store.objects == before, "the same bytes, whoever brings them"
        await old.look()
        assert rig.puts() == []
        touched = {name for _, name in rig.store.calls}
        assert touched <= {f"cells/{CELL}/segments/0001-0000000002-runs.seg"}, "what was under way"


async def test_a_segment_that_is_damaged_on_this_disk_is_not_stored_and_comes_from_a_peer(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        name = "0001-0000000001-runs.seg"
        segment_files = rig.leader.segment_files
        await rig.launch(3)
        await rig.leader.submit(c.Seal(1))
        path = segment_files.folders.segments / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        await rig.look()
        assert name in rig.leader.backup.trouble.text
        assert name not in rig.backup_store.segments()
        assert segment_files.segment_path(name) is None, "so that it is fetched again"
        await rig.launch(3)
        rig.later(60)
        await rig.look()
        assert list(rig.backup_store.segments()) == ["0001-0000000002-runs.seg"], (
            "it holds up no other"
        )
        path.write_bytes(whole)
        await rig.look()
        assert is_complete(rig)
        assert name in rig.backup_store.segments()


async def test_what_two_leaders_store_is_the_same_but_for_who_says_so(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        first = dict(rig.store.objects)
        manifest = rig.manifests()[0]
        rig.store.objects.clear()
        two = await rig.elect("r2")
        state = two.state.history
        # As if its entries had been lost with the leader: it knows of nothing that is stored.
        rig.stores["memory://test"] = rig.store
        await two.submit(c.BackedUp("memory://elsewhere"))
        await rig.look()
        assert state.backup.index == manifest.index
        for name, content in first.items():
            if not name.endswith(".json"):
                assert rig.store.objects[name] == content, name
        again = {one.index: one for one in rig.manifests()}[manifest.index]
        assert (again.checksum, again.segments) == (manifest.checksum, manifest.segments)


# ---- whose place it is


async def restored_elsewhere(rig: Rig) -> None:
    await rig.launch(3)
    await rig.look()
    rig.backup_store.claim_generation(
        Generation(cell=CELL, generation=2, id="restore", by="ada", host="h")
    )
    rig.store.calls.clear()


def told(one: Replica) -> Superseded:
    (error,) = one.superseded
    assert isinstance(error, Superseded)
    return error


async def test_a_cell_that_was_restored_elsewhere_ends_within_half_a_minute(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await restored_elsewhere(rig)
        rig.later(WATCH_MS / 1000)
        await rig.look()
        error = told(rig["r1"])
        assert str(error) == (
            "cell prod was restored elsewhere: memory://test knows generation 2, this one is 1"
        )
        assert exit_code(error, is_start=False) == SUPERSEDED
        for _ in range(3):
            rig.later(60)
            await rig.look()
        assert len(rig["r1"].superseded) == 1
        assert rig.puts() == []


async def test_it_ends_before_it_stores_another_snapshot(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        rig.later(60)
        await rig.look()
        before = rig.manifests()

        def claim(_operation: str, name: str) -> None:
            if name.endswith(".seg"):  # a restore that comes while segments are uploaded
                rig.store.hook = lambda operation, name: None
                rig.backup_store.claim_generation(Generation(cell=CELL, generation=2, id="restore"))

        rig.store.hook = claim
        await rig.launch(3)
        rig.later(60)
        await rig.look()
        assert told(rig["r1"])
        assert rig.manifests() == before


@pytest.mark.parametrize("name", ["r2", "r1"])
async def test_the_next_leader_finds_out_at_once(tmp_path: Path, name: str) -> None:
    async with keeping(tmp_path) as rig:
        await restored_elsewhere(rig)
        await rig.elect("r3")
        await rig.elect(name)
        await rig.look()
        assert told(rig[name])


async def test_a_life_that_is_over_claims_nothing(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        newer = Generation(cell=CELL, generation=2, id="restore")
        rig.backup_store.claim_generation(newer)
        ours = Uploads(rig.backup_store, "", rig.policy, lambda: "never drawn", "r1", "0.1.0")
        assert ours.claim(1, "ours") == 2
        assert rig.backup_store.generations() == [newer]
        assert ours.claim(2, "restore") == 2, "of its own the cell is sure"
        assert ours.claim(3, "") == 2, "who has no claim only looks"
        with pytest.raises(PlaceTaken):
            ours.claim(2, "ours")


async def test_a_place_that_is_another_cells_is_told_and_nothing_goes_there(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        rig.backup_store.claim_generation(
            Generation(cell=CELL, generation=1, id="another", by="x", host="y")
        )
        await rig.launch(3)
        for _ in range(2):
            await rig.look()
            rig.later(60)
        assert rig.leader.backup.trouble.text == (
            "cells/prod: it belongs to another cell in memory://test: "
            "give this cell another prefix in the store, or another cell name"
        )
        assert rig.puts() == []
        assert rig.leader.state.history.backup.index == 0
        assert rig.leader.superseded == []


async def test_a_marker_that_is_damaged_is_told_and_nothing_goes_there(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        rig.store.objects[layout.generation_object(CELL, 1)] = b"{"
        await rig.launch(3)
        await rig.look()
        assert "lineages/0001.json: it cannot be read" in rig.leader.backup.trouble.text
        assert rig.puts() == []


async def test_a_store_without_conditions_takes_the_claim_once(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        rig.store.conditions = False
        await rig.launch(3)
        await rig.look()
        (marker,) = rig.backup_store.generations()
        assert marker.id == rig.leader.state.history.backup.claim
        await rig.elect("r2")
        await rig.look()
        assert rig.backup_store.generations() == [marker]
        assert rig.manifests()


async def test_a_cell_that_finds_out_what_ran_stores_nothing_but_hears_of_a_newer_life(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await rig.launch(3)
        await rig.look()
        await rig.launch(3)
        await rig.leader.submit(c.Seal(2), c.SnapshotAt())
        state = rig.leader.state
        state.restored = Restored(1, 0, 0, 0)
        assert state.is_resolving
        before = rig.puts()
        rig.later(600)
        await rig.look()
        assert rig.puts() == before
        assert rig.leader.superseded == []
        rig.backup_store.claim_generation(Generation(cell=CELL, generation=2, id="restore"))
        rig.later(WATCH_MS / 1000)
        await rig.look()
        assert told(rig.leader)
