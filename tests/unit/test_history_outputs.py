"""Which rows have output: all of them, in log order, entry by entry, without a look at the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cron.history.gaps import Gap
from cron.history.tails import Stretch
from cron.limits import LIFE_ENTRIES
from cron.state.rows import Row
from launcher.launch import LaunchState
from tests.unit.history_rig import Fed, row, skipped


@pytest.fixture
async def fed(tmp_path: Path) -> AsyncIterator[Fed]:
    made = Fed(tmp_path)
    yield made
    made.row_store.stop()


def told(index: int, second: int = 60, **fields: object) -> Row:
    return row(index, second, **{"output_bytes": 5, **fields})


async def test_rows_without_output_are_left_out(fed: Fed) -> None:
    rows = [told(1), row(2, 60), told(3, state=LaunchState.FAILED), skipped(4, 60, 600), told(5)]
    fed.add(*rows)
    found = await fed.row_store.rows_with_output(Stretch(0, 5), 10)
    assert found == [rows[0], rows[2], rows[4]]
    assert await fed.row_store.count_with_output(Stretch(0, 5)) == 3


async def test_a_stretch_begins_behind_its_first_index_and_ends_with_its_last(
    fed: Fed,
) -> None:
    rows = [told(index) for index in (3, 4, 5, 6)]
    fed.add(*rows)
    assert await fed.row_store.rows_with_output(Stretch(3, 5), 10) == rows[1:3]
    assert await fed.row_store.rows_with_output(Stretch(5, 5), 10) == []
    assert await fed.row_store.count_with_output(Stretch(6, 3)) == 0


async def test_an_entry_comes_whole_or_not_at_all(fed: Fed) -> None:
    rows = [told(1), *(told(2, n) for n in range(5)), told(3)]
    fed.add(*rows)
    assert await fed.row_store.rows_with_output(Stretch(0, 3), 1) == rows[:1]
    assert await fed.row_store.rows_with_output(Stretch(0, 3), 3) == rows[:6]
    assert await fed.row_store.rows_with_output(Stretch(1, 3), 2) == rows[1:6]
    assert await fed.row_store.rows_with_output(Stretch(0, 3), 100) == rows


async def test_lives_of_a_cell_follow_each_other(fed: Fed) -> None:
    rows = [told(7), told(LIFE_ENTRIES + 2), told(2 * LIFE_ENTRIES + 1)]
    fed.add(*rows)
    stretch = Stretch(0, 2 * LIFE_ENTRIES + 5)
    assert await fed.row_store.rows_with_output(stretch, 10) == rows


async def test_rows_that_come_from_a_segment_are_found(fed: Fed) -> None:
    rows = [told(3), row(4, 60), told(5)]
    fed.add(*rows)
    fed.seal(9, writes=False)
    for _ in range(2):
        assert await fed.row_store.rows_with_output(Stretch(0, 9), 10) == [rows[0], rows[2]]
        fed.shelf.write()
    (record,) = fed.history.segments.values()
    fed.shelf.remove(record)
    assert await fed.row_store.rows_with_output(Stretch(0, 9), 10) == []
    assert fed.row_store.gaps() == [Gap(0, 9)]


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
    fed = Fed(tmp_path_factory.mktemp("pages"))
    fed.add(*rows)
    found: list[Row] = []
    read_to, to_index = 0, len(entries)
    while read_to < to_index:
        page = await fed.row_store.rows_with_output(Stretch(read_to, to_index), limit)
        found += page
        read_to = page[-1].ended_index if len(page) >= limit else to_index
    fed.row_store.stop()
    wanted = [one for one in rows if one.output_bytes]
    assert [one.ended_index for one in found] == [one.ended_index for one in wanted]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
