"""Which segments nobody needs for the number of launches that a job is to keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cron.history.store import RowStore
from cron.state import commands as c
from cron.state.archive import Sealed, SegmentRecord, Stream
from tests.unit.history_rig import Fed
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
    return rig


@pytest.fixture
def sealed(rig: StateRig) -> tuple[Sealed, ...]:
    """The first segments."""
    return rig.append(c.Seal(1)).sealed


@pytest.fixture
async def row_store(
    rig: StateRig, sealed: tuple[Sealed, ...], tmp_path: Path
) -> AsyncIterator[RowStore]:
    fed = Fed(tmp_path, rig.state.history)
    fed.segment_files.waiting += sealed
    fed.segment_files.write()
    yield fed.row_store
    fed.row_store.stop()


def record(rig: StateRig, stream: Stream = Stream.RUNS) -> SegmentRecord:
    return rig.state.history.segments[(1, 1, stream)]


async def test_a_segment_is_outlived_once_each_of_its_jobs_has_enough_newer_rows(
    rig: StateRig, row_store: RowStore
) -> None:
    for second in (180, 240):
        ran_as(rig, 1, second)
    assert not await row_store.outlived(record(rig), 1), "the rare job has none"
    ran_as(rig, 2, 3600)
    assert await row_store.outlived(record(rig), 1)
    assert not await row_store.outlived(record(rig), 2)
    # Of `backup` there are 120 (failed), 180 and 240 after 60: streams are counted together.
    ran_as(rig, 2, 3660)
    ran_as(rig, 2, 3720)
    assert await row_store.outlived(record(rig), 3)
    assert not await row_store.outlived(record(rig), 4)
    assert await row_store.outlived(record(rig, Stream.FAILURES), 2)
    assert not await row_store.outlived(record(rig, Stream.FAILURES), 3)


async def test_nothing_is_told_of_a_segment_whose_rows_are_not_here(
    rig: StateRig, row_store: RowStore
) -> None:
    for second in (180, 240):
        ran_as(rig, 1, second)
        ran_as(rig, 2, second)
    assert await row_store.outlived(record(rig), 1)
    segment_files: Any = row_store.segment_files
    segment_files.remove(record(rig))
    assert not await row_store.outlived(record(rig), 1)
