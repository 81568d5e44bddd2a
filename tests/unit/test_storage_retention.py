"""Retention as a leader does it: on the disks, in object storage, and what executors remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cron.errors import Unavailable
from cron.leader.dispatch import Dispatcher
from cron.leader.inbox import Inbox
from cron.state import commands as c
from cron.state.archive import Backup, SegmentRecord
from cron.state.state import Restored
from cron.storage.backup import COUNT_MS
from cron.storage.retention_planner import DAY_MS
from cron.storage.uploader import PRUNE_MS
from launcher.pool.lease import LeaseTimes
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_rig import Rig, keeping
from tests.unit.state_rig import StateRig, with_job

DAY_S = DAY_MS // 1000
FIRST = "0001-0000000001-runs.seg"
SECOND = "0001-0000000002-runs.seg"


def stored(rig: Rig) -> set[str]:
    return set(rig.backup_store.segments())


async def sealed(rig: Rig) -> None:
    """Another segment, and the snapshot that names it."""
    await rig.launch(3)
    rig.later(60)
    await rig.look()


async def test_old_segments_leave_the_disks_and_stay_in_the_store(tmp_path: Path) -> None:
    async with keeping(tmp_path, local_ms=7 * DAY_MS) as rig:
        await sealed(rig)
        rig.later(7 * DAY_S)
        await sealed(rig)
        assert {one.segment_files.segment_path(FIRST) for one in rig.replicas.values()} == {None}
        assert stored(rig) == {FIRST, SECOND}
        assert len(rig.manifests()[0].segments) == 2
        assert rig["r2"].segment_files.segments() == {SECOND}


async def test_a_segment_leaves_the_store_with_the_last_snapshot_that_names_it(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path, keep_ms=30 * DAY_MS) as rig:
        await sealed(rig)
        rig.later(31 * DAY_S)
        for number in range(2, 8):
            await sealed(rig)
            rig.later(DAY_S)
            await rig.look()
            named = {one.name for manifest in rig.manifests() for one in manifest.segments}
            assert named <= stored(rig), "what a snapshot needs is never deleted"
            assert (FIRST in stored(rig)) == (FIRST in named)
            assert rig.leader.segment_files.segment_path(FIRST) is None
            assert f"0001-{number:010d}-runs.seg" in stored(rig)
        assert len(rig.manifests()) == 3, "the policy of this rig"
        assert FIRST not in stored(rig)


async def test_what_is_let_go_between_a_snapshot_and_its_upload_stays_named_while_it_is_there(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        await sealed(rig)
        leader = rig.leader
        await rig.launch(3)
        await leader.submit(c.Seal(2), c.SnapshotAt())
        await leader.submit(c.Retire((), ((1, 1, 0),)))
        await rig.look()
        newest = rig.manifests()[0]
        assert newest.index == leader.state.history.taken.index
        assert {one.name for one in newest.segments} == {FIRST, SECOND}


async def test_a_segment_that_was_let_go_before_it_was_ever_stored_holds_nothing_up(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path) as rig:
        leader = rig.leader
        await rig.launch(3)
        await leader.submit(c.Seal(1), c.SnapshotAt())
        await leader.submit(c.Retire((), ((1, 1, 0),)))
        await rig.look()
        assert rig.manifests()[0].segments == []
        assert leader.state.history.backup.index == leader.state.history.taken.index


async def test_the_store_is_pruned_now_and_then_and_again_after_a_failure(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        for _ in range(5):
            await sealed(rig)
        assert len(rig.manifests()) == 5, "not before ten minutes are over"
        rig.later(PRUNE_MS / 1000)

        def refuse(operation: str, _name: str) -> None:
            rig.store.refused = "no right to delete" if operation == "delete" else ""

        rig.store.hook = refuse
        await rig.look()
        assert "no right to delete" in rig.leader.backup.trouble.text
        assert rig.leader.uploader is not None
        assert rig.leader.uploader.has_place, "what is stored there does not wait for deletes"
        rig.store.hook = lambda operation, name: None
        rig.store.refused = ""
        rig.later(1)
        await rig.look()
        assert rig.leader.backup.trouble.text == ""
        assert rig.manifests()[0].index == rig.leader.state.history.backup.index
        assert len(rig.manifests()) == 3


# ---- by count


async def test_segments_are_counted_in_turn_and_go_once_they_are_outlived(tmp_path: Path) -> None:
    async with keeping(tmp_path, keep_runs=100) as rig:
        leader = rig.leader
        for _ in range(3):
            await rig.launch(3)
            await rig.look()
        leader.history.asked.clear()
        for _ in range(4):
            rig.later(COUNT_MS / 1000)
            await rig.look()
            await rig.look()
        numbers = [record.number for record in leader.history.asked]
        start = numbers[0]
        assert numbers == [(start - 1 + n) % 3 + 1 for n in range(4)]
        assert len(leader.state.history.segments) == 3
        leader.history.is_outlived = True
        rig.later(COUNT_MS / 1000)
        await rig.look()
        assert len(leader.state.history.segments) == 2


async def test_a_history_that_does_not_answer_holds_nothing_up(tmp_path: Path) -> None:
    async with keeping(tmp_path, keep_runs=100) as rig:

        async def away(record: SegmentRecord, newer: int) -> bool:
            raise Unavailable(f"history of {record.number} cannot be read ({newer})")

        rig.leader.history.outlived = away  # type: ignore[method-assign]
        for _ in range(3):
            rig.later(COUNT_MS / 1000)
            await sealed(rig)
        assert rig.leader.state.history.backup.index == rig.leader.state.history.taken.index
        assert len(rig.leader.state.history.segments) == 3


# ---- what executors may forget (rule R4)


class Pool:
    """A pool with one executor, and the floors that it was told."""

    lease = LeaseTimes()

    def __init__(self) -> None:
        self.floors: list[int] = []

    def sessions(self) -> list[Any]:
        return [type("Session", (), {"executor": "e1", "ledger": "l1"})]

    def order(self, executor: str, ledger: str, watermark: int) -> None:
        assert (executor, ledger) == ("e1", "l1")
        self.floors.append(watermark)


def floor_of(rig: StateRig, *, is_backed_up: bool) -> list[int]:
    pool: Any = Pool()
    inbox = Inbox(
        pool,
        Dispatcher(pool),
        wake=lambda: None,
        beat=lambda: None,
        refused=lambda executor, ledger: None,
        mono_ms=lambda: 0,
        is_backed_up=is_backed_up,
    )
    inbox.raise_watermarks(rig.state)
    floors: list[int] = pool.floors
    return floors


@pytest.fixture
def rig() -> StateRig:
    """A cell in which one launch is open, and others are over."""
    rig = with_job()
    for second in (60, 120):
        rig.to(second)
        rig.account(second)
    rig.begin(60)
    rig.begin(120)
    rig.launched(60)
    rig.finished(60)
    return rig


def test_without_a_store_executors_forget_what_is_below_the_oldest_that_may_not_have_started(
    rig: StateRig,
) -> None:
    oldest = rig.row(120).begun_index
    assert floor_of(rig, is_backed_up=False) == [oldest - 1]
    rig.launched(120)  # its row stays until its end is acknowledged
    assert floor_of(rig, is_backed_up=False) == [rig.state.index]
    rig.finished(120)
    assert floor_of(rig, is_backed_up=False) == [rig.state.index]


def test_with_a_store_they_remember_what_is_above_the_newest_snapshot_there(rig: StateRig) -> None:
    assert floor_of(rig, is_backed_up=True) == [0], "a restore would have to ask about all"
    rig.state.history.backup = Backup("memory://test", 1, 1, 3)
    assert floor_of(rig, is_backed_up=True) == [3]
    oldest = rig.row(120).begun_index
    rig.state.history.backup = Backup("memory://test", 1, 1, oldest + 1)
    assert floor_of(rig, is_backed_up=True) == [oldest - 1]


def test_a_cell_that_finds_out_what_ran_lets_nobody_forget(rig: StateRig) -> None:
    rig.state.restored = Restored(1, 0, 0, 0)
    assert floor_of(rig, is_backed_up=False) == []


async def test_another_store_begins_with_nothing_and_so_do_floors(tmp_path: Path) -> None:
    async with keeping(tmp_path) as rig:
        await sealed(rig)
        assert rig.leader.state.history.backup.index > 0
        rig.stores["memory://new"] = MemoryStore("memory://new")
        await rig.leader.submit(c.BackedUp("memory://new"))
        assert rig.leader.state.history.backup.index == 0
