"""One suite for every ReplicatedLog: what its protocol promises, whoever keeps it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consensus.engine.seeding import seed
from consensus.errors import ConsensusError, NotLeader, OutcomeUnknown, Stopped
from consensus.leadership import Position
from tests.conformance.cells import (
    IDS,
    Cell,
    MemoryDriver,
    ProcessDriver,
    eventually,
    leader_of,
    same_prefix,
)
from tests.conformance.ledger import AHEAD, Ledger

pytestmark = pytest.mark.timeout(120)

FAR = Position(7, 3 * 10**12)
SMOKES = (
    "test_appends_of_one_turn_are_applied_everywhere_in_their_order",
    "test_a_follower_refuses_and_names_the_leader",
    "test_the_death_of_the_leader_loses_nothing_acknowledged",
    "test_a_snapshot_and_what_follows_come_back_after_a_restart_of_all",
    "test_leadership_can_be_given_away",
)
"""What `make test` asks of real processes too: their elections depend on the machine's speed, and
the simulation of the engine asks all of it on simulated ones."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    real = [pytest.mark.cluster, pytest.mark.slow]
    marks = real if metafunc.function.__name__ in SMOKES else [*real, pytest.mark.nightly]
    kinds = [
        "memory",
        pytest.param("engine", marks=marks),
        pytest.param("seeded", marks=[*real, pytest.mark.nightly]),
    ]
    metafunc.parametrize("cell", kinds, indirect=True)


@pytest.fixture
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cell]:
    driver: Cell = MemoryDriver() if request.param == "memory" else ProcessDriver(tmp_path)
    if request.param == "seeded":  # it begins with a state, here one of nothing, far from index 1
        seed(tmp_path / "r2", "default", "r2", FAR, Ledger().take())
    await driver.start()
    if request.param == "seeded":  # until then the others cannot do without the one that has it
        await eventually(lambda: begun(driver), "all have the state, and what founds the cell")
    yield driver
    await driver.close()


async def begun(cell: Cell) -> bool:
    return all([(await cell.applied(name)).index > FAR.index for name in IDS])


def others(leader: str) -> tuple[str, ...]:
    return tuple(name for name in IDS if name != leader)


async def all_have(cell: Cell, entries: list[bytes], names: tuple[str, ...] = IDS) -> None:
    async def same() -> bool:
        return all([await cell.entries(name) == entries for name in names])

    await eventually(same, f"{len(entries)} entries on {names}")


async def fill(cell: Cell, leader: str, start: int, stop: int) -> list[bytes]:
    entries = [b"entry-%d" % number for number in range(start, stop)]
    for entry in entries:
        await cell.append(leader, entry)
    return entries


async def test_appends_of_one_turn_are_applied_everywhere_in_their_order(cell: Cell) -> None:
    leader = await leader_of(cell)
    entries = [b"%d" % number for number in range(200)]
    answers = await asyncio.gather(*(cell.append(leader, entry) for entry in entries))
    assert [answer.outcome for answer in answers] == list(range(1, 201))
    positions = [answer.position for answer in answers]
    assert positions == sorted(set(positions))
    await all_have(cell, entries)


async def test_an_answer_carries_the_position_the_applier_saw(cell: Cell) -> None:
    leader = await leader_of(cell)
    answer = await cell.append(leader, b"one")
    assert answer.position == await cell.applied(leader)
    assert answer.position.term == (await cell.belief(leader)).term


async def test_an_empty_entry_is_an_entry(cell: Cell) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"")
    await all_have(cell, [b""])


async def test_a_follower_refuses_and_names_the_leader(cell: Cell) -> None:
    leader = await leader_of(cell)
    with pytest.raises(NotLeader) as refusal:
        await cell.append(others(leader)[0], b"x")
    assert refusal.value.leader == leader
    with pytest.raises(NotLeader):
        await cell.barrier(others(leader)[0])
    with pytest.raises(NotLeader):
        await cell.confirm(others(leader)[0])
    await cell.append(leader, b"y")
    await all_have(cell, [b"y"])


async def test_a_barrier_comes_after_what_was_committed(cell: Cell) -> None:
    leader = await leader_of(cell)
    answer = await cell.append(leader, b"x")
    assert await cell.barrier(leader) > answer.position


async def test_many_barriers_are_answered(cell: Cell) -> None:
    leader = await leader_of(cell)
    first = await cell.append(leader, b"x")
    positions = await asyncio.gather(*(cell.barrier(leader) for _ in range(50)))
    assert min(positions) > first.position


async def test_a_leader_is_confirmed_as_often_as_it_asks(cell: Cell) -> None:
    leader = await leader_of(cell)
    await asyncio.gather(*(cell.confirm(leader) for _ in range(50)))
    await cell.confirm(leader)


async def test_the_death_of_the_leader_loses_nothing_acknowledged(cell: Cell) -> None:
    # SRE book ch. 24, "Tracking the state of cron jobs": what a majority has survives the leader
    leader = await leader_of(cell)
    acknowledged, unknown = [], []

    async def client(number: int) -> None:
        for step in range(1000):
            entry = b"%d/%d" % (number, step)
            try:
                await cell.append(leader, entry)
            except ConsensusError:
                unknown.append(entry)
                return
            acknowledged.append(entry)
            if len(acknowledged) == 60:
                await cell.kill(leader)

    await asyncio.gather(*(client(number) for number in range(8)))
    successor = await leader_of(cell, others(leader))
    await cell.append(successor, b"last")
    await cell.restart(leader)
    final = await cell.entries(successor)
    await all_have(cell, final)
    counts = Counter(final)
    assert max(counts.values()) == 1
    assert set(acknowledged) <= set(final)
    assert set(final) <= {*acknowledged, *unknown, b"last"}


async def test_each_replica_in_turn_may_restart(cell: Cell) -> None:
    leader = await leader_of(cell)
    entries = await fill(cell, leader, 0, 10)
    for round_, name in enumerate(IDS):
        await cell.kill(name)
        leader = await leader_of(cell, others(name))
        entries += await fill(cell, leader, 10 + round_ * 10, 20 + round_ * 10)
        await cell.restart(name)
        await all_have(cell, entries)


async def test_a_restart_of_all_keeps_what_was_acknowledged(cell: Cell) -> None:
    leader = await leader_of(cell)
    entries = await fill(cell, leader, 0, 30)
    for name in IDS:
        await cell.kill(name)
    for name in IDS:
        await cell.restart(name)
    leader = await leader_of(cell)
    entries += await fill(cell, leader, 30, 35)
    await all_have(cell, entries)


async def test_a_snapshot_and_what_follows_come_back_after_a_restart_of_all(cell: Cell) -> None:
    leader = await leader_of(cell)
    entries = await fill(cell, leader, 0, 30)
    await all_have(cell, entries)
    for name in IDS:
        assert await cell.snapshot(name) == await cell.applied(name)
    entries += await fill(cell, leader, 30, 40)
    for name in IDS:
        await cell.kill(name)
    for name in IDS:
        await cell.restart(name)
    leader = await leader_of(cell)
    entries += await fill(cell, leader, 40, 45)
    await all_have(cell, entries)


async def test_an_isolated_leader_steps_down_and_its_barrier_fails(cell: Cell) -> None:
    leader = await leader_of(cell)
    before = (await cell.belief(leader)).term
    await cell.append(leader, b"kept")
    await cell.isolate(leader)
    with pytest.raises((NotLeader, OutcomeUnknown)):
        await cell.barrier(leader, timeout_ms=5_000)
    with pytest.raises((NotLeader, OutcomeUnknown)):
        await cell.confirm(leader, timeout_ms=5_000)

    async def stepped_down() -> bool:
        return not (await cell.belief(leader)).leads

    await eventually(stepped_down, "the isolated leader steps down")
    with pytest.raises(NotLeader):
        await cell.append(leader, b"refused")
    successor = await leader_of(cell, others(leader))
    assert (await cell.belief(successor)).term > before
    await cell.append(successor, b"new")
    await cell.heal()
    await all_have(cell, [b"kept", b"new"])


async def test_an_append_of_an_isolated_leader_ends_as_unknown_before_its_timeout(
    cell: Cell,
) -> None:
    leader = await leader_of(cell)
    await cell.pause(leader)
    successor = await leader_of(cell, others(leader))
    await cell.append(successor, b"new")
    zombie = asyncio.create_task(cell.append(leader, b"old", timeout_ms=60_000))
    await asyncio.sleep(0)
    await cell.resume(leader)
    with pytest.raises((OutcomeUnknown, NotLeader)):
        await asyncio.wait_for(zombie, 60)
    final = await leader_of(cell)
    await cell.append(final, b"last")
    await all_have(cell, [b"new", b"last"])


async def test_a_leader_that_sleeps_is_replaced_and_follows_when_it_wakes(cell: Cell) -> None:
    leader = await leader_of(cell)
    entries = await fill(cell, leader, 0, 20)
    await cell.pause(leader)
    successor = await leader_of(cell, others(leader))
    entries += await fill(cell, successor, 20, 40)
    await cell.resume(leader)

    async def follows() -> bool:
        return not (await cell.belief(leader)).leads

    await eventually(follows, "the woken leader follows")
    final = await leader_of(cell)
    entries += await fill(cell, final, 40, 45)
    await all_have(cell, entries)


async def test_leadership_can_be_given_away(cell: Cell) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"x")
    heir = others(leader)[1]
    await cell.transfer(leader, heir)
    assert await leader_of(cell) == heir
    await cell.append(heir, b"y")
    await all_have(cell, [b"x", b"y"])


async def test_a_leader_that_stops_is_replaced_and_refuses(cell: Cell) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"x")
    await cell.stop(leader)
    await cell.stop(leader)
    with pytest.raises(Stopped):
        await cell.append(leader, b"refused")
    successor = await leader_of(cell, others(leader))
    await cell.append(successor, b"y")
    await all_have(cell, [b"x", b"y"], others(leader))


async def test_a_minority_commits_nothing(cell: Cell) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"x")
    for name in others(leader):
        await cell.kill(name)
    with pytest.raises((NotLeader, OutcomeUnknown)):
        await cell.append(leader, b"alone", timeout_ms=5_000)

    async def stepped_down() -> bool:
        return not (await cell.belief(leader)).leads

    await eventually(stepped_down, "a leader without a majority steps down")
    for name in others(leader):
        await cell.restart(name)
    again = await leader_of(cell)
    await cell.append(again, b"y")
    ledgers = [await cell.entries(name) for name in IDS]
    assert same_prefix(ledgers)
    assert ledgers[0][0] == b"x"


async def test_one_follower_that_withholds_takes_the_entry_once_it_is_committed(
    cell: Cell,
) -> None:
    leader = await leader_of(cell)
    slow, _ = others(leader)
    await cell.slow(slow, True)
    entries = [b"x", AHEAD + b"1", AHEAD + b"2", b"y"]
    for entry in entries:
        await cell.append(leader, entry)
    await all_have(cell, entries)
    assert await leader_of(cell) == leader


async def test_a_leader_whose_entry_nobody_acknowledges_is_replaced_and_its_entry_is_gone(
    cell: Cell,
) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"x")
    for name in others(leader):
        await cell.slow(name, True)
    with pytest.raises(OutcomeUnknown):
        await cell.append(leader, AHEAD + b"lost", timeout_ms=20_000)
    successor = await leader_of(cell)
    assert successor != leader
    await cell.append(successor, b"y")
    await all_have(cell, [b"x", b"y"])
    for name in others(leader):
        await cell.slow(name, False)
    await cell.append(await leader_of(cell), AHEAD + b"in time")
    await all_have(cell, [b"x", b"y", AHEAD + b"in time"])


async def test_with_one_replica_away_a_leader_that_is_not_acknowledged_gives_way_to_the_other(
    cell: Cell,
) -> None:
    leader = await leader_of(cell)
    await cell.append(leader, b"x")
    other, away = others(leader)
    await cell.kill(away)
    await cell.slow(other, True)
    with pytest.raises(OutcomeUnknown):
        await cell.append(leader, AHEAD + b"lost", timeout_ms=20_000)
    assert await leader_of(cell, (leader, other)) == other
    await cell.append(other, b"y")
    await cell.restart(away)
    await all_have(cell, [b"x", b"y"])
