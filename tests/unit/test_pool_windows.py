"""Windows end by the leader's clock, whatever the clock of an executor says (rules R7, R10)."""

from __future__ import annotations

import msgspec
import pytest

from launcher.pool.events import HeartbeatReceived
from tests.unit.pool_rig import LEDGER, WALL_MS, order, rigged


@pytest.mark.parametrize("ahead_ms", [0, 6_000, -6_000])
async def test_a_window_is_put_into_the_time_of_the_executor(ahead_ms: int) -> None:
    """An executor whose clock was 6 s ahead, which it may be, refused all that had 5 s to start;
    one that was behind started it 6 s late."""
    async with rigged() as rig, rig.joined(wall_ms=WALL_MS + ahead_ms) as fake:
        await fake.beat(1, wall_ms=WALL_MS + ahead_ms)
        await rig.heard(HeartbeatReceived)
        assert rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        (start,) = (await fake.orders()).batches
        assert list(start.not_after_ms) == [order(1).not_after_ms[0] + ahead_ms]


async def test_a_deadline_is_one_by_any_clock() -> None:
    """A leader whose clock was behind let launches start past their deadline."""
    async with rigged() as rig, rig.joined(wall_ms=WALL_MS + 6_000) as fake:
        due = order(1)
        some = msgspec.structs.replace(due, deadlines_ms=[due.not_after_ms[0] + 2_000])
        assert rig.pool.order("executor-7", LEDGER, starts=[some])
        (start,) = (await fake.orders()).batches
        assert list(start.not_after_ms) == some.deadlines_ms


async def test_a_heartbeat_that_was_late_shortens_no_window() -> None:
    """It shows a clock that is behind by as much as it was late."""
    async with rigged() as rig, rig.joined() as fake:
        await fake.beat(1)
        await fake.beat(2, wall_ms=WALL_MS - 3_000)
        await rig.heard(HeartbeatReceived, 2)
        assert rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        (start,) = (await fake.orders()).batches
        assert list(start.not_after_ms) == order(1).not_after_ms


async def test_a_clock_that_was_set_back_lengthens_no_window() -> None:
    """An executor was an hour ahead, got no work, and gets some as soon as its clock is right."""
    async with rigged() as rig, rig.joined() as fake:
        await fake.beat(1, wall_ms=WALL_MS + 3_600_000)
        await fake.beat(2)
        await rig.heard(HeartbeatReceived, 2)
        assert rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        (start,) = (await fake.orders()).batches
        assert list(start.not_after_ms) == order(1).not_after_ms
