"""Tasks that are far ahead go to disk and come back in time, with a real replica's disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog

from cron.config import LimitsConfig
from cron.errors import NotLeader
from cron.leader import far_tasks
from cron.scheduler.far_tasks import USUAL, SpillSettings, spilling_above
from cron.state import commands as c
from cron.state import spilled, spilling
from cron.state import tasks as t
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.storage.folders import name_of
from tests.unit.disk_rig import Disk
from tests.unit.far_tasks_rig import HOUR_MS, FarTasksRig
from tests.unit.tasks_rig import QUEUE, name, task


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[FarTasksRig]:
    rig = FarTasksRig(tmp_path)
    yield rig
    rig.stop()


EIGHT = tuple("abcdefgh")


def test_an_operator_says_how_many_tasks_wait_in_memory() -> None:
    assert spilling_above(LimitsConfig().tasks_in_memory) == USUAL
    assert spilling_above(7) == SpillSettings(kept=7, rows=7)


async def test_tasks_go_to_disk_and_come_back_an_hour_before_their_time(rig: FarTasksRig) -> None:
    rig.submit_far(*EIGHT)
    was = {key: rig.task(key) for key in EIGHT}
    await rig.look()
    assert sum(rig.spilled(*EIGHT)) == 4  # `kept` stay
    rig.at_ms += 23 * HOUR_MS - 1_000
    await rig.look()
    assert sum(rig.spilled(*EIGHT)) == 4
    rig.at_ms += 1_000 + 3_000  # the one hour before those that are due first
    await rig.look()
    rig.at_ms += HOUR_MS
    await rig.look()
    assert not any(rig.spilled(*EIGHT))
    for key in EIGHT:
        assert msgspec.structs.replace(rig.task(key), number=was[key].number) == was[key]


async def test_few_tasks_and_near_ones_stay_in_memory(rig: FarTasksRig) -> None:
    rig.submit_far("a", "b", "c", "d")
    rig.submit_far(*(f"n{n}" for n in range(20)), hours=1)
    await rig.look()
    assert rig.spilled("a", "b", "c", "d") == [True] * 4
    rig.submit_far("e", "f", "g")  # fewer than a segment
    await rig.look()
    assert len(rig.state.tasks) == 23


async def test_the_latest_hours_go_first(rig: FarTasksRig) -> None:
    for hour in (30, 10, 50, 20):
        rig.submit_far(f"{hour}a", f"{hour}b", hours=hour)
    await rig.look()
    assert rig.spilled("50a", "50b", "30a", "30b") == [True] * 4
    assert not any(rig.spilled("10a", "20b"))


async def test_every_replica_writes_the_same_file(rig: FarTasksRig, tmp_path: Path) -> None:
    rig.submit_far(*EIGHT)
    await rig.look()
    other = Disk(tmp_path / "r2", rig).start()
    other.apply()
    assert rig.disk is not None
    for one in (rig.disk, other):
        await asyncio.to_thread(one.writer.wait_durable)
    other.stop()
    assert list(other.files()) == ["0001-0000000001-tasks.seg"]
    assert rig.disk.files() == other.files()


async def test_a_task_that_was_put_back_by_an_entry_that_failed_goes_later(
    rig: FarTasksRig,
) -> None:
    rig.submit_far(*EIGHT)
    rig.leader.error = NotLeader(None)
    await rig.look()
    assert rig.leader.far_tasks.count == 8
    rig.leader.error = None
    await rig.look()
    assert sum(rig.spilled(*EIGHT)) == 4


async def test_a_leader_that_died_after_the_read_has_brought_nothing_back(
    rig: FarTasksRig,
) -> None:
    rig.submit_far(*EIGHT)
    await rig.look()
    rig.at_ms += 24 * HOUR_MS
    rig.leader.error = NotLeader(None)
    await rig.look()
    assert rig.state.spilled.count == 4
    rig.lead()
    await rig.look()
    assert not any(rig.spilled(*EIGHT))
    assert len(rig.state.tasks) == 8


async def test_two_leaders_that_read_the_same_bring_each_task_back_once(rig: FarTasksRig) -> None:
    rig.submit_far(*EIGHT)
    await rig.look()
    rig.at_ms += 24 * HOUR_MS
    segments = list(rig.state.history.spilled.values())
    items, read = await rig.loop._read(segments, None)
    await rig.look()
    verdicts = rig.items(t.LoadTasks(tuple(items), tuple(read)))
    assert verdicts == [Verdict.ALREADY] * 4
    assert len(rig.state.tasks) == 8


async def test_a_replica_that_restarts_reads_its_own_files(rig: FarTasksRig) -> None:
    rig.submit_far(*EIGHT)
    await rig.look()
    assert rig.disk is not None
    await asyncio.to_thread(rig.disk.writer.wait_durable)
    rig.disk.stop()
    again = Disk(rig.data / "r1", rig).start()
    again.apply()  # the same entries: the files are there
    assert encode_state(again.applier.state) == encode_state(rig.state)
    rig.lead(again)
    rig.at_ms += 24 * HOUR_MS
    await rig.look()
    assert len(rig.state.tasks) == 8


async def test_what_is_not_written_yet_is_read_from_memory(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rig.disk is not None
    monkeypatch.setattr(rig.disk.writer, "_write_segments", lambda: None)
    rig.submit_far(*EIGHT)
    await rig.look()
    rig.at_ms += 24 * HOUR_MS
    await rig.look()
    assert len(rig.state.tasks) == 8


async def test_a_torn_segment_is_reported_and_set_aside_and_the_others_come_back(
    rig: FarTasksRig,
) -> None:
    rig.submit_far(*(f"k{n}" for n in range(12)))
    await rig.look()
    assert rig.disk is not None
    await asyncio.to_thread(rig.disk.writer.wait_durable)
    first, second = rig.state.history.segments.values()
    path = rig.disk.writer.segment_path(name_of(first))
    assert path is not None
    path.write_bytes(path.read_bytes()[:-200])
    rig.at_ms += 24 * HOUR_MS
    with structlog.testing.capture_logs() as logs:
        await rig.look()
        await rig.look()
    assert [one["event"] for one in logs] == ["segment.damaged", "tasks.unreadable"]
    assert [one.number for one in rig.disk.writer.missing()] == [first.number]
    assert rig.state.spilled.count == first.rows
    assert rig.state.history.spilled[second.number].left == 0


async def test_a_full_disk_lets_nothing_more_leave_memory(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rig.disk is not None
    monkeypatch.setattr(rig.disk.writer, "_trouble", "no space left on device")
    rig.submit_far(*EIGHT)
    await rig.look()
    assert rig.state.spilled.count == 0


async def test_tasks_come_back_in_portions_and_in_the_order_of_their_times(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_tasks, "LOAD_ROWS", 3)
    for hour in (10, 11, 12):
        rig.submit_far(*(f"{hour}-{n}" for n in range(4)), hours=hour)
    await rig.look()
    assert rig.state.spilled.count == 8
    entries = rig.state.index
    rig.at_ms += 11 * HOUR_MS + 5_000
    await rig.look()
    assert rig.state.spilled.count == 0
    assert rig.state.index - entries == 3
    numbers = [one.at_ms for one in list(rig.state.tasks_by_number.values())[-8:]]
    assert numbers == sorted(numbers)


async def test_a_segment_of_which_little_is_left_is_brought_together_with_others(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_tasks, "SPARE_SEGMENTS", 0)
    monkeypatch.setattr(far_tasks, "TIDY_LOOKS", 1)
    rig.submit_far(*(f"k{n}" for n in range(16)))
    await rig.look()
    assert len(rig.state.history.spilled) == 3
    for slot in (1, 2, 3):
        record = rig.state.history.task_segment(slot)
        for row in (0, 1, 3):
            read = await rig.files.task(record, row)
            rig.items(t.LoadTasks((t.LoadItem(slot, row, read),)))
            rig.cancel_tasks(read.key)
    assert rig.state.spilled.count == 3
    for _ in range(3):
        await rig.look()
    left = [one.left for one in rig.state.history.spilled.values() if one.left]
    assert sorted(left) == [1, 1, 4]
    assert rig.state.queues[QUEUE].waiting == 7


async def test_tied_tasks_and_those_whose_hash_is_taken_stay_and_are_due_in_time(
    rig: FarTasksRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilling, "name_hash", lambda _name: 7)
    monkeypatch.setattr(spilled, "name_hash", lambda _name: 7)
    rig.submit(task("tied", 25 * HOUR_MS), task("follower", after=(name("tied"),)))
    rig.submit_far(*EIGHT)
    await rig.look()
    assert sum(rig.spilled("h")) == 1
    assert rig.state.spilled.count == 1
    rig.at_ms += 24 * HOUR_MS
    await rig.look()
    rig.at_ms += 2 * HOUR_MS
    assert rig.indexes is not None
    ready = rig.indexes.tasks.plan(rig.at_ms, lambda _pool: 20, 100)
    (command,) = [one for one in ready if isinstance(one, t.ReadyTasks)]
    assert len(command.numbers) == 9


async def test_heavy_payloads_go_to_disk_though_they_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron.scheduler.far_tasks.HEAVY_BYTES", 1_000)
    monkeypatch.setattr("cron.scheduler.far_tasks.HEAVY_TASKS", 2)
    rig = FarTasksRig(tmp_path, SpillSettings(bytes=500))
    specs = [task(f"k{n}", 24 * HOUR_MS, payload=b"1" * 400) for n in range(4)]
    rig.submit(*specs)
    await rig.look()
    rig.stop()
    assert rig.state.spilled.count == 2
    assert rig.state.tasks.payload_bytes == 800
    assert name("k0") in rig.state.tasks


async def test_delays_of_a_wrong_clock_that_went_to_disk_end_in_time_after_its_reset(
    rig: FarTasksRig,
) -> None:
    right_ms = rig.at_ms
    rig.at_ms += 1_000 * HOUR_MS
    ahead_ms = 1_024 * HOUR_MS
    rig.submit(*(task(key, ahead_ms, is_delay=True) for key in "abcd"), task("at", ahead_ms))
    await rig.look()
    assert sum(rig.spilled(*"abcd", "at")) == 4
    rig.at_ms = right_ms
    assert rig.answer(c.ResetClock(right_ms, "anna")).verdict is Verdict.ACCEPTED
    await rig.look()  # they come back, and go to disk again with their times
    assert sum(rig.spilled(*"abcd", "at")) == 4
    rig.at_ms += 24 * HOUR_MS
    await rig.look()
    assert not any(rig.spilled(*"abcd"))
    assert {rig.task(key).at_ms for key in "abcd"} == {right_ms + 24 * HOUR_MS}
    rig.at_ms += 1_000 * HOUR_MS
    await rig.look()
    assert rig.task("at").at_ms == right_ms + ahead_ms
