"""A gap between two leases: what an executor had before it may have been begun elsewhere.

Who was stopped wakes without a lease and may have another one before anything else is done, as long
as nothing of before profits from it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.executor.refusals import LEASE_OVER
from launcher.executor.rows import ACCEPTED, ENDED, REFUSED
from launcher.protocol.status import Reason
from tests.unit.test_executor_loop import Shop
from tests.unit.workers_rig import Floor, floor, named, names_of, running, until

A, B, C = named(1), named(2), named(3)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


def wake_after_a_gap(shop: Shop) -> None:
    """What an executor that was stopped reads first: the answer that gives it another lease."""
    executor_loop = shop.executor_loop
    executor_loop.lease.until_ms = boot_ms() - 1
    assert executor_loop.answered(executor_loop.lease.sent(boot_ms()))
    assert executor_loop.lease.valid(boot_ms())


async def test_what_waited_for_a_worker_is_refused(shop: Floor) -> None:
    await running(shop, A, threads=1, buffer=0)
    shop.give(B, guarded=True)
    await until(lambda: shop.executor_loop.running == 2)
    wake_after_a_gap(shop)
    assert (await shop.told(B, REFUSED)).detail == LEASE_OVER
    assert shop.book.status(A) == ACCEPTED, "it is not guarded, and goes on"


async def test_what_a_worker_had_and_did_not_begin_is_refused_once_the_worker_is_dead(
    shop: Floor,
) -> None:
    first = await running(shop, A, threads=1, buffer=1)
    shop.give(B, guarded=True)
    await first.tasks(1)
    other = await shop.puppet()
    wake_after_a_gap(shop)
    assert await first.exit_code() == -signal.SIGKILL
    assert (await shop.told(B, REFUSED)).detail == LEASE_OVER
    assert (await shop.told(A, ENDED)).reason == Reason.WORKER_DIED
    shop.give(C)
    assert names_of(await other.tasks(1)) == [C], "B went to nobody else"


async def test_an_order_of_before_the_gap_is_refused_and_one_of_afterwards_is_not(
    shop: Floor,
) -> None:
    puppet = await shop.puppet()
    shop.give(A)
    shop.order(names=(B,), command="true")
    wake_after_a_gap(shop)
    shop.give(C)
    for name in (A, B):
        assert (await shop.told(name, REFUSED)).detail == LEASE_OVER
    assert names_of(await puppet.tasks(1)) == [C]


async def test_what_was_being_written_when_the_gap_came_is_not_started(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.open()
    may_write, ran = threading.Event(), tmp_path / "ran"
    try:
        shop.executor_loop.attach(shop.ear)
        await shop.turn()
        shop.thread.submit(may_write.wait)
        shop.order(names=(A,), command=f"touch {ran}")
        turn = asyncio.create_task(shop.turn())
        await asyncio.sleep(0)
        wake_after_a_gap(shop)
        may_write.set()
        await turn
        await shop.turns_until(lambda: shop.on_disk(A) == REFUSED)
        shop.order(names=(B,), command="true")
        await shop.turns_until(lambda: shop.on_disk(B) == ENDED)
        assert not ran.exists()
    finally:
        may_write.set()
        await shop.close()


async def test_a_lease_that_is_renewed_in_time_takes_nothing_away(shop: Floor) -> None:
    puppet = await running(shop, A, threads=1, buffer=0)
    shop.give(B, guarded=True)
    await until(lambda: shop.executor_loop.running == 2)
    assert shop.executor_loop.answered(shop.executor_loop.lease.sent(boot_ms()))
    puppet.finish(A)
    assert names_of(await puppet.tasks(1)) == [B]


async def test_an_answer_to_nothing_renews_nothing(shop: Floor) -> None:
    until_ms = shop.executor_loop.lease.until_ms
    assert not shop.executor_loop.answered(77)
    assert shop.executor_loop.lease.until_ms == until_ms


async def test_a_guarded_command_of_before_the_gap_is_killed_and_the_other_is_not(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    await shop.open()
    try:
        shop.executor_loop.attach(shop.ear)
        shop.order(names=(A,), command="sleep 60", is_guarded=True)
        shop.order(names=(B,), command="sleep 60")
        told = shop.ear.told
        await shop.turns_until(lambda: (A, ACCEPTED) in told and (B, ACCEPTED) in told)
        wake_after_a_gap(shop)
        await shop.turns_until(lambda: shop.on_disk(A) == ENDED)
        shop.order(names=(C,), command="true")
        await shop.turns_until(lambda: shop.on_disk(C) == ENDED)
        assert shop.on_disk(B) == ACCEPTED
    finally:
        await shop.close()
