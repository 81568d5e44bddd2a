"""The projection: what is left of it after kills, power loss, damage and full disks."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
import structlog

from cron.errors import Shutdown, Unavailable
from cron.history.gaps import Gap
from cron.history.projection import Projection
from tests.unit.test_history_projection import all_rows, row


async def test_stop_writes_what_was_offered_and_a_new_start_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.sqlite"
    first = Projection(path, "cell-1")
    first.start()
    first.start()
    first.offer([row(1, 60)], 4)
    first.stop()
    first.stop()
    second = Projection(path, "cell-1")
    second.start()
    assert second.mark == 4
    assert await all_rows(second) == [row(1, 60)]
    second.stop()


async def test_a_stopped_projection_takes_nothing_and_answers_nothing(tmp_path: Path) -> None:
    projection = Projection(tmp_path / "history.sqlite")
    projection.start()
    waiting = asyncio.create_task(projection.caught_up(7))
    await projection.counts()
    projection.stop()
    projection.offer([row(1, 60)], 4)
    with pytest.raises(Shutdown):
        await projection.counts()
    with pytest.raises(Shutdown):
        await waiting
    projection.start()
    assert projection.mark == 0
    projection.stop()


async def test_what_was_offered_and_not_written_before_a_kill_is_offered_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.sqlite"
    rows = [row(index, index * 60) for index in range(1, 30)]
    killed = Projection(path)
    killed.start()
    killed.offer(rows[:10], 10)
    await killed.caught_up(10)
    held, release = threading.Event(), threading.Event()

    def hold(_db: sqlite3.Connection) -> None:
        held.set()
        release.wait(30)

    holding = asyncio.create_task(killed.ask(hold))
    await asyncio.to_thread(held.wait, 10)
    killed.offer(rows[10:], 29)
    stopping = asyncio.create_task(asyncio.to_thread(killed.stop, flush=False))
    async with asyncio.timeout(30):
        while killed._flushes:  # noqa: ASYNC110, until stop has said so; it has no event
            await asyncio.sleep(0)
    release.set()
    await asyncio.gather(stopping, holding)

    again = Projection(path)
    again.start()
    assert again.mark == 10
    again.offer([r for r in rows if r.ended_index > again.mark], 29)
    assert await all_rows(again) == rows[::-1]
    again.stop()


async def test_power_loss_takes_rows_and_mark_back_together(tmp_path: Path) -> None:
    """A copy with the write-ahead log cut anywhere is what a power loss leaves."""
    path = tmp_path / "live" / "history.sqlite"
    projection = Projection(path)
    projection.start()
    for batch in range(30):
        rows = [row(batch * 10 + n, batch * 600 + n * 60) for n in range(1, 11)]
        projection.offer(rows, batch * 10 + 10)
        await projection.caught_up(batch * 10 + 10)
    wal = path.with_name(path.name + "-wal").read_bytes()
    marks = set()
    for number, size in enumerate(range(0, len(wal) + 1, 2_803)):
        torn = tmp_path / f"torn-{number}" / "history.sqlite"
        torn.parent.mkdir()
        shutil.copy(path, torn)
        torn.with_name(torn.name + "-wal").write_bytes(wal[:size])
        after = Projection(torn)
        after.start()
        marks.add(after.mark)
        found = await all_rows(after)
        assert sorted(r.ended_index for r in found) == list(range(1, after.mark + 1))
        after.stop()
    projection.stop()
    assert len(marks) > 10  # the cuts did reach different transactions


@pytest.mark.parametrize(
    "damage",
    [
        b"this is no database at all, but long enough to have a header" * 100,
        b"SQLite format 3\x00" + b"\xff" * 5000,
        b"SQLite format 3",
    ],
)
async def test_a_file_that_is_no_database_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(damage)
    projection = Projection(path)
    with structlog.testing.capture_logs() as logs:
        projection.start()
    assert [line["event"] for line in logs] == ["history.rebuilt"]
    projection.offer([row(1, 60)], 1)
    assert await all_rows(projection) == [row(1, 60)]
    projection.stop()


@pytest.mark.parametrize(
    "spoil",
    [
        "PRAGMA user_version = 99",
        "DELETE FROM meta WHERE key = 'mark'",
        "DELETE FROM meta WHERE key = 'identity'",
        "UPDATE meta SET value = 'nonsense' WHERE key = 'mark'",
        "DROP TABLE gaps",
    ],
)
async def test_a_file_of_another_shape_is_begun_anew(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "history.sqlite"
    projection = Projection(path)
    projection.start()
    projection.offer([row(1, 60)], 1)
    projection.stop()
    with sqlite3.connect(path) as db:
        db.execute(spoil)
    db.close()
    projection.start()
    assert projection.mark == 0
    assert await all_rows(projection) == []
    projection.stop()


async def test_a_file_of_another_log_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    one = Projection(path, "cell-1")
    one.start()
    one.offer([row(1, 60)], 1_000_000)
    one.stop()
    two = Projection(path, "cell-2")
    two.start()
    assert two.mark == 0  # else all rows of the new log would be ignored
    two.stop()


async def test_damage_that_shows_in_a_query_is_repaired_and_leaves_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    projection = Projection(path)
    projection.start()
    projection.offer([row(index, index * 60) for index in range(1, 3000)], 2999)
    projection.stop()  # leaves all in the main file
    content = bytearray(path.read_bytes())
    content[65_536:] = b"\x5a" * len(content[65_536:])  # the first pages look well
    path.write_bytes(bytes(content))
    projection.start()
    with structlog.testing.capture_logs() as logs, pytest.raises(Unavailable, match="history"):
        await all_rows(projection)
    assert "history.rebuilt" in [line["event"] for line in logs]
    projection.offer([row(3000, 60)], 3000)
    assert await all_rows(projection) == [row(3000, 60)]
    assert await projection.gaps() == [Gap(0, 2999)]
    projection.stop()


async def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="history"):
        Projection(tmp_path / "file" / "history.sqlite").start()


async def test_what_the_disk_refuses_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    projection = Projection(path)
    projection.start()
    pages = (await projection.ask(lambda db: db.execute("PRAGMA page_count").fetchone()))[0]
    await projection.ask(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    rows = [row(index, index * 60) for index in range(1, 2000)]
    with structlog.testing.capture_logs() as logs:
        projection.offer(rows, 1999)
        await projection.counts()
    assert "history.refused" in [line["event"] for line in logs]
    assert projection.mark == 0
    await projection.ask(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    async with asyncio.timeout(30):
        await projection.caught_up(1999)
    assert await all_rows(projection) == rows[::-1]
    projection.stop()


async def test_a_full_backlog_becomes_a_gap(tmp_path: Path) -> None:
    projection = Projection(tmp_path / "history.sqlite", backlog_rows_max=10)
    projection.start()
    held, release = threading.Event(), threading.Event()

    def hold(_db: sqlite3.Connection) -> None:
        held.set()
        release.wait(30)

    holding = asyncio.create_task(projection.ask(hold))
    await asyncio.to_thread(held.wait, 10)
    with structlog.testing.capture_logs() as logs:
        for index in range(1, 15):
            projection.offer([row(index, index * 60)], index)
    release.set()
    await holding
    assert [line["event"] for line in logs] == ["history.dropped"] * 4
    assert [r.ended_index for r in await all_rows(projection)] == list(range(10, 0, -1))
    assert await projection.gaps() == [Gap(10, 14)]
    projection.offer([row(15, 0)], 15)
    assert len(await all_rows(projection)) == 11
    projection.stop()
