"""What nobody has is not asked for all the time; what comes after all is there soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cron.errors import Unavailable
from cron.state.archive import SegmentRecord
from cron.storage import history_backfill as filling
from tests.unit.disk_rig import Disk, life, until


class Nobody:
    """A source that has nothing, and says so in the words of `why`."""

    def __init__(self) -> None:
        self.asked = 0
        self.why = ""

    async def fetch(self, record: SegmentRecord, folder: Path) -> bool:
        assert record.rows
        assert folder.name == "incoming"
        self.asked += 1
        if self.why:
            raise Unavailable(self.why)
        return False


@pytest_asyncio.fixture
async def empty(tmp_path: Path) -> AsyncIterator[Disk]:
    """A replica that begins with the dump of another, and has no segment of its own."""
    log = life(1)
    other = Disk(tmp_path / "r1", log).start()
    other.apply()
    await asyncio.to_thread(other.writer.wait_durable)
    one = Disk(tmp_path / "r2", log).start()
    one.restore(other)
    yield one
    other.stop()
    one.stop()


class Rests:
    """The rests that the backfill takes, which end at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[float] = []
        real = asyncio.sleep

        async def sleep(delay_s: float) -> None:
            self.taken.append(delay_s)
            await real(0.001)

        monkeypatch.setattr(asyncio, "sleep", sleep)


async def test_it_rests_longer_each_time_and_tells_once(
    empty: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, rests = Nobody(), Rests(monkeypatch)
    empty.backfill.sources = [source]
    task = asyncio.create_task(empty.backfill.run())
    long = [one for one in rests.taken if one >= filling.RETRY_S]
    try:
        async with asyncio.timeout(60):
            while len(long) < 8:
                await asyncio.wait([task], timeout=0.01)
                long = [one for one in rests.taken if one >= filling.RETRY_S]
        assert long[:8] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        assert capsys.readouterr().out.count("history.incomplete") == 1
        source.why = "r3 does not answer"
        before = len(rests.taken)
        async with asyncio.timeout(60):
            while 2.0 not in rests.taken[before:]:
                await asyncio.wait([task], timeout=0.01)
        assert "r3 does not answer" in capsys.readouterr().out, "another reason is news"
    finally:
        task.cancel()


async def test_what_is_complete_again_ends_the_rests(
    empty: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Rests(monkeypatch)
    source = Nobody()
    empty.backfill.sources = [source]
    task = asyncio.create_task(empty.backfill.run())
    try:
        async with asyncio.timeout(60):
            while source.asked < 3:
                await asyncio.wait([task], timeout=0.01)
        for path in (tmp_path / "r1/segments").glob("*.seg"):
            (empty.writer.folders.incoming / path.name).write_bytes(path.read_bytes())
        for record in empty.writer.missing():
            empty.writer.admit(record)
        await until(lambda: empty.backfill.progress == "")
        assert empty.writer.missing() == []
    finally:
        task.cancel()
