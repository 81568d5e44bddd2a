"""Which rows have output: all of them, in log order, entry by entry, without a look at the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cron.history.outputs import (
    ALL_SQL,
    COUNTED_MAX,
    Stretch,
    count_with_output,
    lacking,
    rows_with_output,
)
from cron.history.projection import Projection
from cron.history.schema import SCHEMA_VERSION, open_file
from cron.limits import LIFE_ENTRIES
from cron.state.archive import Stream
from cron.state.rows import Row
from launcher.launch import LaunchState
from tests.unit.test_history_projection import row, skipped
from tests.unit.test_history_projection_fill import segment


@pytest.fixture
async def projection(tmp_path: Path) -> AsyncIterator[Projection]:
    made = Projection(tmp_path / "history.sqlite", "cell-1")
    made.start()
    yield made
    made.stop()


def told(index: int, second: int = 60, **fields: object) -> Row:
    return row(index, second, **{"output_bytes": 5, **fields})


async def test_rows_without_output_are_left_out(projection: Projection) -> None:
    rows = [told(1), row(2, 60), told(3, state=LaunchState.FAILED), skipped(4, 60, 600), told(5)]
    projection.offer(rows, 5)
    found = await rows_with_output(projection, Stretch(0, 5), 10)
    assert found == [rows[0], rows[2], rows[4]]
    assert await count_with_output(projection, Stretch(0, 5)) == 3


async def test_a_stretch_begins_behind_its_first_index_and_ends_with_its_last(
    projection: Projection,
) -> None:
    rows = [told(index) for index in (3, 4, 5, 6)]
    projection.offer(rows, 6)
    assert await rows_with_output(projection, Stretch(3, 5), 10) == rows[1:3]
    assert await rows_with_output(projection, Stretch(5, 5), 10) == []
    assert await count_with_output(projection, Stretch(6, 3)) == 0


async def test_an_entry_comes_whole_or_not_at_all(projection: Projection) -> None:
    rows = [told(1), *(told(2, n) for n in range(5)), told(3)]
    projection.offer(rows, 3)
    assert await rows_with_output(projection, Stretch(0, 3), 1) == rows[:1]
    assert await rows_with_output(projection, Stretch(0, 3), 3) == rows[:6]
    assert await rows_with_output(projection, Stretch(1, 3), 2) == rows[1:6]
    assert await rows_with_output(projection, Stretch(0, 3), 100) == rows


async def test_lives_of_a_cell_follow_each_other(projection: Projection) -> None:
    rows = [told(7), told(LIFE_ENTRIES + 2), told(2 * LIFE_ENTRIES + 1)]
    projection.offer(rows, 2 * LIFE_ENTRIES + 1)
    stretch = Stretch(0, 2 * LIFE_ENTRIES + 5)
    assert await rows_with_output(projection, stretch, 10) == rows


async def test_rows_that_come_from_a_segment_are_found(projection: Projection) -> None:
    rows = [told(3), row(4, 60), told(5)]
    projection.offer([], 9, gap_from=0, gap_to=9)
    assert await rows_with_output(projection, Stretch(0, 9), 10) == []
    assert [gap.to_index for gap in (await lacking(projection)).gaps] == [9]
    record, content = segment(rows, 0, 9)
    await projection.fill(record, content, frozenset({record.key}))
    assert await rows_with_output(projection, Stretch(0, 9), 10) == [rows[0], rows[2]]
    assert (await lacking(projection)).gaps == []


_entries = st.lists(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=5), min_size=1, max_size=12
)


@given(entries=_entries, limit=st.integers(1, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
async def test_page_after_page_brings_all_of_them_once_in_log_order(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[list[tuple[bool, bool]]],
    limit: int,
) -> None:
    failed, done = LaunchState.FAILED, LaunchState.SUCCEEDED
    rows = [
        row(index, second, state=failed if fails else done, output_bytes=int(tells))
        for index, entry in enumerate(entries, 1)
        for second, (fails, tells) in enumerate(entry)
    ]
    made = Projection(tmp_path_factory.mktemp("pages") / "history.sqlite", "")
    made.start()
    try:
        made.offer(rows, len(entries))
        await made.caught_up(len(entries))
        found: list[Row] = []
        read_to, to_index = 0, len(entries)
        while read_to < to_index:
            page = await rows_with_output(made, Stretch(read_to, to_index), limit)
            found += page
            read_to = page[-1].ended_index if len(page) >= limit else to_index
    finally:
        made.stop()
    wanted = [one for one in rows if one.output_bytes]
    assert [one.ended_index for one in found] == [one.ended_index for one in wanted]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_a_question_reads_the_index_of_outputs_and_nothing_else(tmp_path: Path) -> None:
    db = open_file(tmp_path / "history.sqlite", "")
    for sql in ALL_SQL:
        steps = [found[3] for found in db.execute(f"EXPLAIN QUERY PLAN {sql}", (1, 2, 3))]
        searches = [step for step in steps if "outputs" in step]
        assert len(searches) == 1
        assert "INDEX outputs (seq>? AND seq<?)" in searches[0] or "rowid>?" in searches[0]
        assert not any("TEMP B-TREE" in step or step == "SCAN rows" for step in steps)
    db.close()


async def test_finding_a_few_among_many_takes_no_longer(
    projection: Projection, tmp_path: Path
) -> None:
    """What SQLite counts as its own steps: the same with a hundred rows and ten thousand."""
    steps = []
    index = 0
    for number in (100, 10_000):
        rows = [row(index + n, 60) for n in range(1, number)]
        index += number
        projection.offer([*rows, told(index)], index)
        await projection.caught_up(index)
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        with sqlite3.connect(tmp_path / "history.sqlite") as db:
            db.set_progress_handler(count, 1)
            for stream in Stream:
                low, high = stream << 62, (stream << 62) + (1 << 62) - 1
                db.execute(ALL_SQL[0], (low, high, 10)).fetchall()
        db.close()
        steps.append(counted)
    assert steps[1] <= 2 * steps[0]


async def test_counting_has_an_end(projection: Projection) -> None:
    assert COUNTED_MAX >= 100_000
    assert SCHEMA_VERSION >= 3, "older files have no such index and are begun anew"
