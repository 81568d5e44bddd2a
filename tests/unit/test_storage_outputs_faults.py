"""Outputs while executors, the store and leaders fail: what waits, what is given up, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cron.errors import Unavailable
from cron.state import commands as c
from cron.storage.outputs import GIVE_UP_MS, OF_ONE_EXECUTOR, TRANSFERS
from cron.storage.uploader import REST_MAX_MS, SILENT_MS
from snapshots.errors import StoreRefused
from tests.unit.outputs_rig import telling

HOUR_S = 3_600


@pytest.fixture(autouse=True)
def said() -> Iterator[list[dict[str, object]]]:
    """What was told."""
    with structlog.testing.capture_logs() as logs:
        yield logs


def given_up(said: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(one["launch"], one["error"]) for one in said if one["event"] == "output.not_stored"]


# ---- executors


async def test_an_executor_that_is_away_is_waited_for_and_holds_up_no_other(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        away = await rig.run(b"away", "e2")
        before = rig.leader.state.index
        others = [await rig.run() for _ in range(5)]
        await rig.look(3)
        assert sorted(rig.puts()) == others
        assert rig.mark <= before - 1, "the next leader must find it"
        assert rig.leader.outputs.waiting == 1
        rig.later(GIVE_UP_MS / 1000 - 120)
        await rig.look(3)
        rig.pool.connected.add("e2")
        rig.later(REST_MAX_MS / 1000)
        await rig.look(3)
        assert rig.read(away) is not None
        assert rig.mark > before
        assert rig.leader.outputs.waiting == 0
        assert given_up(said) == []


async def test_ten_minutes_after_its_end_an_output_is_given_up_for_good(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        name = await rig.run(b"away", "e2")
        ended = rig.leader.state.index
        for _ in range(int(GIVE_UP_MS / 10_000) - 1):
            rig.later(9)
            await rig.look()
        assert given_up(said) == []
        rig.later(20)
        await rig.look(2)
        assert given_up(said) == [(name, "executor e2 is not connected")]
        assert rig.mark == ended
        rig.pool.connected.add("e2")
        await rig.look(3)
        assert rig.read(name) is None


async def test_a_new_leader_gives_executors_time_to_connect(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        rig.store.away = "connection refused"
        name = await rig.run()
        await rig.look()
        rig.later(HOUR_S)
        rig.pool.connected.clear()
        await rig.elect("r2")
        rig.store.away = ""
        await rig.look(20)
        assert given_up(said) == []
        rig.pool.connected.add("e1")
        await rig.look(20)
        assert rig.read(name) is not None


async def test_an_executor_that_restarts_loses_no_old_output(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        rig.store.away = "connection refused"
        names = [await rig.run() for _ in range(10)]
        for _ in range(60):
            rig.later(59)
            await rig.look()
        rig.pool.connected.clear()
        rig.store.away = ""
        rig.later(REST_MAX_MS / 1000)
        await rig.look(10)
        rig.pool.connected.add("e1")
        await rig.look(20)
        assert given_up(said) == []
        assert sorted(set(rig.puts())) == sorted(names)


async def test_an_executor_that_never_answers_leaves_places_for_others(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        rig.pool.connected.add("e2")
        rig.pool.hanging.add("e2")
        for _ in range(6):
            await rig.run(b"hangs", "e2")
        others = [await rig.run() for _ in range(6)]
        leader = rig.leader
        await leader.outputs.look()
        await rig.until(lambda: len(rig.puts()) == len(others))
        assert sorted(rig.puts()) == others
        assert rig.pool.most_at_once["e2"] == OF_ONE_EXECUTOR


async def test_an_executor_that_fails_rests_longer_and_longer(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        rig.pool.failing["e1"] = "output of it: too many open files"
        names = [await rig.run() for _ in range(4)]
        await rig.look(300)
        assert 6 <= len(rig.pool.asked) <= 6 * OF_ONE_EXECUTOR + 12
        assert given_up(said) == []
        del rig.pool.failing["e1"]
        await rig.look(int(REST_MAX_MS / 1000) + 2)
        assert sorted(rig.puts()) == names


async def test_what_an_executor_cannot_read_is_given_up_and_the_rest_is_not(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        bad = await rig.run()
        good = [await rig.run() for _ in range(3)]
        rig.pool.failing[bad] = "input/output error"
        for _ in range(GIVE_UP_MS // 20_000):
            rig.later(19)
            await rig.look()
        assert sorted(rig.puts()) == good
        rig.later(60)
        await rig.look(3)
        assert given_up(said) == [(bad, "input/output error")]
        assert rig.leader.outputs.waiting == 0


async def test_what_failed_before_the_store_did_is_tried_once_more_after(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        rig.pool.failing["e1"] = "too many open files"
        names = [await rig.run() for _ in range(5)]
        await rig.look(3)
        rig.store.away = "connection refused"
        rig.later(30)
        await rig.look(2)
        rig.later(HOUR_S)
        await rig.look(2)
        del rig.pool.failing["e1"]
        rig.store.away = ""
        rig.pool.hanging.add("e1")
        rig.pool.asked.clear()
        rig.later(REST_MAX_MS / 1000)
        await rig.leader.outputs.look()
        await rig.until(lambda: len(rig.pool.asked) == OF_ONE_EXECUTOR)
        await rig.leader.outputs.look()
        assert given_up(said) == [], "those that nobody has asked for again"
        rig.pool.released.set()
        await rig.look(3)
        assert given_up(said) == []
        assert sorted(rig.puts()) == names


# ---- the store


async def test_a_store_that_is_away_for_an_hour_costs_nothing_but_time(
    tmp_path: Path, said: list[dict[str, object]]
) -> None:
    async with telling(tmp_path) as rig:
        await rig.run()
        await rig.look(2)
        stored, mark = rig.stored(), rig.mark
        rig.store.away = "connection refused"
        names = []
        rig.later(30)
        await rig.look(2)
        since_ms = rig.leader.outputs.trouble.since_ms
        rig.store.calls.clear()
        for _ in range(60):
            names.append(await rig.run())
            for _ in range(10):
                rig.later(4.8)
                await rig.look()
        assert 50 <= len(rig.store.calls) <= 80, "once a minute, after the first few"
        assert {operation for operation, _ in rig.store.calls} == {"list"}
        assert len(rig.pool.asked) == 1, "executors are left alone meanwhile"
        assert (rig.stored(), rig.mark) == (stored, mark)
        trouble = rig.leader.outputs.trouble
        assert trouble.text == "memory://test: connection refused"
        assert trouble.since_ms == since_ms
        assert rig.leader.outputs.waiting == len(names)

        rig.store.away = ""
        rig.later(REST_MAX_MS / 1000)
        await rig.look(3)
        assert sorted(rig.puts()) == names
        assert all(rig.read(name) for name in rig.ended)
        assert rig.leader.outputs.trouble.text == ""
        assert rig.leader.outputs.waiting == 0
        assert given_up(said) == []


async def test_a_store_that_takes_nothing_is_told_of_until_it_does(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:

        def refuse(operation: str, name: str) -> None:
            if operation == "put" and "/output/" in name:
                raise StoreRefused(rig.store.url, "the bucket is full")

        rig.store.hook = refuse
        name = await rig.run()
        await rig.look(2)
        since_ms = rig.leader.outputs.trouble.since_ms
        for _ in range(20):
            rig.later(30)
            await rig.look()
        assert "the bucket is full: check credentials" in rig.leader.outputs.trouble.text
        assert rig.leader.outputs.trouble.since_ms == since_ms > 0
        rig.store.hook = lambda operation, name: None
        rig.later(REST_MAX_MS / 1000)
        await rig.look(2)
        assert rig.read(name) is not None
        assert rig.leader.outputs.trouble.text == ""


async def test_who_may_not_delete_stores_all_the_same(tmp_path: Path) -> None:
    async with telling(tmp_path, keep_ms=1000) as rig:

        def refuse(operation: str, name: str) -> None:
            if operation == "delete":
                raise StoreRefused(rig.store.url, f"no permission to delete {name}")

        rig.store.hook = refuse
        rig.store.objects["cells/prod/output/2020-01-01/a/b@c+a1.zst"] = b"old"
        name = await rig.run()
        await rig.look(3)
        assert rig.read(name) is not None
        assert "no permission to delete" in rig.leader.outputs.trouble.text


async def test_a_store_that_hangs_holds_up_no_launch_and_is_told_of(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        await rig.look()
        released = threading.Event()

        def hang(operation: str, name: str) -> None:
            if operation == "put" and "/output/" in name:
                released.wait()

        rig.store.hook = hang
        names = [await rig.run() for _ in range(TRANSFERS + 3)]
        leader = rig.leader
        await leader.outputs.look()
        await rig.until(lambda: len(rig.puts()) == OF_ONE_EXECUTOR)
        rig.later(SILENT_MS / 1000 - 1)
        assert leader.outputs.trouble.text == ""
        since_ms = rig.clock.ms
        rig.later(1)
        names.append(await rig.run())
        await leader.outputs.look()
        assert "no answer yet" in leader.outputs.trouble.text
        assert since_ms - SILENT_MS <= leader.outputs.trouble.since_ms <= since_ms
        released.set()
        await leader.outputs.settled()
        await rig.look(2)
        assert sorted(rig.puts()) == sorted(names)
        assert leader.outputs.trouble.text == ""


async def test_a_disk_that_has_no_room_is_told_of(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        folder = tmp_path / "r1" / "outputs"
        folder.write_text("this is no directory")
        name = await rig.run()
        await rig.look(2)
        assert "exists" in rig.leader.outputs.trouble.text
        folder.unlink()
        await rig.look(3)
        assert rig.read(name) is not None


# ---- leaders


async def test_the_next_leader_goes_on_from_the_mark(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        done = [await rig.run() for _ in range(3)]
        await rig.look(2)
        mark = rig.mark
        left = [await rig.run() for _ in range(3)]
        await rig.elect("r2")
        assert rig.mark == mark
        rig.store.calls.clear()
        await rig.look(2)
        assert sorted(rig.puts()) == left
        assert all(rig.read(name) for name in done + left)


async def test_what_was_stored_and_not_told_is_stored_again(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [await rig.run() for _ in range(3)]
        leader = rig.leader
        await leader.outputs.look()
        await leader.outputs.settled()
        assert sorted(rig.puts()) == names
        assert rig.mark == 0
        await rig.elect("r3")
        await rig.look(2)
        assert sorted(rig.puts()) == sorted(names * 2)
        assert rig.mark > 0


async def test_a_seal_hides_nothing_from_the_next_leader(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        names = [await rig.run() for _ in range(3)]
        await rig.leader.submit(c.Seal(1))
        names += [await rig.run() for _ in range(3)]
        await rig.elect("r2")
        await rig.look(2)
        assert sorted(rig.puts()) == names


async def test_a_leader_that_is_deposed_begins_nothing_more(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        rig.pool.hanging.add("e1")
        for _ in range(6):
            await rig.run()
        old = rig.leader
        await old.outputs.look()
        await rig.until(lambda: rig.pool.asked)
        await rig.elect("r2")
        await old.outputs.look()
        rig.pool.released.set()
        await old.outputs.settled()
        assert rig.puts() == []
        assert old.outputs.waiting == 0


async def test_it_is_told_again_where_the_log_refused_it(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:
        await rig.run()
        leader, submit = rig.leader, rig.leader.leader.submit
        ended = leader.state.index

        async def refuse(*_args: object, **_named: object) -> None:
            raise Unavailable("busy")

        leader.leader.submit = refuse  # type: ignore[method-assign, assignment]
        await rig.look(3)
        assert rig.mark == 0
        leader.leader.submit = submit  # type: ignore[method-assign]
        await rig.look()
        assert rig.mark >= ended


async def test_a_bug_ends_the_replica_and_is_not_hidden(tmp_path: Path) -> None:
    async with telling(tmp_path) as rig:

        def fail(_count: int) -> None:
            raise ZeroDivisionError

        rig.pool.after_slice = fail
        await rig.run()
        await rig.look()
        with pytest.raises(ZeroDivisionError):
            await rig.look(2)
