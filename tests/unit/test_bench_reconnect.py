"""The light executors of the bench speak the real protocol, with a real pool on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from bench import reconnect, reconnect_stand
from bench.reconnect_line import LineEnded
from bench.reconnect_stand import Stand, answer, boot_ms, wall_ms
from cron.api.launches import LaunchView
from launcher.pool.events import Facts, Fate, Joined, Told
from launcher.pool.orders import StartBatch
from launcher.work import Epoch
from tests.unit import pool_rig
from tests.unit.api_rig import launch
from tests.unit.pool_rig import CELL, Rig, attempt, rigged, until


@asynccontextmanager
async def standing(
    patch: pytest.MonkeyPatch, rig: Rig, *, work_ms: int = 1, first: str = ""
) -> AsyncIterator[Stand]:
    """A stand-in on its way to the pool."""
    patch.setattr(reconnect_stand, "CELL", CELL)
    address = f"127.0.0.1:{rig.port}"
    stand = Stand(7, [first, address] if first else [address], work_ms)
    task = asyncio.create_task(stand.run())
    try:
        yield stand
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stand._close()


async def leased(rig: Rig, stand: Stand, times: int = 1) -> Joined:
    """Let it in, and return once it has a lease."""
    joined = await rig.heard(Joined, times)
    rig.pool.welcome(joined.executor)

    def is_leased() -> bool:
        rig.mono, rig.wall = boot_ms(), wall_ms()
        rig.pool.answer_heartbeats(rig.mono)
        return stand.state()[0] > 0 and len(stand.leased) == times

    await until(is_leased)
    return joined


def fates(rig: Rig) -> list[tuple[int, Fate]]:
    return [one for event in rig.of(Facts) for one in told(event.told)]


def told(some: Told) -> list[tuple[int, Fate]]:
    """The number of the order that each row is of, and what is said of it."""
    return [(batch.index - 100, batch.fate) for batch in some.batches for _ in batch.rows]


def order(number: int, late_ms: int = 60_000) -> StartBatch:
    return msgspec.structs.replace(pool_rig.order(number), not_after_ms=[wall_ms() + late_ms])


async def test_it_takes_a_launch_once_and_tells_of_it_until_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rigged() as rig, standing(monkeypatch, rig) as stand:
        joined = await leased(rig, stand)
        name = str(attempt(1))
        for _ in range(2):
            rig.pool.start(joined.executor, joined.ledger, [order(1)])
        await until(lambda: (1, Fate.ENDED) in fates(rig))
        assert fates(rig)[0] == (1, Fate.ACCEPTED)
        assert answer("report", [stand])["accepted"] == {name: 1}

        rig.pool.close("another leads", None)
        rig.pool.open(Epoch(0, 8, "r1"))
        again = await leased(rig, stand, 2)
        assert told(again.known) == [(1, Fate.ENDED)]
        assert answer("count", [stand]) == {"8": 1}
        rig.pool.ack(joined.executor, joined.ledger, [(101, [0])])
        await until(lambda: not stand.rows)
        rig.pool.start(joined.executor, joined.ledger, [order(1)])
        rig.pool.start(joined.executor, joined.ledger, [order(2)])
        await until(lambda: (2, Fate.ENDED) in fates(rig))
        assert stand.accepted[name] == 1, "what was acknowledged is not begun again"


async def test_it_refuses_what_comes_too_late_and_what_was_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rigged() as rig, standing(monkeypatch, rig) as stand:
        joined = await leased(rig, stand)
        rig.pool.start(joined.executor, joined.ledger, [order(1, late_ms=-1)])
        await until(lambda: fates(rig) == [(1, Fate.REFUSED)])
        rig.pool.fence(joined.executor, joined.ledger, [pool_rig.fence(2)])
        await until(lambda: len(fates(rig)) == 2)
        rig.pool.start(joined.executor, joined.ledger, [order(2)])
        await until(lambda: len(fates(rig)) == 3)
        assert fates(rig)[1:] == [(2, Fate.FENCED)] * 2
        assert not stand.accepted


async def test_it_waits_for_its_lease_with_what_it_was_ordered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rigged() as rig, standing(monkeypatch, rig) as stand:
        joined = await rig.heard(Joined)
        rig.pool.welcome(joined.executor)
        rig.pool.start(joined.executor, joined.ledger, [order(1)])
        await until(lambda: bool(stand._parked))
        assert not stand.accepted
        await leased(rig, stand)
        await until(lambda: stand.accepted[str(attempt(1))] == 1)


async def test_it_follows_a_replica_that_names_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rigged() as rig, rigged(leads=False) as other:
        other.leader = f"127.0.0.1:{rig.port}"
        other.pool._known_executors = lambda: 4_000
        first = f"127.0.0.1:{other.port}"
        async with standing(monkeypatch, rig, first=first) as stand:
            await leased(rig, stand)
            assert stand.visits == 2
            assert list(stand.ends) == ["ended by the replica, status 9"]


async def test_nobody_at_the_address_is_one_visit_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rigged() as rig, standing(monkeypatch, rig, first="127.0.0.1:1") as stand:
        await leased(rig, stand)
        assert stand.visits == 2


@pytest.mark.parametrize(
    ("trailers", "said"),
    [
        (b"\x00\x0eraftcron-leader\x03a:1", "a:1"),
        (b"\x00\x0eraftcron-leader\x83huffman", ""),
        (b"\x00\x0bgrpc-status\x019", ""),
        (b"\x00\x0eraftcron-leader", ""),
    ],
)
def test_trailers_are_read_as_far_as_they_are_plain(trailers: bytes, said: str) -> None:
    assert LineEnded("over", trailers).said("raftcron-leader") == said


# ---- what the bench makes of it


def row(second: int, state: str = "succeeded", late_ms: int = 5) -> LaunchView:
    is_run = state == "succeeded"
    return launch(
        launch=f"default/j@{second}",
        scheduled_s=second,
        state=state,
        lateness_ms=late_ms if is_run else None,
    )


def test_launches_that_two_accepted_or_nobody_saw_are_told() -> None:
    rows = [row(1), row(2), row(3, "lost")]
    reports = [{"accepted": {"default/j@1#1": 1}}, {"accepted": {"default/j@1#2": 1}}]
    found = reconnect.fates(rows, reports, due=4)
    assert found["states"] == {"succeeded": 2, "lost": 1}
    assert (found["missing"], found["twice"], found["unseen"]) == (1, 1, 1)


def test_lateness_before_and_after_the_kill_is_told_apart() -> None:
    rows = [row(100), row(110, late_ms=3_000), row(111, late_ms=20)]
    found = reconnect.lateness(rows, 110.2)
    assert found["late_before_p100_ms"] == 5
    assert found["late_after_p100_ms"] == 3_000


def test_who_is_back_counts_once_from_the_kill_on() -> None:
    leased = [[[50, 1], [1_300, 2], [1_900, 3]], [[60, 1], [1_200, 2]], [[70, 1]]]
    report = {"leased": leased, "visits": 7, "lapsed": 0, "ends": {"x": 2}}
    found = reconnect.returns([report], killed_ms=1_000)
    assert (found["back"], found["back_p50_ms"], found["back_max_ms"]) == (2, 200, 300)
    assert (found["streams"], found["visits"]) == (6, 7)


def test_the_table_has_a_cell_for_each_column() -> None:
    values: dict[str, Any] = dict.fromkeys(reconnect.COLUMNS, 1)
    lines = reconnect.table([{**values, "states": {"lost deadline": 2, "lost": 1}}]).splitlines()
    assert [line.count("|") for line in lines] == [len(reconnect.COLUMNS) + 1] * 3
    assert " 3 " in lines[2]
