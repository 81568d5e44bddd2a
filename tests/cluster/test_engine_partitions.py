"""Networks that lose, hold, slow and spoil what replicas say to each other, both ways or one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.cluster.engine_proxy import Proxies
from tests.conformance.cells import IDS, eventually, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]

# Far from the noise of a busy machine, and from each other, so that votes are not split.
CALM = {"election_min_ms": 2_000, "election_max_ms": 5_000, "heartbeat_ms": 200}
AFTER_S = 6.0
"""Long enough for an election that a healed partition might cause."""


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[FaultCell]:
    cell = FaultCell(tmp_path, snapshot_entries=500, trailing_entries=50, **CALM)
    await cell.connect_by_proxies()
    await cell.start()
    yield cell
    await cell.close()


@pytest.fixture
async def load(cell: FaultCell) -> AsyncIterator[Load]:
    load = Load(cell)
    load.start()
    yield load
    await load.close()


def network(cell: FaultCell) -> Proxies:
    assert cell.proxies is not None
    return cell.proxies


def others(name: str) -> tuple[str, ...]:
    return tuple(one for one in IDS if one != name)


async def test_a_leader_cut_off_for_ten_seconds_costs_one_election_and_none_when_it_is_back(
    cell: FaultCell, load: Load
) -> None:
    leader = await leader_of(cell)
    await load.progress(200)
    term = (await cell.belief(leader)).term
    network(cell).isolate(leader)
    during = await cell.watch(10.0)
    led = {(seen, name) for seen, name in during if seen > term}
    assert len(led) == 1, "more than one election"
    ((new_term, successor),) = led
    await load.progress(200)
    network(cell).heal()
    after = await cell.watch(AFTER_S)
    assert after == {(new_term, successor)}, "who was away disturbed the others (PreVote)"
    verdict = await settle(cell, load)
    assert verdict.problems == []
    assert (await cell.belief(leader)).term == new_term


async def test_a_follower_that_was_cut_off_costs_no_election_at_all(
    cell: FaultCell, load: Load
) -> None:
    leader = await leader_of(cell)
    term = (await cell.belief(leader)).term
    away = others(leader)[0]
    network(cell).isolate(away)
    assert await cell.watch(6.0) == {(term, leader)}
    await load.progress(200)
    network(cell).heal()
    assert await cell.watch(AFTER_S) == {(term, leader)}
    verdict = await settle(cell, load)
    assert verdict.problems == []
    assert (await cell.belief(away)).term == term


async def test_a_leader_that_nobody_hears_steps_down_and_a_deaf_one_too(
    cell: FaultCell, load: Load
) -> None:
    # one way: its heartbeats do not arrive; or they do, and the answers do not
    for pairs in (Proxies.mute, Proxies.deafen):
        leader = await leader_of(cell)
        await load.progress(100)
        network(cell).cut(pairs(network(cell), leader))
        successor = await leader_of(cell, others(leader))
        assert successor != leader

        async def stepped_down(leader: str = leader) -> bool:
            return not (await cell.belief(leader)).leads

        await eventually(stepped_down, f"{leader} steps down")
        await load.progress(200)
        network(cell).heal()
        await leader_of(cell)
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def test_a_follower_that_hears_nobody_disturbs_nobody(cell: FaultCell, load: Load) -> None:
    # It gets no heartbeat, and its calls for an election are heard (the fault of 2020-11-02 that
    # made etcd flap at Cloudflare).
    leader = await leader_of(cell)
    term = (await cell.belief(leader)).term
    network(cell).cut(network(cell).deafen(others(leader)[0]))
    assert await cell.watch(7.0) == {(term, leader)}
    await load.progress(200)
    network(cell).heal()
    assert await cell.watch(AFTER_S) == {(term, leader)}
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def test_two_replicas_that_lose_each_other_keep_the_leader_that_both_hear(
    cell: FaultCell, load: Load
) -> None:
    leader = await leader_of(cell)
    one, other = others(leader)
    network(cell).cut([(one, other), (other, one)])
    await load.progress(300)
    assert len(await cell.watch(3.0)) == 1
    network(cell).heal()
    # now the leader and one follower lose each other; the third one hears both
    network(cell).cut([(leader, one), (one, leader)])
    await load.progress(300)
    network(cell).heal()
    verdict = await settle(cell, load)
    assert verdict.problems == []


async def test_held_slow_spoilt_and_broken_connections_cost_nothing_acknowledged(
    cell: FaultCell, load: Load
) -> None:
    net = network(cell)
    for round_ in range(6):
        leader = await leader_of(cell)
        await load.progress(100)
        if round_ % 3 == 0:
            net.isolate(leader, "hold")  # comes late, in order: an old leader's words
            await leader_of(cell, others(leader))
        elif round_ % 3 == 1:
            for name in others(leader):
                net.way(leader, name).flips = 5
                net.way(name, leader).flips = 5
                net.way(name, leader).delay_s = 0.05
        else:
            net.reset()
            await asyncio.sleep(0)
        await load.progress(100)
        net.heal()
    verdict = await settle(cell, load)
    assert verdict.problems == []
    assert all(cell.nodes[name].process is not None for name in IDS)
    assert "failed:" not in "".join(cell.log_of(name) for name in IDS), "a replica ended"
