"""How many launches a group of workers asks for: few long ones, many short ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.clock import wall_ms
from launcher.executor.handlers.groups import AHEAD_US
from launcher.executor.rows import ENDED
from tests.unit.workers_rig import Floor, Puppet, floor, named, names_of, until


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as shop:
        yield shop


async def run(shop: Floor, puppet: Puppet, count: int, took_ms: int, job: str = "mail") -> None:
    """Let launches run that take so long."""
    names = [named(number, job) for number in range(count)]
    shop.give(*names)
    left = set(names)
    while left:
        given = names_of(await puppet.run())
        puppet.finish(*given, started_ms=wall_ms() - took_ms)
        left.difference_update(given)
    await until(lambda: all(shop.book.status(name) == ENDED for name in names))


def slots(shop: Floor) -> int:
    return shop.ear.offers[-1][0].slots


async def test_before_anything_is_known_each_thread_gets_one_more(shop: Floor) -> None:
    await shop.puppet(threads=4, buffer=50)
    await until(lambda: len(shop.ear.offers) == 1)
    assert slots(shop) == 8


async def test_of_short_ones_as_many_are_asked_for_as_hide_the_way_to_the_leader(
    shop: Floor,
) -> None:
    puppet = await shop.puppet(threads=4, buffer=50)
    await run(shop, puppet, 200, took_ms=0)
    await until(lambda: slots(shop) == 4 + 50 + 1_000)


async def test_of_long_ones_no_more_are_asked_for_than_run(shop: Floor) -> None:
    puppet = await shop.puppet(threads=4, buffer=50)
    await run(shop, puppet, 100, took_ms=AHEAD_US // 1_000 * 100)
    await until(lambda: slots(shop) == 4)


async def test_what_is_accepted_does_not_shrink_with_what_is_asked_for(shop: Floor) -> None:
    # What is under way when a handler becomes slow is not refused for it.
    puppet = await shop.puppet(threads=4, buffer=50)
    await run(shop, puppet, 100, took_ms=60_000)
    await until(lambda: slots(shop) == 4)
    assert shop.executor_loop.workers.groups.room()[0]["app"] == 4 + 50 + 1_000


async def test_small_changes_are_not_told(shop: Floor) -> None:
    puppet = await shop.puppet(threads=4, buffer=50)
    await run(shop, puppet, 100, took_ms=10)
    await until(lambda: slots(shop) > 8)
    told = len(shop.ear.offers)
    await run(shop, puppet, 100, took_ms=12, job="other")
    shop.executor_loop.workers.tick()
    assert len(shop.ear.offers) == told
