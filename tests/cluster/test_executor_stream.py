"""How an executor process finds the leader, and whom it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from launcher.clock import boot_ms
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.cluster.executor_host import ExecutorHost, FakeLeader, shell, until
from tests.unit.rows_rig import Start

pytestmark = pytest.mark.cluster
NAME = "acme/a@2026-11-20T15:00:00Z#1"


async def test_it_follows_the_leader(leader: FakeLeader, host: ExecutorHost) -> None:
    async with FakeLeader() as second:
        second.leads, second.hint = False, leader.address
        host.configure([second.address])
        host.start()
        # By the hint of the replica that does not lead, though only that one is configured.
        await leader.connected()
        second.leads, second.epoch = True, Epoch(0, 2, "r2")
        leader.leads = False
        leader.goodbye(second.address)
        await second.connected()
        assert second.hellos[0].executor == "e1"


async def test_it_finds_a_new_leader_soon_after_the_old_one_vanished(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    old = FakeLeader()
    await old.__aenter__()
    host.configure([old.address, leader.address])
    leader.leads, leader.epoch = False, Epoch(0, 2, "r2")
    host.start()
    await old.connected()
    await old.__aexit__()
    leader.leads = True
    elected_ms = boot_ms()
    await leader.connected()
    assert boot_ms() - elected_ms < 10_000  # 0.3 s where the machine is idle


async def test_a_leader_that_stopped_answering_is_left(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.configure([leader.address], answer_ms=200)
    host.start()
    await leader.connected()
    leader.answers = False
    await until(lambda: leader.streams >= 2, "another stream")


async def test_a_leader_that_does_not_want_it_is_named_once_and_asked_again(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.refusal = "executor e1 is connected already, from host other pid 7"
    host.start()
    await until(lambda: "is connected already" in host.errors(), "its word of it")
    heard = leader.refused
    await until(lambda: leader.refused >= heard + 2, "several visits more")
    assert host.errors().count("is connected already") == 1
    assert "executor.refused" in host.errors()
    leader.refusal = ""
    await leader.connected()


async def test_a_replica_that_is_frozen_is_passed_by(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    frozen = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    with frozen:
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        host.configure([address, leader.address], connect_ms=1_000)
        host.start()
        await leader.connected()


async def test_a_commit_may_take_its_time_before_the_welcome(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.welcomes.clear()
    host.start()
    await until(lambda: leader.hellos, "a greeting")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.2):
            await leader.welcomes.wait()
    leader.welcomes.set()
    await leader.connected()
    assert len(leader.hellos) == 1


async def test_a_clock_far_from_the_leaders_gets_no_work(
    leader: FakeLeader, host: ExecutorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.executor_host.wall_ms", lambda: 1_000)
    host.start()
    await leader.connected()
    leader.order(starts=[Start(NAME, shell("true"), 1 << 50, 1)])
    report = await leader.told(NAME, pool_pb2.REFUSED)
    assert "clock" in report.detail


@pytest.mark.parametrize("option", ["nonsense = 1", 'cell = "other cell"'])
async def test_a_wrong_configuration_is_named(host: ExecutorHost, option: str) -> None:
    host.config.write_text(host.config.read_text() + option + "\n")
    host.start()
    assert await host.ended() == 2
    assert option.split()[0] in host.errors()
    assert "executor.toml" in host.errors()
