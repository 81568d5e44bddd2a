"""An executor's whole process life with a pool at the other end: what it offers and runs, and that
it ends when it is told that it is drained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.clock import boot_ms, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor import main as executor
from launcher.pool.events import Joined, Offered, Reported
from launcher.pool.lease import LeaseTimes
from launcher.protocol.reports import BatchReport, GroupOffer, RowReport
from launcher.protocol.status import Limiting, Reason, Status
from launcher.protocol.work import WorkSpec
from launcher.worker.wire import Result
from tests.unit.pool_rig import CELL, Rig, attempt, rigged
from tests.unit.pool_rig import order as order_of
from tests.unit.workers_rig import HANDLER, Puppet, names_of, until


@asynccontextmanager
async def living(rig: Rig, directory: Path, **settings: Any) -> AsyncIterator[asyncio.Task[int]]:
    """An executor that runs, and is welcome once it has joined."""
    leaders = (f"127.0.0.1:{rig.port}",)
    rig.mono, rig.wall = boot_ms(), wall_ms()
    config = ExecutorConfig(id="e1", data=str(directory), leaders=leaders, cell=CELL, **settings)
    task = asyncio.create_task(executor.run(config))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answered(rig: Rig) -> None:
    """Return once a heartbeat was answered, so that the executor takes work."""

    def answer() -> bool:
        rig.mono, rig.wall = boot_ms(), wall_ms()
        rig.pool.answer_heartbeats(rig.mono)
        return any(view.is_leased for view in rig.pool.sessions())

    await until(answer)


def said(rig: Rig, status: Status) -> list[RowReport]:
    """What was told with that status."""
    return [
        fact
        for event in rig.of(Reported)
        for fact in facts_of(event.batches)
        if fact.status is status
    ]


def facts_of(told: tuple[BatchReport, ...]) -> list[RowReport]:
    """All that was told, row by row."""
    return [fact for batch in told for fact in batch.row_reports()]


async def test_one_that_is_drained_ends_with_exit_code_0(tmp_path: Path) -> None:
    async with rigged() as rig, living(rig, tmp_path) as task:
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor)
        rig.pool.dismiss(joined.executor, "drained by alice")
        async with asyncio.timeout(60):
            assert await task == 0


async def test_one_that_comes_back_drained_ends_before_it_is_welcome(tmp_path: Path) -> None:
    async with rigged() as rig, living(rig, tmp_path) as task:
        joined = await rig.heard(Joined)
        rig.pool.dismiss(joined.executor, "drained by alice")
        async with asyncio.timeout(60):
            assert await task == 0


async def test_one_whose_ledger_is_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executor.loop.LEDGER_ROWS_MAX", 0)
    async with rigged() as rig, living(rig, tmp_path):
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor)
        await answered(rig)
        await until(lambda: rig.pool.sessions()[0].is_full)
        assert not rig.pool.sessions()[0].gets_work


async def test_one_that_is_only_refused_comes_again(tmp_path: Path) -> None:
    async with rigged() as rig, living(rig, tmp_path) as task:
        joined = await rig.heard(Joined)
        rig.pool.refuse(joined.executor, "once more")
        await rig.heard(Joined, 2)
        assert not task.done()


async def test_what_its_host_has_is_in_its_greeting(tmp_path: Path) -> None:
    has = {"cpu_milli": 3_000, "memory_bytes": 1 << 30, "labels": {"zone": "eu"}}
    async with rigged() as rig, living(rig, tmp_path, **has):
        joined = await rig.heard(Joined)
        assert (joined.greeting.cpu_milli, joined.greeting.memory_bytes) == (3_000, 1 << 30)
        assert joined.greeting.labels == {"zone": "eu"}


async def test_without_workers_there_is_no_socket_and_nothing_is_offered(tmp_path: Path) -> None:
    async with rigged() as rig, living(rig, tmp_path, workers=False):
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor)
        await answered(rig)
        assert not (tmp_path / "workers.sock").exists()
        assert not rig.of(Offered)


async def test_a_handlers_launch_goes_from_pool_to_worker_and_back(tmp_path: Path) -> None:
    async with rigged(LeaseTimes(20, 60_000, 70_000)) as rig, living(rig, tmp_path):
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor)
        puppet = await asyncio.to_thread(Puppet, tmp_path / "workers.sock")
        puppet.greet(threads=3, buffer=4)
        await rig.heard(Offered)
        assert rig.pool.sessions()[0].offers == (
            GroupOffer("app", 6, (HANDLER,), 3, Limiting.NONE),
        )
        await answered(rig)
        await puppet.read()
        work = msgspec.msgpack.encode(WorkSpec((), handler=HANDLER, payload=b"{}"))
        order = msgspec.structs.replace(order_of(1, work), not_after_ms=[wall_ms() + 60_000])
        assert rig.pool.order(joined.executor, joined.ledger, starts=[order])
        assert names_of(await puppet.tasks(1)) == [str(attempt(1))]
        puppet.start(str(attempt(1)))
        await until(lambda: len(said(rig, Status.ACCEPTED)) == 1)
        puppet.finish(str(attempt(1)), result=Result.SNOOZE, after_ms=90_000, detail="not yet")
        await until(lambda: len(said(rig, Status.ENDED)) == 1)
        [fact] = said(rig, Status.ENDED)
        assert (fact.index, fact.row) == (101, 0)
        assert (fact.reason, fact.retry_after_ms) == (Reason.SNOOZE, 90_000)
        assert (fact.detail, fact.exit_code) == ("not yet", 1)
        puppet.hang_up()
        await rig.heard(Offered, 2)
        puppet.end()
