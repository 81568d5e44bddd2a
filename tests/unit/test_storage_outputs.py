"""Outputs on their way into object storage: in which order, how far, and what is told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cron.state import commands as c
from cron.storage import outputs
from cron.storage.output_transfer import SLICE_BYTES
from cron.storage.outputs import OF_ONE_EXECUTOR, TRANSFERS
from cron.storage.uploader import WATCH_MS
from launcher.launch import LaunchState, Reason
from launcher.names import parse_attempt_name
from snapshots.manifest import Lineage, encode
from snapshots.outputs import IN_MEMORY_BYTES_MAX
from tests.unit.backup_rig import CELL, URL
from tests.unit.outputs_rig import JOB, telling

DAY_S = 86_400


async def test_outputs_are_stored_and_the_log_is_told_once(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [await rig.run(b"printed %d" % n) for n in range(20)]
        ended = rig.leader.state.index
        await rig.look(2)
        for number, name in enumerate(names):
            found = rig.read(name)
            assert found is not None
            assert found[1] == b"printed %d" % number
            assert (found[0].size, found[0].dropped) == (len(found[1]), 0)
        assert rig.mark == ended
        assert rig.leader.state.index == ended + 1, "one entry for all of them"
        marks = {one.state.history.outputs_index for one in rig.replicas.values()}
        assert marks == {ended}
        assert rig.leader.outputs.waiting == 0


async def test_an_executor_is_asked_for_a_few_at_a_time(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [await rig.run() for _ in range(12)]
        await rig.look()  # whose place it is
        rig.pool.hanging.add("e1")
        rig.pool.released.clear()
        names += [await rig.run() for _ in range(12)]
        leader = rig.leader
        await leader.outputs.look()
        await rig.until(lambda: len(rig.pool.asked) == 12 + OF_ONE_EXECUTOR)
        await leader.outputs.look()
        rig.pool.released.set()
        await rig.look()
        assert sorted(name for _, name, _ in rig.pool.asked) == names
        assert rig.pool.most_at_once == {"e1": OF_ONE_EXECUTOR}


async def test_of_many_executors_a_few_are_asked_at_once(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        rig.pool.connected = {f"e{n}" for n in range(9)}
        for n in range(18):
            await rig.run(executor=f"e{n % 9}")
        await rig.look(2)
        assert len(rig.stored()) == 18
        assert rig.pool.at_once <= TRANSFERS


async def test_nothing_is_told_while_nothing_has_output(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        await rig.look()
        for _ in range(5):
            await rig.run(b"")
        before = rig.leader.state.index
        await rig.look(20)
        assert rig.leader.state.index == before
        assert rig.pool.asked == []
        assert rig.mark == 0


async def test_nothing_is_stored_twice_in_a_reign(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [await rig.run() for _ in range(3)]
        await rig.look(10)
        assert sorted(rig.puts()) == sorted(names)


async def test_failed_launches_have_output_too(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [
            await rig.run(b"a"),
            await rig.run(b"b", state=LaunchState.FAILED),
            await rig.run(b"c"),
        ]
        await rig.look(2)
        assert [found and found[1] for found in map(rig.read, names)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "size", [1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES, IN_MEMORY_BYTES_MAX + 1]
)
async def test_large_outputs_come_slice_by_slice_and_leave_no_file(
    tmp_path: Path, size: int
) -> None:
    content = bytes(n % 251 for n in range(1024)) * (size // 1024 + 1)
    async with telling(tmp_path) as rig:
        name = await rig.run(content[:size], dropped=77)
        await rig.look(2)
        found = rig.read(name)
        assert found is not None
        assert found[1] == content[:size]
        assert (found[0].size, found[0].dropped) == (size, 77)
        # The first question is for the beginning, which is where the kept part begins.
        offsets = [offset for _, _, offset in rig.pool.asked]
        assert offsets == [0, *range(77 + SLICE_BYTES, 77 + size, SLICE_BYTES)]
        assert list((tmp_path / "r1" / "outputs").iterdir()) == []


async def test_an_executor_that_has_let_it_go_is_not_asked_again(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        gone, there = await rig.run(b"gone"), await rig.run(b"there")
        del rig.pool.kept[("e1", gone)]
        ended = rig.leader.state.index
        await rig.look(3)
        assert rig.puts() == [there]
        assert sorted(name for _, name, _ in rig.pool.asked) == [gone, there]
        assert rig.mark == ended


async def test_what_goes_while_it_is_read_is_not_stored_in_part(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        name = await rig.run(b"x" * (2 * SLICE_BYTES))

        def forget(_count: int) -> None:
            rig.pool.kept.clear()

        rig.pool.after_slice = forget
        ended = rig.leader.state.index
        await rig.look(2)
        assert (rig.read(name), rig.mark) == (None, ended)


async def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        name = await rig.run(b"x" * (2 * SLICE_BYTES))

        def grow(count: int) -> None:
            if count == 1:
                rig.pool.kept[("e1", name)] = 0, b"y" * (3 * SLICE_BYTES)

        rig.pool.after_slice = grow
        await rig.look()
        assert rig.read(name) is None
        await rig.look(3)
        found = rig.read(name)
        assert found is not None
        assert found[1] == b"y" * (3 * SLICE_BYTES)


async def test_late_news_of_a_lost_attempt_brings_its_output(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        leader = rig.leader
        await rig.run()
        _, (result,) = await leader.submit(c.Trigger(JOB, "late", "anna"))
        key = (1, result.scheduled_s, result.number)
        row = leader.state.due[key]
        begin = c.BeginItem(key, 1, row.revision, 1, row.deadline_ms)
        await leader.submit(c.Begin.of((begin,)), c.Lost((c.LostItem(key, 1),)))
        name = f"{leader.state.launch_name(key)}#1"
        rig.pool.kept[("e1", name)] = 0, b"after all"
        await rig.look(2)
        rig.later(60)
        done = LaunchState.SUCCEEDED
        news = c.FinishedItem(key, 1, done, Reason.NONE, 0, 1, 2, "", len(b"after all"))
        await leader.submit(c.Finished((news,)))
        rig.ended[name] = leader.state.at_ms
        await rig.look(2)
        found = rig.read(name)
        assert found is not None
        assert found[1] == b"after all"
        assert found[0].launch == str(parse_attempt_name(name).launch)


# ---- settings


async def test_nothing_is_stored_where_it_is_not_wanted(tmp_path: Path) -> None:
    async with telling(tmp_path, is_on=False) as rig:
        await rig.run()
        before = rig.leader.state.index
        await rig.look(3)
        assert (rig.store.calls, rig.pool.asked) == ([], [])
        assert rig.leader.state.index == before


async def test_outputs_go_with_the_day_of_their_end(tmp_path: Path) -> None:
    async with telling(tmp_path, keep_ms=2 * DAY_S * 1000) as rig:
        names = []
        for _ in range(4):
            names.append(await rig.run())
            await rig.look(2)
            rig.later(DAY_S)
        await rig.look(WATCH_MS // 1000)
        kept = [name for name in names if rig.read(name) is not None]
        assert kept == names[2:], "of today, of yesterday, and of the day before that"


async def test_the_store_is_listed_for_old_outputs_once_a_day(tmp_path: Path) -> None:
    async with telling(tmp_path, keep_ms=DAY_S * 1000) as rig:
        prefix = f"cells/{CELL}/output/"
        for _ in range(3 * 24):
            rig.later(3600)
            await rig.look()
        lists = [
            name for operation, name in rig.store.calls if (operation, name) == ("list", prefix)
        ]
        assert 3 <= len(lists) <= 4


async def test_many_old_outputs_go_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "PRUNED_AT_ONCE", 4)
    async with telling(tmp_path, keep_ms=DAY_S * 1000) as rig:
        for n in range(10):
            old = f"cells/{CELL}/output/2020-01-01/{JOB}@2020-01-01T00:00:0{n}Z+a1.zst"
            rig.store.objects[old] = b"old"
        await rig.look()
        assert len(rig.stored()) == 6
        await rig.look(3 * WATCH_MS // 1000)
        assert rig.stored() == []


async def test_what_a_killed_leader_was_packing_goes_with_the_next_transfer(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "r1" / "outputs"
    async with telling(tmp_path) as rig:
        folder.mkdir()
        for n in range(TRANSFERS):
            (folder / f"output-{n}.zst").write_bytes(b"half of it")
        rig.pool.connected = {f"e{n}" for n in range(TRANSFERS)}
        for n in range(4 * TRANSFERS):
            await rig.run(executor=f"e{n % TRANSFERS}")
        await rig.look(2)
        assert len(list(folder.iterdir())) < TRANSFERS


async def test_outputs_are_deleted_where_none_are_stored_any_more(tmp_path: Path) -> None:
    async with telling(tmp_path, is_on=False, keep_ms=DAY_S * 1000) as rig:
        old = f"cells/{CELL}/output/2020-01-01/{JOB}@2020-01-01T00:00:00Z+a1.zst"
        rig.store.objects[old] = b"old"
        await rig.look()
        assert rig.stored() == []


async def test_outputs_stay_for_ever_where_history_does(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        await rig.run()
        await rig.look(2)
        rig.later(1000 * DAY_S)
        await rig.look(2)
        assert len(rig.stored()) == 1


# ---- whose place it is


async def test_nothing_is_stored_before_the_log_knows_the_store(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        await rig.leader.submit(c.BackedUp("memory://other"))
        await rig.run()
        await rig.look(3)
        assert rig.store.calls == []
        with_mark = rig.leader.state.history.outputs_index
        await rig.leader.submit(c.BackedUp(URL))
        await rig.look(2)
        assert len(rig.stored()) == 1
        assert rig.mark > with_mark


async def test_nothing_is_stored_in_another_cells_place(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        marker = Lineage(cell=CELL, lineage=1, id="theirs")
        rig.store.objects[f"cells/{CELL}/lineages/0001.json"] = encode(marker)
        await rig.run()
        await rig.look(3)
        assert rig.stored() == []
        assert "belongs to another cell" in rig.leader.outputs.trouble.text


async def test_nothing_is_stored_once_the_cell_was_restored_elsewhere(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        marker = Lineage(cell=CELL, lineage=2, id="restored")
        rig.store.objects[f"cells/{CELL}/lineages/0002.json"] = encode(marker)
        await rig.run()
        await rig.look(3)
        assert rig.stored() == []


async def test_who_is_closed_begins_nothing_more(tmp_path: Path) -> None:
    """The end of a transfer begins the next; of one that is cancelled when the loop ends, too."""
    async with telling(tmp_path) as rig:
        await rig.look()  # whose place it is
        rig.pool.hanging.add("e1")
        rig.pool.released.clear()
        for _ in range(5):
            await rig.run()
        leader = rig.leader
        await leader.outputs.look()
        await rig.until(lambda: len(rig.pool.asked) == OF_ONE_EXECUTOR)
        leader.outputs.close()
        rig.pool.released.set()
        going = [task for task in asyncio.all_tasks() if task.get_name() == "output"]
        await asyncio.wait(going)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "output"]
        assert len(rig.pool.asked) == OF_ONE_EXECUTOR
