"""Heartbeats, leases and who gets work (rules R5 and R10)."""

from __future__ import annotations

import pytest

from launcher.pool import limits
from launcher.pool.events import HeartbeatReceived
from launcher.pool.lease import LeaseTimes
from tests.unit.pool_rig import LEDGER, MANY, OTHER_LEDGER, WALL_MS, order, rigged, until

KEY = ("executor-7", LEDGER)


async def test_a_heartbeat_that_arrived_after_the_barrier_was_sent_waits_for_the_next() -> None:
    # Rule R5: a leader that was asleep renews nothing.
    async with rigged() as rig, rig.joined() as executor:
        await executor.beat(1)
        await rig.heard(HeartbeatReceived)
        barrier = rig.mono
        rig.mono += 1
        await executor.beat(2)
        await rig.heard(HeartbeatReceived, 2)
        rig.pool.answer_heartbeats(barrier)
        rig.pool.order("executor-7", LEDGER, starts=[order(1)])
        assert (await executor.read()).heartbeat.number == 1
        assert (await executor.read()).WhichOneof("kind") == "orders"
        assert rig.pool.leases.until(KEY) == barrier + 30_000
        (session,) = rig.pool.sessions()
        rig.mono = barrier + 1_000
        assert rig.pool.lease_ms(session) == 29_000
        rig.pool.answer_heartbeats(rig.mono)
        assert (await executor.read()).heartbeat.number == 2


async def test_of_too_many_unanswered_heartbeats_the_newest_are_answered() -> None:
    count = limits.HEARTBEATS_MAX + 5
    async with rigged() as rig, rig.joined() as executor:
        for number in range(1, count + 1):
            await executor.beat(number)
        await rig.heard(HeartbeatReceived, count)
        rig.pool.answer_heartbeats(rig.mono)
        answered = [(await executor.read()).heartbeat.number for _ in range(limits.HEARTBEATS_MAX)]
        assert answered == list(range(6, count + 1))


async def test_two_ledgers_of_one_executor_have_two_leases() -> None:
    async with rigged() as rig:
        rig.pool.leases.renew(("executor-7", LEDGER), rig.mono)
        rig.mono += 1_000
        async with rig.joined(ledger=OTHER_LEDGER):
            assert rig.pool.leases.until(("executor-7", OTHER_LEDGER)) == rig.mono + 30_000
            assert rig.pool.leases.until(KEY) == rig.mono + 29_000


@pytest.mark.parametrize(
    "times", [(0, 20, 30), (10, 20, 30), (5, 20, 20), (5, 30, 20), (-1, 20, 30), (5, 5, 30)]
)
def test_lease_times_that_would_start_work_twice_are_refused(times: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="lease times: heartbeat"):
        LeaseTimes(*times)


# ---- who gets work


async def test_an_executor_that_misses_three_heartbeats_gets_no_work_until_it_is_heard() -> None:
    """A frozen one was given launches for as long as its lease lasted, beside an idle one."""
    async with rigged() as rig, rig.joined() as executor:
        await executor.beat(1)
        await rig.heard(HeartbeatReceived)
        rig.pool.answer_heartbeats(rig.mono)
        rig.mono += 15_000
        assert rig.pool.sessions()[0].gets_work
        rig.mono += 1
        [view] = rig.pool.sessions()
        assert (view.is_leased, view.gets_work, view.silent_ms) == (True, False, 15_001)
        await executor.beat(2)
        await rig.heard(HeartbeatReceived, 2)
        assert rig.pool.sessions()[0].gets_work


@pytest.mark.parametrize(
    ("offset_ms", "gets_work"), [(10_000, True), (-10_000, True), (10_001, False), (-10_001, False)]
)
async def test_an_executor_whose_clock_is_off_gets_no_work(
    offset_ms: int, *, gets_work: bool
) -> None:
    async with rigged() as rig, rig.joined() as executor:
        await executor.beat(1, wall_ms=WALL_MS + offset_ms)
        await rig.heard(HeartbeatReceived)
        rig.pool.answer_heartbeats(rig.mono)
        [view] = rig.pool.sessions()
        assert (view.offset_ms, view.gets_work) == (offset_ms, gets_work)
        assert view.is_leased  # it can be asked and fenced all the same


async def test_an_executor_whose_ledger_is_full_gets_no_work_until_it_has_room() -> None:
    async with rigged() as rig, rig.joined() as executor:
        rig.pool.take_touched()
        await executor.beat(1, is_full=True)
        await rig.heard(HeartbeatReceived)
        rig.pool.answer_heartbeats(rig.mono)
        [view] = rig.pool.sessions()
        assert (view.is_leased, view.is_full, view.gets_work) == (True, True, False)
        assert rig.pool.take_touched() == {view.executor}
        await executor.beat(2)
        await rig.heard(HeartbeatReceived, 2)
        [view] = rig.pool.sessions()
        assert (view.is_full, view.gets_work) == (False, True)
        assert rig.pool.take_touched() == {view.executor}


async def test_a_clock_that_was_put_right_gets_work_again() -> None:
    async with rigged() as rig, rig.joined(wall_ms=WALL_MS - 3_600_000) as executor:
        assert rig.pool.sessions()[0].offset_ms == -3_600_000
        await executor.beat(1)
        await rig.heard(HeartbeatReceived)
        rig.pool.answer_heartbeats(rig.mono)
        assert rig.pool.sessions()[0].gets_work


async def test_an_executor_that_sends_heartbeats_and_reads_no_answer_is_dropped() -> None:
    lease = LeaseTimes(heartbeat_ms=20, self_kill_ms=100, give_up_ms=30_000)
    async with rigged(lease) as rig, rig.joined() as executor:
        await executor.beat(1)
        await rig.heard(HeartbeatReceived)
        # Fill the pipe, so that answers pile up behind what is not read.
        rig.pool.order("executor-7", LEDGER, starts=[order(i, bytes(1 << 20)) for i in range(MANY)])
        rig.pool.answer_heartbeats(rig.mono)
        await until(lambda: not rig.pool.sessions())
