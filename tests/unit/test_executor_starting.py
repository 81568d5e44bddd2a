"""What was never given to a worker is known after the executor was killed, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.executor.loop import interrupt_all
from launcher.executor.refusals import LATE, WAITED
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED, REFUSED
from launcher.protocol.reports import RowReport
from tests.unit.rows_rig import found
from tests.unit.workers_rig import Floor, floor, named, names_of, running, until

A, B = (named(number) for number in range(2))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as shop:
        yield shop


async def interrupted(shop: Floor) -> list[str]:
    """What the next executor finds of this one, which is killed now."""
    await shop.halt()
    shop.ledger.is_same_boot = True
    rows = await asyncio.wrap_future(shop.thread.submit(interrupt_all, shop.ledger, "executor"))
    return [row.name for row in rows if row.status == INTERRUPTED]


async def row_of(shop: Floor, name: str) -> RowReport:
    return (await asyncio.wrap_future(shop.thread.submit(found, shop.ledger)))[name]


async def test_what_never_left_a_killed_executor_is_refused_and_not_lost(shop: Floor) -> None:
    await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.executor_loop.running == 2)
    assert await interrupted(shop) == [A]
    assert shop.on_disk(A) == INTERRUPTED
    row = await row_of(shop, B)
    assert (row.status, row.detail, row.started_ms) == (REFUSED, WAITED, 0)


async def test_what_was_given_and_had_not_begun_may_have(shop: Floor) -> None:
    puppet = await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.executor_loop.running == 2)
    puppet.finish(A)
    assert names_of(await puppet.tasks(1)) == [B]
    await until(lambda: shop.on_disk(A) == ENDED)
    assert await interrupted(shop) == [B]
    assert shop.on_disk(B) == INTERRUPTED


async def test_a_command_may_have_begun(shop: Floor) -> None:
    shop.order(names=(A,), command="sleep 60")
    await shop.told(A, ACCEPTED)
    assert await interrupted(shop) == [A]


async def test_what_a_dead_worker_gave_back_counts_as_given(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=1)
    shop.give(A, B)
    await puppet.tasks(2)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    puppet.signal(9)
    await until(lambda: shop.book.status(A) == ENDED)
    assert shop.executor_loop.running == 1  # the other waits again
    assert await interrupted(shop) == [B]


async def test_what_was_refused_in_time_stays_so(shop: Floor) -> None:
    await running(shop, A, threads=1, buffer=0)
    shop.give(B, late_ms=-2_000)
    assert (await shop.told(B, REFUSED)).detail == LATE
    assert await interrupted(shop) == [A]
    assert (await row_of(shop, B)).detail == LATE
