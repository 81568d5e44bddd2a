"""Tasks on disk outlive their replica: another one fetches them, a restore has them, and their
segments go once nobody needs them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cron.state import commands as c
from cron.state import tasks as t
from cron.state.archive import Backup, SegmentRecord, Stream
from cron.state.groups import CloseGroups, GroupClose
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.state import State
from cron.storage.folders import Folders, name_of, open_tasks
from cron.storage.new_generation import NewGeneration, begin_generation
from cron.storage.retention_planner import RetentionSettings, emptied_segments
from launcher.protocol.work import Epoch
from snapshots.layout import segment_object
from tests.unit.disk_rig import Disk, until
from tests.unit.far_tasks_rig import DAY_MS, HOUR_MS, FarTasksRig
from tests.unit.restore_rig import CELL, Backed, opened, restore, restore_disk
from tests.unit.state_rig import T0
from tests.unit.tasks_rig import QUEUE, name, task

EIGHT = tuple("abcdefgh")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[FarTasksRig]:
    rig = FarTasksRig(tmp_path)
    rig.submit_far(*EIGHT)
    await rig.look()
    assert rig.disk is not None
    await rig.disk.settle()
    yield rig
    rig.stop()


class Peer:
    """The other replica's segments."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        path = self._disk.writer.segment_path(name_of(record))
        if path is not None:
            shutil.copy(path, folder)
        return path is not None


# ---- replaced


async def test_a_replaced_replica_fetches_the_segments_and_leads(
    rig: FarTasksRig, tmp_path: Path
) -> None:
    first = rig.disk
    assert first is not None
    new = Disk(tmp_path / "r2", rig).start()
    new.restore(first)
    assert encode_state(new.applier.state) == encode_state(rig.state)
    assert [one.stream for one in new.writer.missing()] == [Stream.TASKS]
    new.backfill.sources.append(Peer(first))
    await new.backfill.look()
    assert new.files() == first.files()
    first.stop()
    rig.lead(new)
    rig.at_ms += DAY_MS
    await rig.look()
    assert len(rig.state.tasks) == 8


async def test_a_leader_whose_segment_is_not_here_yet_waits_for_it(
    rig: FarTasksRig, tmp_path: Path
) -> None:
    first = rig.disk
    assert first is not None
    new = Disk(tmp_path / "r2", rig).start()
    new.restore(first)
    rig.lead(new)
    rig.at_ms += DAY_MS
    await rig.look()
    assert rig.state.spilled.count == 4
    new.backfill.sources.append(Peer(first))
    await new.backfill.look()
    for _ in range(10):  # a segment that could not be read rests
        await rig.look()
    first.stop()
    assert len(rig.state.tasks) == 8


async def test_a_torn_segment_is_fetched_from_another_replica(
    rig: FarTasksRig, tmp_path: Path
) -> None:
    first = rig.disk
    assert first is not None
    other = Disk(tmp_path / "r2", rig).start()
    other.apply()
    await other.settle()
    (record,) = rig.state.history.segments.values()
    path = first.writer.segment_path(name_of(record))
    assert path is not None
    path.write_bytes(path.read_bytes()[:-100])
    rig.at_ms += DAY_MS
    await rig.look()
    first.backfill.sources.append(Peer(other))
    await first.backfill.look()
    other.stop()
    for _ in range(10):
        await rig.look()
    assert len(rig.state.tasks) == 8
    assert path.with_name(path.name + ".damaged").exists()


async def test_a_dump_waits_for_the_segments_that_it_names(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Killed between the entry and the file, a replica applies the entry again from its log.
    assert rig.disk is not None
    writer = rig.disk.writer
    monkeypatch.setattr("cron.storage.snapshot_writer.DURABLE_S", 0.01)

    def refuse(_: object) -> None:
        raise OSError("no room")

    # Each write asks for it: the thread may be at work already.
    monkeypatch.setattr(writer.folders, "write", refuse)
    rig.submit_far(*(f"more{n}" for n in range(8)), hours=50)
    await rig.look()
    with pytest.raises(OSError, match="history cannot be kept"):
        await asyncio.to_thread(lambda: list(rig.disk.applier.take()))  # type: ignore[union-attr]


# ---- retired


async def test_an_emptied_segment_leaves_the_catalog_and_the_disk(rig: FarTasksRig) -> None:
    (key,) = rig.state.history.segments
    assert rig.items(c.Retire(gone=(key,))) == [Verdict.STILL_OPEN]
    assert emptied_segments(rig.state.history, RetentionSettings()) == ()
    rig.at_ms += DAY_MS
    await rig.look()
    assert emptied_segments(rig.state.history, RetentionSettings()) == (key,)
    assert rig.items(c.Retire(gone=(key,))) == [Verdict.ACCEPTED]
    assert not rig.state.history.segments
    assert not rig.state.history.spilled
    disk = rig.disk
    assert disk is not None
    await until(lambda: not disk.files())


async def test_an_emptied_segment_stays_until_a_newer_snapshot_is_stored(
    rig: FarTasksRig,
) -> None:
    rig.at_ms += DAY_MS
    await rig.look()
    settings, history = RetentionSettings(store="s3://x"), rig.state.history
    index = rig.state.index
    for stored, is_due in ((index - 1, False), (index, False), (index + 1, True)):
        history.backup = Backup("s3://x", 1, 1, stored)
        assert bool(emptied_segments(history, settings)) == is_due
    history.backup = Backup("s3://before", 1, 1, index + 1)
    assert not emptied_segments(history, settings)


# ---- restored


def backed_with_tasks(folder: Path) -> Backed:
    """A cell whose snapshot in the store names two segments of three tasks each."""
    backed = Backed(folder)
    rig = backed.rig
    for segment in range(2):
        specs = [task(f"{segment}-{n}", (1 + segment) * DAY_MS + n) for n in range(3)]
        rig.append(t.SubmitTasks(tuple(specs), "shop"))
        outcome = rig.append(t.SpillTasks(tuple(backed.state.tasks_by_number)))
        for one in outcome.sealed:
            backed.folders.write(one)
            backed.backup_store.put_segment(backed.folders.segments / name_of(one.record))
            rig.append(c.BackedUp(backed.store.url, (one.record.key,), claim="first"))
    return backed


def restored(data: Path) -> State:
    return decode_state([opened(data)[1]])


def test_a_restore_from_the_store_has_the_tasks_on_disk(tmp_path: Path) -> None:
    backed = backed_with_tasks(tmp_path)
    backed.snapshot()
    report = restore(backed.backup_store, tmp_path / "r1")
    assert (report.segments, report.missing) == (2, [])
    state = restored(tmp_path / "r1")
    place = state.spilled.find(name("1-2"))
    assert place is not None
    record = state.history.task_segment(place.slot)
    path = Folders(tmp_path / "r1", CELL).segments / name_of(record)
    assert open_tasks(path, CELL, record).task(place.row).key == "1-2"


def test_a_restore_says_which_segments_are_lost_and_forgets_their_tasks(tmp_path: Path) -> None:
    backed = backed_with_tasks(tmp_path)
    backed.snapshot()
    lost, _ = backed.state.history.segments.values()
    backed.store.delete([segment_object(CELL, name_of(lost))])
    report = restore(backed.backup_store, tmp_path / "r1")
    assert report.missing == [name_of(lost)]
    state = restored(tmp_path / "r1")
    queue = state.queues[QUEUE]
    assert (state.spilled.count, queue.spilled, queue.waiting) == (3, 3, 3)
    assert state.spilled.find(name("0-0")) is None


def test_a_queue_that_no_file_declares_goes_with_its_last_task_that_is_lost(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    backed.rig.append(t.SubmitTasks((task("a", DAY_MS),), "shop"))
    backed.rig.append(t.SpillTasks((1,)))
    backed.snapshot()
    restore(backed.backup_store, tmp_path / "r1")
    assert QUEUE not in restored(tmp_path / "r1").queues


def test_a_group_is_complete_that_waited_for_tasks_that_are_lost(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    rig = backed.rig
    rig.append(t.SubmitTasks((task("a", DAY_MS, group="default/g"),), "shop"))
    rig.append(t.SpillTasks((1,)), CloseGroups((GroupClose("default/g"),)))
    backed.snapshot()
    restore(backed.backup_store, tmp_path / "r1")
    group = restored(tmp_path / "r1").groups["default/g"]
    assert (group.is_complete, group.dropped, group.completed_ms) == (True, 1, rig.at_ms)


def test_a_restore_from_the_one_disk_that_is_left_has_them(tmp_path: Path) -> None:
    backed = backed_with_tasks(tmp_path)
    backed.snapshot()
    restore(backed.backup_store, tmp_path / "r1")
    report = restore_disk(tmp_path / "r1", None, tmp_path / "again")
    assert report.missing == []
    assert restored(tmp_path / "again").spilled.count == 6


async def test_a_leader_of_a_restored_cell_brings_back_what_may_have_run(
    rig: FarTasksRig,
) -> None:
    # Those that were due since the snapshot, and those that an executor remembers.
    rig.submit_far(*(f"later{n}" for n in range(8)), hours=80)
    await rig.look()
    begin_generation(rig.state, NewGeneration(2, rig.at_ms, "bob"))
    rig.base, rig.epoch = rig.state.index - len(rig.log), Epoch(2, 9, "r2")
    rig.append(c.Claim("2026b", "0.1.0", c.FORMAT))
    rig.leader.wanted_tasks = (rig.begins_ms + DAY_MS + 5_000, (name("later7"), name("none")))
    count = rig.state.spilled.count
    await rig.loop.look()
    assert not any(rig.spilled("e", "f", "later7"))
    assert all(rig.spilled("g", "h", "later6"))
    assert rig.state.spilled.count == count - 3


def test_a_restored_cell_waits_for_tasks_on_disk_that_were_due_since(tmp_path: Path) -> None:
    # Rule R13: they may have run.
    backed = backed_with_tasks(tmp_path)
    rig = backed.rig
    read = [
        open_tasks(backed.folders.segments / name_of(one), CELL, one).task(row)
        for one in backed.state.history.segments.values()
        for row in range(3)
    ]
    rig.at_ms += DAY_MS + HOUR_MS
    state = backed.state
    begin_generation(state, NewGeneration(2, rig.at_ms, "bob"))
    rig.base, rig.epoch = state.index - len(rig.log), Epoch(2, 9, "r2")
    rig.append(c.Claim("2026b", "0.1.0", c.FORMAT))
    assert state.is_resolving
    verdict = Verdict(rig.answer(c.Resolve(T0 + 25 * 3_600)).verdict)
    assert verdict is Verdict.WRONG_HORIZON
    items = tuple(t.LoadItem(1, row, read[row]) for row in range(3))
    assert rig.items(t.LoadTasks(items)) == [Verdict.ACCEPTED] * 3
    assert len(state.tasks) == 3
    assert msgspec.structs.replace(read[0], number=state.task_numbers - 2) in state.tasks.values()
