"""Filling the projection from segments, and what leaves it: small cases, and how long they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cron.errors import InvariantViolated, Shutdown, Unavailable
from cron.history.gaps import Gap, narrowed, touches, widened
from cron.history.order import Query
from cron.history.places import Placing, log_order, place, places_in
from cron.history.projection import Projection
from cron.history.schema import Unusable
from cron.limits import LIFE_ENTRIES
from cron.state.archive import RowsDamaged, SegmentRecord, Stream, Tail, content_digest
from cron.state.rows import Row
from launcher.launch import LaunchState
from tests.unit.test_history_projection import BACKUP, all_rows, row


def segment(
    rows: list[Row], from_index: int, to_index: int, number: int = 1, stream: Stream = Stream.RUNS
) -> tuple[SegmentRecord, bytes]:
    tail = Tail()
    for one in rows:
        tail.append(one)
    content = tail.whole()
    record = SegmentRecord(
        1, number, stream, from_index, to_index, len(rows), len(content),
        content_digest(content), 0, 0, 0,
    )  # fmt: skip
    return record, content


@pytest.fixture
async def projection(tmp_path: Path) -> AsyncIterator[Projection]:
    made = Projection(tmp_path / "history.sqlite", "cell-1")
    made.start()
    yield made
    made.stop()


def test_places_are_in_log_order_and_fit_into_sqlite() -> None:
    indexes = [0, 1, 2, 7, 10**9, LIFE_ENTRIES, LIFE_ENTRIES + 5, 127 * LIFE_ENTRIES]
    for stream in Stream:
        places = [place(stream, index, nth) for index in indexes for nth in (0, 1, (1 << 19) - 1)]
        assert places == sorted(set(places))
        assert places[0] >= 0
        assert places[-1] < 1 << 63
    assert places_in(Stream.RUNS, 2, 7) == (
        place(Stream.RUNS, 3, 0), place(Stream.RUNS, 7, (1 << 19) - 1),
    )  # fmt: skip


def test_what_has_no_place_is_refused_and_never_put_elsewhere() -> None:
    for index, nth in ((128 * LIFE_ENTRIES, 0), (1 << 37, 0), (1, 1 << 19)):
        with pytest.raises(InvariantViolated, match="no place"):
            place(Stream.RUNS, index, nth)


def test_rows_of_an_entry_are_counted_for_each_stream() -> None:
    placing = Placing()
    lost = row(5, 60, state=LaunchState.LOST)
    got = [placing.place_of(one) for one in (row(5, 60), lost, row(5, 120), row(6, 60))]
    assert got == [
        place(Stream.RUNS, 5, 0), place(Stream.FAILURES, 5, 0),
        place(Stream.RUNS, 5, 1), place(Stream.RUNS, 6, 0),
    ]  # fmt: skip
    assert sorted(got, key=log_order) == got


def test_gaps_grow_together_and_shrink_from_anywhere() -> None:
    gaps = widened(widened([], Gap(10, 20)), Gap(30, 40))
    assert widened(gaps, Gap(20, 25)) == [Gap(10, 25), Gap(30, 40)]
    assert widened(gaps, Gap(15, 35)) == [Gap(10, 40)]
    assert widened(gaps, Gap(5, 5)) == gaps
    assert narrowed(gaps, Gap(15, 32)) == [Gap(10, 15), Gap(32, 40)]
    assert narrowed(gaps, Gap(12, 14)) == [Gap(10, 12), Gap(14, 20), Gap(30, 40)]
    assert narrowed(gaps, Gap(0, 100)) == []
    assert touches(gaps, 19, 21)
    assert not touches(gaps, 20, 30)


async def test_a_gap_closes_once_all_streams_of_its_seal_are_in(projection: Projection) -> None:
    ran, failed = row(3, 60), row(4, 120, state=LaunchState.FAILED)
    newer = row(12, 180)
    projection.offer([newer], 12, gap_from=0, gap_to=10)
    runs = segment([ran], 0, 10)
    failures = segment([failed], 0, 10, stream=Stream.FAILURES)
    seal = frozenset({runs[0].key, failures[0].key})
    await projection.fill(*runs, seal)
    assert await projection.gaps() == [Gap(0, 10)]
    assert (await projection.lacking()).filled == {runs[0].key}
    assert await all_rows(projection) == [newer, ran]
    await projection.fill(*failures, seal)
    lacking = await projection.lacking()
    assert not lacking.gaps
    assert not lacking.filled
    assert await all_rows(projection) == [newer, failed, ran]
    await projection.fill(*failures, seal)
    assert (await projection.counts()).rows == 3


async def test_a_gap_stays_where_a_segment_of_its_seal_is_gone(projection: Projection) -> None:
    projection.offer([], 12, gap_from=0, gap_to=10)
    record, content = segment([row(4, 60, state=LaunchState.LOST)], 0, 10, stream=Stream.FAILURES)
    await projection.fill(record, content, frozenset())
    lacking = await projection.lacking()
    assert lacking.gaps == [Gap(0, 10)]
    assert lacking.filled == {record.key}
    await projection.retain([], 10)
    assert (await projection.lacking()).filled == frozenset()
    assert await all_rows(projection) == []


async def test_what_no_segment_has_any_more_leaves_and_is_told(projection: Projection) -> None:
    rows = [row(index, index * 60) for index in range(1, 6_001)]
    projection.offer(rows, 6_000)
    kept, _ = segment(rows[4_999:5_500], 4_999, 5_500, number=2)
    await projection.retain([kept], 5_500)
    assert await all_rows(projection) == rows[:4_998:-1]
    assert await projection.gaps() == [Gap(0, 4_999)]
    counts = await projection.counts()
    assert (counts.rows, counts.instants) == (1_001, {LaunchState.SUCCEEDED: 1_001})


async def test_a_segment_waits_for_the_mark_so_that_nothing_comes_twice(
    projection: Projection,
) -> None:
    rows = [row(1, 60), row(2, 120)]
    record, content = segment(rows, 0, 4)
    filling = asyncio.create_task(projection.fill(record, content, frozenset({record.key})))
    await projection.counts()
    assert not filling.done()
    projection.offer(rows, 4)
    async with asyncio.timeout(30):
        await filling
    assert (await projection.counts()).rows == 2


async def test_tails_close_the_gap_that_damage_left(projection: Projection) -> None:
    rows = [row(index, index * 60) for index in range(1, 9)]
    projection.offer(rows, 8)

    def find_damage(_db: object) -> None:
        raise Unusable("a test says so")

    with pytest.raises(Unavailable):
        await projection.ask(find_damage)
    assert await projection.gaps() == [Gap(0, 8)]
    projection.mend(rows[3:], 3, 8)
    assert await projection.gaps() == [Gap(0, 3)]
    projection.mend(rows[3:], 3, 8)
    assert await all_rows(projection) == rows[:2:-1]
    assert (await projection.counts()).rows == 5


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xdd\x00\x00\x00\x02\x90\x90", b"\xdd\x7f\xff\xff\xff", b"\xc0",
        segment([row(1, 60)], 0, 10)[1], segment([row(1, 60), row(11, 60)], 0, 20)[1],
        segment([row(1, 60), row(2, 60, state=LaunchState.LOST)], 0, 10)[1],
    ],
)  # fmt: skip
async def test_content_that_is_not_what_the_record_says_is_refused(
    projection: Projection, content: bytes
) -> None:
    projection.offer([], 12, gap_from=0, gap_to=10)
    record, _ = segment([row(1, 60), row(2, 60)], 0, 10)
    with pytest.raises(RowsDamaged):
        await projection.fill(record, content, frozenset({record.key}))
    assert await projection.gaps() == [Gap(0, 10)]
    assert (await projection.lacking()).filled == frozenset()


async def test_a_full_disk_ends_a_fill_and_it_is_tried_again(projection: Projection) -> None:
    rows = [row(index, index * 60) for index in range(1, 9_000)]
    record, content = segment(rows, 0, 9_000)
    projection.offer([], 9_000, gap_from=0, gap_to=9_000)
    pages = (await projection.ask(lambda db: db.execute("PRAGMA page_count").fetchone()))[0]
    set_max = "PRAGMA max_page_count = {}"
    await projection.ask(lambda db: db.execute(set_max.format(pages + 150)).fetchone())
    with pytest.raises(Unavailable, match="disk"):
        await projection.fill(record, content, frozenset({record.key}))
    assert await projection.gaps() == [Gap(0, 9_000)]
    assert 0 < (await projection.counts()).rows < 9_000
    await projection.ask(lambda db: db.execute(set_max.format(1_000_000)).fetchone())
    await projection.fill(record, content, frozenset({record.key}))
    assert await all_rows(projection) == rows[::-1]
    assert (await projection.counts()).rows == len(rows)


async def test_a_stop_ends_a_fill(projection: Projection) -> None:
    record, content = segment([row(n, n) for n in range(1, 9_000)], 0, 9_000)
    filling = asyncio.create_task(projection.fill(record, content, frozenset()))
    await asyncio.sleep(0)
    projection.stop()
    with pytest.raises(Shutdown):
        await filling


async def test_questions_are_answered_while_a_segment_is_filled(projection: Projection) -> None:
    """The longest wait is printed (pytest -s), and how many were answered meanwhile asserted."""
    rows = [row(n, 1_700_000_000 + n, job=f"default/j{n % 1000}") for n in range(1, 65_537)]
    record, content = segment(rows, 0, 65_536)
    projection.offer([row(70_000, 60)], 70_000, gap_from=0, gap_to=65_536)
    told: list[int] = []
    begun = time.perf_counter()
    filling = asyncio.create_task(
        projection.fill(record, content, frozenset({record.key}), told.append)
    )
    await asyncio.sleep(0)
    waits = []
    while not filling.done():
        asked = time.perf_counter()
        assert await projection.newest(Query(BACKUP, limit=10)) == [row(70_000, 60)]
        waits.append(time.perf_counter() - asked)
    await filling
    took = time.perf_counter() - begun
    print(f"{took:.2f} s in all, {max(waits) * 1000:.0f} ms for the slowest of {len(waits)}")
    assert len(waits) > 2
    assert told == sorted(told)
    assert told[-1] == 65_536
    assert (await projection.counts()).rows == 65_537
    assert await projection.gaps() == []
