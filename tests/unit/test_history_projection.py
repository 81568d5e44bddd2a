"""The projection: what it answers, and what is left of it after kills, power loss and damage."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from cron.errors import LimitExceeded, Shutdown, Unavailable
from cron.history import queries
from cron.history.projection import Projection
from cron.history.queries import Gap, Query
from cron.history.schema import open_file
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason
from launcher.names import LaunchName
from launcher.work import Epoch

BACKUP = "default/backup"


def row(index: int, scheduled_s: int, *, job: str = BACKUP, **fields: object) -> Row:
    known: dict[str, object] = {
        "kind": RowKind.ENDED,
        "revision": 1,
        "trigger": 0,
        "attempt": 1,
        "state": LaunchState.SUCCEEDED,
        "reason": Reason.NONE,
        "ended_at_ms": scheduled_s * 1000 + 900,
    }
    return Row(job=job, scheduled_s=scheduled_s, ended_index=index, **(known | fields))  # type: ignore[arg-type]


def skipped(index: int, first_s: int, last_s: int, *, job: str = BACKUP) -> Row:
    return row(
        index,
        first_s,
        job=job,
        kind=RowKind.RANGE,
        state=LaunchState.SKIPPED,
        reason=Reason.PAUSED,
        attempt=0,
        last_s=last_s,
        count=(last_s - first_s) // 60 + 1,
    )


@pytest.fixture
async def projection(tmp_path: Path) -> AsyncIterator[Projection]:
    made = Projection(tmp_path / "history.sqlite", "cell-1")
    made.start()
    yield made
    made.stop()


async def all_rows(projection: Projection) -> list[Row]:
    return await projection.newest(Query(limit=100_000))


async def test_rows_come_back_as_they_were_newest_scheduled_time_first(
    projection: Projection,
) -> None:
    old, new = row(5, 100, epoch=Epoch(1, 2, "r3"), detail="für"), row(4, 200)
    projection.offer([new, old], 5)
    assert await all_rows(projection) == [new, old]
    assert projection.mark == 5


async def test_rows_of_one_instant_are_ordered_by_attempt_then_log(
    projection: Projection,
) -> None:
    first, second = row(1, 100, attempt=1, state=LaunchState.LOST), row(2, 100, attempt=2)
    late = row(3, 100, attempt=1, kind=RowKind.AMENDMENT)
    projection.offer([first, second, late], 3)
    assert await all_rows(projection) == [second, late, first]
    assert await projection.of_launch(LaunchName(BACKUP, 100)) == [first, second, late]


async def test_a_query_takes_job_states_period_and_limit_together(projection: Projection) -> None:
    rows = [
        row(
            index,
            index * 60,
            job=f"default/j{index % 3}",
            state=LaunchState.FAILED if index % 2 else LaunchState.SUCCEEDED,
        )
        for index in range(1, 100)
    ]
    projection.offer(rows, 99)
    query = Query(
        "default/j1", frozenset({LaunchState.FAILED}), since_ms=600_001, until_ms=3_000_000, limit=3
    )
    expected = [
        r
        for r in reversed(rows)
        if r.job == "default/j1" and r.state is LaunchState.FAILED and 660 <= r.scheduled_s <= 3000
    ]
    assert await projection.newest(query) == expected[:3]
    assert len(expected) > 3


async def test_a_launch_has_its_attempts_and_the_range_around_it(projection: Projection) -> None:
    around, beside = skipped(1, 60, 600), skipped(2, 660, 1200)
    again = row(3, 120, by="ann")
    triggered = row(4, 120, trigger=1)
    projection.offer([around, beside, again, triggered], 4)
    assert await projection.of_launch(LaunchName(BACKUP, 120)) == [around, again]
    assert await projection.of_launch(LaunchName(BACKUP, 120, 1)) == [triggered]
    assert await projection.of_launch(LaunchName(BACKUP, 600)) == [around]
    assert await projection.of_launch(LaunchName(BACKUP, 601)) == []
    assert await projection.of_launch(LaunchName("default/other", 120)) == []


async def test_a_range_of_years_is_found_from_its_middle(projection: Projection) -> None:
    years = skipped(1, 60, 60 + 20 * 365 * 86_400)
    projection.offer([years, *(skipped(i, i * 60, i * 60) for i in range(2, 50))], 50)
    middle_s = 10 * 365 * 86_400
    assert await projection.of_launch(LaunchName(BACKUP, middle_s)) == [years]
    assert await projection.of_job(BACKUP, middle_s, middle_s + 1) == [years]
    period = Query(since_ms=middle_s * 1000, until_ms=middle_s * 1000)
    assert await projection.newest(period) == [years]


async def test_rows_of_a_job_are_in_scheduled_order_and_never_cut_off(
    projection: Projection,
) -> None:
    rows = [row(1, 300), row(2, 180), skipped(3, 0, 240), row(4, 300, attempt=2)]
    projection.offer(rows, 4)
    assert await projection.of_job(BACKUP, 200, 300) == [rows[2], rows[0], rows[3]]
    assert len(await projection.of_job(BACKUP, 0, 300, 4)) == 4
    with pytest.raises(LimitExceeded, match="more than 3 rows"):
        await projection.of_job(BACKUP, 0, 300, 3)


async def test_the_last_row_of_a_job_is_the_one_with_the_newest_scheduled_time(
    projection: Projection,
) -> None:
    projection.offer([row(1, 300), row(2, 60), row(3, 900, job="default/other")], 3)
    assert await projection.last_of(BACKUP) == row(1, 300)
    assert await projection.last_of("default/never") is None


async def test_counts_count_every_instant_of_a_range(projection: Projection) -> None:
    projection.offer([skipped(1, 0, 600), row(2, 660), row(3, 660, kind=RowKind.AMENDMENT)], 3)
    projection.offer([row(4, 720)], 4)
    counts = await projection.counts()
    assert counts.instants == {LaunchState.SKIPPED: 11, LaunchState.SUCCEEDED: 2}
    assert (counts.rows, counts.amendments) == (4, 1)


async def test_more_rows_than_one_answer_may_have_are_refused(projection: Projection) -> None:
    with pytest.raises(LimitExceeded):
        await projection.newest(Query(limit=100_001))


async def test_caught_up_waits_for_the_mark(projection: Projection) -> None:
    waiting = asyncio.create_task(projection.caught_up(7))
    projection.offer([row(5, 60)], 6)
    await projection.counts()
    assert not waiting.done()
    projection.offer([], 8)
    async with asyncio.timeout(10):
        await waiting
    assert projection.mark == 8
    await projection.caught_up(3)


async def test_offering_again_changes_nothing(projection: Projection) -> None:
    rows = [row(index, index * 60) for index in range(1, 20)]
    projection.offer(rows[:10], 10)
    projection.offer(rows[5:15], 15)
    projection.offer(rows, 19)
    projection.offer(rows, 19)
    assert await all_rows(projection) == rows[::-1]
    assert (await projection.counts()).rows == 19


async def test_all_rows_of_one_entry_are_taken_together(projection: Projection) -> None:
    rows = [row(3, 60 * n) for n in range(5)]
    projection.offer(rows, 3)
    projection.offer(rows, 3)
    assert len(await all_rows(projection)) == 5


async def test_gaps_are_shown_merged_and_only_where_nothing_was_known(
    projection: Projection,
) -> None:
    projection.offer([row(1, 60)], 10)
    projection.offer([row(25, 120)], 30, gap_from=5, gap_to=20)  # 5..10 was known
    projection.offer([], 40, gap_from=0, gap_to=30)  # all known by now
    projection.offer([], 60, gap_from=45, gap_to=50)
    projection.offer([], 80, gap_from=0, gap_to=80)
    assert await projection.gaps() == [Gap(10, 20), Gap(45, 50), Gap(60, 80)]
    projection.offer([], 90, gap_from=0, gap_to=90)
    assert await projection.gaps() == [Gap(10, 20), Gap(45, 50), Gap(60, 90)]


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
        release.wait(10)

    holding = asyncio.create_task(killed._ask(hold))
    await asyncio.to_thread(held.wait, 10)
    killed.offer(rows[10:], 29)
    stopping = asyncio.create_task(asyncio.to_thread(killed.stop, flush=False))
    async with asyncio.timeout(10):
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
    pages = (await projection._ask(lambda db: db.execute("PRAGMA page_count").fetchone()))[0]
    await projection._ask(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    rows = [row(index, index * 60) for index in range(1, 2000)]
    with structlog.testing.capture_logs() as logs:
        projection.offer(rows, 1999)
        await projection.counts()
    assert "history.refused" in [line["event"] for line in logs]
    assert projection.mark == 0
    await projection._ask(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    async with asyncio.timeout(10):
        await projection.caught_up(1999)
    assert await all_rows(projection) == rows[::-1]
    projection.stop()


async def test_a_full_backlog_becomes_a_gap(tmp_path: Path) -> None:
    projection = Projection(tmp_path / "history.sqlite", backlog_rows_max=10)
    projection.start()
    held, release = threading.Event(), threading.Event()

    def hold(_db: sqlite3.Connection) -> None:
        held.set()
        release.wait(10)

    holding = asyncio.create_task(projection._ask(hold))
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


async def test_a_question_that_fails_does_not_stop_the_others(projection: Projection) -> None:
    def fail(_db: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await projection._ask(fail)
    assert (await projection.counts()).rows == 0


async def test_an_asker_that_has_gone_is_no_trouble(projection: Projection) -> None:
    waiting = asyncio.create_task(projection.caught_up(5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    projection.offer([row(5, 60)], 5)
    assert len(await all_rows(projection)) == 1


@pytest.mark.parametrize("sql", queries.ALL_SQL)
def test_no_query_scans_or_sorts_the_history(tmp_path: Path, sql: str) -> None:
    db = open_file(tmp_path / "history.sqlite", "")
    wanted = {"job": 1, "state": 4, "since": 0, "until": 9, "at": 9, "limit": 50}
    plan = [found[3] for found in db.execute(f"EXPLAIN QUERY PLAN {sql}", wanted)]
    db.close()
    assert any(step.startswith("SEARCH rows USING") for step in plan)
    # The few dozen levels may be scanned and the few ranges over one instant sorted; else nothing.
    allowed = {"SCAN levels", "USE TEMP B-TREE FOR ORDER BY"} if "levels" in sql else set()
    rest = {step for step in plan if not step.startswith("SEARCH rows USING")}
    assert rest <= allowed


def test_searches_are_bounded_by_the_period(tmp_path: Path) -> None:
    db = open_file(tmp_path / "history.sqlite", "")
    for sql in queries.ALL_SQL:
        plan = " ".join(
            found[3]
            for found in db.execute(
                f"EXPLAIN QUERY PLAN {sql}",
                {"job": 1, "state": 4, "since": 0, "until": 9, "at": 9, "limit": 50},
            )
        )
        assert "newest_s>? AND newest_s<?" in plan
    db.close()


async def test_the_time_that_a_hundred_thousand_rows_take(tmp_path: Path) -> None:
    """Printed (pytest -s), never asserted: the machine is shared."""
    projection = Projection(tmp_path / "history.sqlite")
    projection.start()
    rows = [
        row(
            index // 100 + 1,
            1_700_000_000 + index // 100,
            job=f"default/job-{index % 1000}",
            epoch=Epoch(0, 4, "r1"),
            executor="executor-7",
            ledger="9b2d7f4e-0000-4000-8000-1234567890ab",
        )
        for index in range(100_000)
    ]
    begun = time.perf_counter()
    for at in range(0, len(rows), 1000):
        projection.offer(rows[at : at + 1000], at // 100 + 10)
    await projection.caught_up(1000)
    inserted = time.perf_counter()
    for _ in range(100):
        await projection.newest(Query("default/job-7"))
    asked = time.perf_counter()
    print(f"{(inserted - begun) * 10:.1f} us a row, {(asked - inserted) * 10:.2f} ms a query")
    assert (await projection.counts()).rows == 100_000
    projection.stop()
