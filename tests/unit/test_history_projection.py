"""The projection: what it answers, and how few entries it reads for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cron.errors import LimitExceeded
from cron.history import queries
from cron.history.gaps import Gap
from cron.history.order import Query
from cron.history.projection import Projection
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
    known |= {"job": job, "scheduled_s": scheduled_s, "ended_index": index}
    return Row(**(known | fields))  # type: ignore[arg-type]


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


async def test_a_period_in_milliseconds_has_the_seconds_that_lie_in_it(
    projection: Projection,
) -> None:
    rows = [row(1, 60), row(2, 120)]
    projection.offer(rows, 2)
    assert await projection.newest(Query(since_ms=60_000, until_ms=120_000)) == rows[::-1]
    assert await projection.newest(Query(since_ms=60_001, until_ms=120_000)) == rows[1:]
    assert await projection.newest(Query(since_ms=60_000, until_ms=119_999)) == rows[:1]


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
    lasts = await projection.last_of_each([BACKUP, "default/never"])
    assert lasts == {BACKUP: row(1, 300)}


async def test_the_last_rows_of_many_jobs_are_asked_at_once(projection: Projection) -> None:
    jobs = [f"default/job-{number}" for number in range(2_500)]
    rows = [row(index + 1, 60 + index % 2, job=job) for index, job in enumerate(jobs)]
    rows += [row(3_000, 30, job=job, state=LaunchState.FAILED) for job in jobs]
    projection.offer(rows, 3_000)
    last = await projection.last_of_each([*jobs, "default/never"])
    assert last == {r.job: r for r in rows[:2_500]}


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
    async with asyncio.timeout(30):
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


async def test_a_question_that_fails_does_not_stop_the_others(projection: Projection) -> None:
    def fail(_db: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await projection.ask(fail)
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
