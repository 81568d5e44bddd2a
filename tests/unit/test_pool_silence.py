"""An executor that leaves a probe unanswered for a second gets no new launches (rule R7)."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.pool import limits
from launcher.pool.events import Silent, Unsent
from launcher.pool.probes import (
    IDLE_AFTER_MS,
    IDLE_EVERY_MS,
    LOOK_MS,
    PROBE_EVERY_MS,
    PROBES_PER_LOOK,
    UNANSWERED_MS,
    Probes,
)
from launcher.pool.session import Session
from launcher.protocol.orders import JobWork, StartBatch
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import (
    LEDGER,
    FakeExecutor,
    Rig,
    kill,
    order,
    place,
    rigged,
    started,
    until,
)


def first(number: int) -> StartBatch[JobWork]:
    """A start that no leader has sent before."""
    return order(number, is_first=True)


again = order


def view(rig: Rig) -> Session:
    found = rig.pool.view("executor-7")
    assert found is not None
    return found


async def leased(rig: Rig, fake: FakeExecutor) -> None:
    """Let the executor have a lease, so that only silence keeps work from it."""
    await fake.beat(1)
    await until(lambda: rig.pool.sessions()[0].awaits_answer)
    rig.pool.answer_heartbeats(rig.mono)
    assert (await fake.read()).heartbeat.number == 1
    assert view(rig).gets_work


def look(rig: Rig, for_ms: int) -> None:
    """Let the leader look for so long, as often as it does, and read nothing meanwhile."""
    for _ in range(for_ms // LOOK_MS):
        rig.mono += LOOK_MS
        rig.pool.probe()


async def probe(fake: FakeExecutor) -> int:
    message = await fake.read()
    assert message.WhichOneof("kind") == "probe", message
    return message.probe.number


async def test_an_executor_that_leaves_a_probe_unanswered_gets_no_work_until_it_answers() -> None:
    async with rigged() as rig, rig.joined() as fake:
        await leased(rig, fake)
        rig.pool.probe()
        number = await probe(fake)
        look(rig, UNANSWERED_MS - LOOK_MS)
        assert view(rig).gets_work
        look(rig, LOOK_MS)
        assert not view(rig).gets_work
        assert rig.of(Silent) == [Silent("executor-7", LEDGER)]
        assert "executor-7" in rig.pool.take_touched()
        await fake.send(probe=pool_pb2.ProbeAnswer(number=number))
        assert await rig.heard(Silent, 2) == Silent("executor-7", LEDGER, is_over=True)
        assert view(rig).gets_work
        assert "executor-7" in rig.pool.take_touched()


async def test_a_leader_that_stood_still_has_not_read_the_answers() -> None:
    """Measured by the clock alone every executor would have been silent for as long."""
    async with rigged() as rig, rig.joined() as fake:
        await leased(rig, fake)
        rig.pool.probe()
        await fake.send(probe=pool_pb2.ProbeAnswer(number=await probe(fake)))
        rig.mono += 5 * UNANSWERED_MS
        rig.pool.probe()
        assert view(rig).gets_work
        await until(lambda: rig.pool._sessions["executor-7"].probe_number == 0)
        look(rig, LOOK_MS)
        assert view(rig).gets_work
        assert not rig.of(Silent)


async def test_first_starts_that_wait_for_a_silent_executor_are_given_back_and_never_leave() -> (
    None
):
    async with rigged() as rig, rig.joined() as fake:
        rig.pool.probe()
        number = await probe(fake)
        look(rig, UNANSWERED_MS - LOOK_MS)
        assert rig.pool.order("executor-7", LEDGER, starts=[first(1), again(2), first(3)])
        look(rig, LOOK_MS)
        assert rig.of(Unsent) == [Unsent("executor-7", LEDGER, (place(1), place(3)))]
        assert not rig.pool.order("executor-7", LEDGER, starts=[first(4), again(5)])
        assert rig.of(Unsent)[1:] == [Unsent("executor-7", LEDGER, (place(4),))]
        # Other orders wait for it, and what comes after its answer is sent.
        rig.pool.order("executor-7", LEDGER, kills=[kill(9)])
        await fake.send(probe=pool_pb2.ProbeAnswer(number=number))
        await rig.heard(Silent, 2)
        assert rig.pool.order("executor-7", LEDGER, starts=[first(6)])
        numbers: list[int] = []
        while 6 not in numbers:
            numbers += started(await fake.orders())
        assert numbers == [6]


async def test_a_probe_waits_for_one_message_of_orders_at_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind ten seconds of bulk it would find an executor silent that only has much to read."""
    monkeypatch.setattr(limits, "ORDERS_ROWS_MAX", 1)
    async with rigged() as rig, rig.joined() as fake:
        rig.pool.order("executor-7", LEDGER, starts=[order(number) for number in range(3)])
        rig.pool.probe()
        kinds = [(await fake.read()).WhichOneof("kind") for _ in range(4)]
        assert kinds == ["orders", "probe", "orders", "orders"]
        rig.pool.order("executor-7", LEDGER, starts=[order(4)])
        rig.pool.order("executor-7", LEDGER, acks=[place(1)])
        look(rig, PROBE_EVERY_MS)
        assert (await fake.read()).WhichOneof("kind") == "orders", "orders before a probe are first"


class OneOfMany:
    """A session as probes see it."""

    def __init__(self) -> None:
        self.is_silent = False
        self.probed = 0

    def probe(self) -> None:
        self.probed += 1


def test_in_a_large_cell_probes_are_bounded_and_come_to_everybody() -> None:
    probes = Probes()
    many: list[Any] = [OneOfMany() for _ in range(10 * PROBES_PER_LOOK)]
    for one in many:
        probes.add(one)
    mono_ms = 0
    for _ in range(10):
        before = sum(one.probed for one in many)
        probes.look(mono_ms)
        assert sum(one.probed for one in many) - before <= PROBES_PER_LOOK
        mono_ms += LOOK_MS
        for one in many:
            probes.answered(one)
    assert all(one.probed for one in many)


def test_in_a_large_cell_those_that_were_given_orders_are_probed_first() -> None:
    probes = Probes()
    many: list[Any] = [OneOfMany() for _ in range(10 * PROBES_PER_LOOK)]
    for one in many:
        probes.add(one)
    mono_ms = 0
    for _ in range(10):
        mono_ms += LOOK_MS
        probes.look(mono_ms)
        for one in many:
            probes.answered(one)
    before = many[-1].probed
    probes.ordered(many[-1])
    probes.look(mono_ms + PROBE_EVERY_MS)
    probes.look(mono_ms + 2 * PROBE_EVERY_MS)
    probes.look(mono_ms + 3 * PROBE_EVERY_MS)
    assert many[-1].probed == before + 1


def probed(probes: Probes, some: list[Any], from_ms: int, to_ms: int) -> list[int]:
    """Look from one moment to another; return how often each was probed, and answered."""
    before = [one.probed for one in some]
    for mono_ms in range(from_ms, to_ms, LOOK_MS):
        probes.look(mono_ms)
        for one in some:
            probes.answered(one)
    return [one.probed - count for one, count in zip(some, before, strict=True)]


def test_in_an_idle_cell_only_those_that_were_given_orders_are_probed_as_often() -> None:
    probes = Probes()
    some: list[Any] = [OneOfMany(), OneOfMany()]
    for one in some:
        probes.add(one)
    often, rarely = IDLE_AFTER_MS // PROBE_EVERY_MS, IDLE_AFTER_MS // IDLE_EVERY_MS
    assert probed(probes, some, 0, IDLE_AFTER_MS) == [often, often]
    idle = probed(probes, some, IDLE_AFTER_MS, 2 * IDLE_AFTER_MS)
    assert all(rarely <= count <= rarely + 1 for count in idle)
    probes.ordered(some[0])
    at_ms = 2 * IDLE_AFTER_MS
    assert probed(probes, some, at_ms, at_ms + IDLE_AFTER_MS) == [often, often]


def test_the_next_look_is_when_a_probe_is_due_or_its_answer_overdue() -> None:
    probes, only = Probes(), OneOfMany()
    some: list[Any] = [only]
    probes.add(some[0])
    probes.look(0)
    assert probes.pause_ms() == LOOK_MS, "it may not answer"
    probes.answered(some[0])
    assert probes.pause_ms() == PROBE_EVERY_MS
    probes.look(PROBE_EVERY_MS - LOOK_MS)
    probes.ordered(some[0])
    assert probes.pause_ms() == LOOK_MS
    probes.look(PROBE_EVERY_MS)
    assert only.probed == 2
