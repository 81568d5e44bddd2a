"""Tails as questions see them: off the loop's thread, up to what there was when they were asked."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cron.history.order import Match, Query
from cron.history.segment import Segment
from cron.history.tails import TailReader
from cron.launch_state import LaunchState
from cron.state.rows import Chunk, Row
from cron.state.tail import Tail
from snapshots.segments import Sections
from tests.unit.history_rig import Fed, row
from tests.unit.test_state_chunks import chunk


@pytest.fixture
async def fed(tmp_path: Path) -> AsyncIterator[Fed]:
    made = Fed(tmp_path)
    yield made
    made.row_store.stop()


async def test_a_tail_is_read_off_the_loops_thread(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65,536 rows of one job kept the loop for 150 ms."""
    threads = set()
    read = Tail.item

    def item(tail: Tail, number: int) -> Row | Chunk:
        threads.add(threading.current_thread())
        return read(tail, number)

    monkeypatch.setattr(Tail, "item", item)
    fed.add(row(1, 60), chunk(3, ended_index=2))
    assert len(await fed.row_store.newest(Query())) == 4
    assert len(await fed.row_store.of_job("default/j1", 0, 2**40)) == 1
    assert len(await fed.row_store.last_of_each(["default/j1", "default/backup"])) == 2
    assert threading.current_thread() not in threads
    assert len(threads) == 1


def test_a_question_does_not_see_what_was_appended_after_it_was_asked() -> None:
    tail = Tail()
    tail.append(chunk(3, number=0))
    reader = TailReader(tail)
    tail.append(chunk(3, ended_index=10, number=0))
    for items in (1, 2, 1):
        reader.upto(items)
        assert len(reader.newest(Match(), 100)) == 3 * items
        assert len(reader.of_job("default/j1", Match())) == items


def test_only_so_many_items_are_decoded_as_may_hold_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = Tail()
    for index in range(1, 101):
        tail.append(row(index, index * 60))
    decoded = []
    read = Tail.item
    monkeypatch.setattr(
        Tail, "item", lambda tail, number: decoded.append(number) or read(tail, number)
    )
    found = TailReader(tail).upto(100).newest(Match(), 3)
    assert {one.scheduled_s for one in found} >= {6000, 5940, 5880}
    assert len(decoded) <= 4


async def test_a_segment_without_a_state_is_passed_over_by_its_index(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare state over ten million rows took 6 s: each segment's times were read."""
    for index in range(1, 4):
        ends = LaunchState.CANCELLED if index == 1 else LaunchState.SUCCEEDED
        fed.add(chunk(30, ended_index=index, state=ends))
        fed.seal(index)
    asked = Query(states=frozenset({LaunchState.CANCELLED}))
    assert len(await fed.row_store.newest(asked)) == 30
    reads = []
    read = Sections.read
    monkeypatch.setattr(
        Sections, "read", lambda one, number: reads.append(one.path) or read(one, number)
    )
    assert len(await fed.row_store.newest(asked)) == 30
    assert len(set(reads)) == 1


async def test_a_list_of_all_jobs_reads_the_blocks_of_its_rows_alone(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of the last instant were read for it."""
    fed.add(chunk(5000))
    fed.seal(9)
    reads = []
    read = Segment._block
    monkeypatch.setattr(
        Segment, "_block", lambda one, number: reads.append(number) or read(one, number)
    )
    found = await fed.row_store.newest(Query(limit=2))
    assert [one.job for one in found] == ["default/j4999", "default/j4998"]
    assert len(reads) <= 2
