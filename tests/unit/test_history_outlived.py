"""Which segments nobody needs for the number of launches that a job is to keep."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cron.history.outlived import ALL_SQL
from cron.history.projection import Projection
from cron.state import commands as c
from cron.state.archive import SegmentRecord, Stream
from tests.unit.state_rig import StateRig, job
from tests.unit.test_state_keeping import ran


def ran_as(rig: StateRig, number: int, second: int) -> None:
    """Let a launch of the job of this number run."""
    rig.to(second)
    rig.account(second, number=number)
    rig.begin(second, number=number)
    rig.launched(second, number=number)
    rig.finished(second, number=number)


@pytest.fixture
def rig() -> StateRig:
    """Two jobs; the first segments have launches 60 and 120 of one, 60 of the other."""
    rig = StateRig()
    rig.put(job("backup"), job("rare"))
    rig.join()
    ran_as(rig, 1, 60)
    ran_as(rig, 2, 60)
    ran(rig, 120, fails=True)
    rig.append(c.Seal(1))
    return rig


@pytest.fixture
async def projection(tmp_path: Path) -> AsyncIterator[Projection]:
    made = Projection(tmp_path / "history.sqlite", "prod/r1")
    made.start()
    yield made
    made.stop()


def record(rig: StateRig, stream: Stream = Stream.RUNS) -> SegmentRecord:
    return rig.state.history.segments[(1, 1, stream)]


async def offer(projection: Projection, rig: StateRig) -> None:
    projection.offer(
        [row for row in rig.rows if row.ended_index > projection.mark], rig.state.index
    )
    await projection.caught_up(rig.state.index)


async def test_a_segment_is_outlived_once_each_of_its_jobs_has_enough_newer_rows(
    rig: StateRig, projection: Projection
) -> None:
    for second in (180, 240):
        ran_as(rig, 1, second)
    await offer(projection, rig)
    assert not await projection.outlived(record(rig), 1), "the rare job has none"
    ran_as(rig, 2, 3600)
    await offer(projection, rig)
    assert await projection.outlived(record(rig), 1)
    assert not await projection.outlived(record(rig), 2)
    # Of `backup` there are 120 (failed), 180 and 240 after 60: streams are counted together.
    ran_as(rig, 2, 3660)
    ran_as(rig, 2, 3720)
    await offer(projection, rig)
    assert await projection.outlived(record(rig), 3)
    assert not await projection.outlived(record(rig), 4)
    assert await projection.outlived(record(rig, Stream.FAILURES), 2)
    assert not await projection.outlived(record(rig, Stream.FAILURES), 3)


async def test_nothing_is_told_of_a_segment_whose_rows_are_not_all_here(
    rig: StateRig, projection: Projection
) -> None:
    for second in (180, 240):
        ran_as(rig, 1, second)
        ran_as(rig, 2, second)
    lost = [row for row in rig.rows if row.job != "default/rare" or row.scheduled_s % 3600 != 60]
    assert len(lost) == len(rig.rows) - 1
    projection.offer(lost, rig.state.index)
    await projection.caught_up(rig.state.index)
    assert not await projection.outlived(record(rig), 1)


async def test_counting_reads_no_more_of_the_index_than_it_needs(
    rig: StateRig, projection: Projection, tmp_path: Path
) -> None:
    await offer(projection, rig)
    with sqlite3.connect(tmp_path / "history.sqlite") as db:
        for sql in ALL_SQL:
            plan = db.execute(f"EXPLAIN QUERY PLAN {sql}", (1, 1, 1, 1)).fetchall()
            assert "USING COVERING INDEX by_job (job=? AND state=? AND newest_s>?)" in str(plan)
    db.close()
