"""An executor tells all that its ledger remembers: in order, whole, and between its turns."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from launcher.executor.connector import Connector
from launcher.executor.ledger import FILE, Inventory, Ledger, Page
from launcher.executor.outputs import Outputs
from launcher.executor.rows import ENDED, FENCED, REFUSED
from launcher.limits import INVENTORY_ROWS_MAX
from launcher.pool.events import InventoryPage, Joined
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.status import Status
from launcher.protocol.work import Epoch
from tests.unit.journal_rig import read_only
from tests.unit.pool_rig import CELL, Rig, attempt, rigged, until
from tests.unit.rows_rig import name_of, rows_of
from tests.unit.test_executor_drained import facts_of
from tests.unit.test_executor_loop import A, B, Ear, Shop
from tests.unit.test_executor_pages import fill, names, row

# ---- turns


class Recaller(Ear):
    """A report sink that keeps the pages, and all reports in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[Page] = []
        self.heard: list[tuple[str, int]] = []

    def send(self, changes: list[BatchReport]) -> None:
        super().send(changes)
        self.heard += [(row.name, row.status) for row in rows_of(changes)]

    def recollect(self, page: Page) -> None:
        self.pages.append(page)
        self.heard += [(row.name, row.status) for row in page.rows]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    shop.ear = Recaller()
    await shop.open()
    yield shop
    await shop.close()


async def in_ledger(shop: Shop, *rows: RowReport, acked: tuple[int, ...] = ()) -> None:
    await asyncio.wrap_future(shop.thread.submit(lambda: fill(shop.ledger, *rows, acked=acked)))


async def attached(shop: Shop) -> Recaller:
    ear = cast("Recaller", shop.ear)
    shop.executor_loop.attach(ear)
    await shop.turn()
    return ear


async def test_the_epoch_of_who_asks_is_durable_before_the_first_page(shop: Shop) -> None:
    ear = await attached(shop)
    shop.order(term=6, names=(A,))  # of an older leader, in the same turn
    shop.executor_loop.welcome(Epoch(2, 7, "r1"))
    shop.executor_loop.inventory(ear, Inventory())
    await shop.turn()
    [page] = ear.pages
    assert page == Page([], 0, None)
    other = read_only(shop.directory / FILE)
    assert other.highest == Epoch(2, 7, "r1")
    other.close()
    shop.order(term=6, names=(B,))  # and one that was still under way
    await shop.turn()
    assert (shop.on_disk(A), shop.on_disk(B)) == (None, None)


async def test_turns_go_on_between_the_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "recollect", functools.partialmethod(Ledger.recollect, rows_max=2))
    ear = await attached(shop)
    await in_ledger(shop, *(row(number) for number in range(5)), acked=(0, 3))
    shop.executor_loop.inventory(ear, Inventory())
    await shop.turn()
    shop.order(fences=[B])
    await shop.turn()
    assert ear.told == [(B, FENCED)]
    while (rest := ear.pages[-1].rest) is not None:
        shop.executor_loop.inventory(ear, rest)
        await shop.turn()
    assert names(ear.pages) == [str(attempt(number)) for number in range(5)]
    assert [len(page.rows) for page in ear.pages] == [2, 2, 1]


# ---- the stream


class Full:
    """An executor with a ledger of many rows, on its way to a real pool."""

    def __init__(self, shop: Shop, rig: Rig) -> None:
        address = f"127.0.0.1:{rig.port}"
        # No stream may end by itself, however slow the machine is: nobody answers heartbeats here.
        config = msgspec.structs.replace(
            shop.config,
            leaders=(address,),
            cell=CELL,
            reconnect_ms_min=10,
            connect_ms=60_000,
            welcome_ms=60_000,
            answer_ms=60_000,
        )
        self.way = Connector(config, shop.executor_loop, "i1")
        self.shop = shop

    async def __aenter__(self) -> Full:
        self.tasks = [
            asyncio.create_task(self.way.run()),
            asyncio.create_task(self.shop.executor_loop.run(self.shop.thread)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def is_whole(rig: Rig) -> bool:
    return any(event.is_last for event in rig.of(InventoryPage))


async def test_a_leader_hears_of_every_row_of_a_large_ledger(shop: Shop) -> None:
    count = 2 * INVENTORY_ROWS_MAX + 500
    rows = [row(number, (ENDED, FENCED, REFUSED)[number % 3]) for number in range(count)]
    await in_ledger(shop, *rows, acked=tuple(range(0, count, 2)))
    async with rigged() as rig, Full(shop, rig):
        joined = await rig.heard(Joined)
        assert joined.greeting.can_inventory
        rig.pool.welcome(joined.executor, joined.ledger, inventory=True)
        await until(lambda: is_whole(rig))
        parts = rig.of(InventoryPage)
        assert [len(one.rows) for one in parts] == [INVENTORY_ROWS_MAX, INVENTORY_ROWS_MAX, 500]
        told = [recalled for one in parts for recalled in one.rows]
        assert [one.name for one in told] == [str(attempt(number)) for number in range(count)]
        assert [one.index for one in told] == [one.index for one in rows]
        assert {one.epoch for one in told} == {"0.1.r1"}
        assert [one.status for one in told[:3]] == [
            Status.ENDED,
            Status.FENCED,
            Status.REFUSED,
        ]


async def test_a_stream_that_broke_in_the_middle_is_told_anew(shop: Shop) -> None:
    count = 2 * INVENTORY_ROWS_MAX + 1
    await in_ledger(shop, *(row(number) for number in range(count)))
    async with rigged() as rig, Full(shop, rig):
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor, joined.ledger, inventory=True)
        await rig.heard(InventoryPage)
        rig.pool.refuse(joined.executor, "once more")
        broken = len(rig.of(InventoryPage))
        again = await rig.heard(Joined, 2)
        rig.pool.welcome(again.executor, again.ledger, inventory=True)
        await until(lambda: is_whole(rig))
        told = [one.name for event in rig.of(InventoryPage)[broken:] for one in event.rows]
        assert told == [str(attempt(number)) for number in range(count)]


# ---- how much output is kept


def test_outputs_know_how_much_is_kept_also_after_a_restart(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 2, 1 << 20)
    stem = outputs.stem(A)
    for suffix, text in ((".old", b"x" * 20), (".new", b"y" * 7)):
        Path(f"{stem}{suffix}").write_bytes(bytes(8) + text)
    outputs.finished(A, 27)
    assert (outputs.kept(A), outputs.kept(B)) == (27, 0)
    again = Outputs(tmp_path / "output", 2, 1 << 20)
    assert again.kept(A) == 27
    again.finished(B, 1)
    again.finished(str(attempt(1)), 1)
    assert again.kept(A) == 0  # the oldest went


async def test_an_end_is_reported_with_its_output_and_so_is_the_greeting_after(
    shop: Shop,
) -> None:
    async with rigged() as rig:
        shop.order(names=(A,), command="echo hello")
        shop.order(names=(B,), command="true")
        await shop.turns_until(lambda: shop.on_disk(A) == shop.on_disk(B) == ENDED)
        async with Full(shop, rig):
            joined = await rig.heard(Joined)
            kept = {name_of(one.row): one.output_bytes for one in facts_of(joined.greeting.known)}
            assert kept == {A: 6, B: 0}
            rig.pool.welcome(joined.executor, joined.ledger, inventory=True)
            last = await rig.heard(InventoryPage)
            assert {one.name: one.output_bytes for one in last.rows} == {A: 6, B: 0}
