"""Workers that die, freeze, hang, flood or lie: what is told of their launches, and that nothing
runs twice or is forgotten."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import boot_ms
from launcher.executor import main as executor
from launcher.executor.attempt import Attempt
from launcher.executor.commands.trees import SurvivorsRemain, kill_workers, start_ticks
from launcher.executor.handlers.connection import Peer
from launcher.executor.loop import interrupt_all
from launcher.executor.refusals import LATE, LEASE_OVER, WORKERLESS
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED, REFUSED
from launcher.protocol.status import Reason
from launcher.worker import wire
from launcher.worker.wire import Result
from tests.unit.workers_rig import HANDLER, Floor, Puppet, floor, named, names_of, running, until

A, B, C, D = (named(number) for number in range(4))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


# ---- death


async def test_what_ran_in_a_dead_worker_is_over_and_what_waited_there_goes_on(
    shop: Floor,
) -> None:
    puppet = await running(shop, A)
    shop.give(B, C, D)
    await puppet.tasks(3)
    other = await shop.puppet(threads=8)
    puppet.signal(signal.SIGKILL)  # somebody still holds its connection: the test
    row = await shop.told(A, ENDED)
    assert (row.reason, row.exit_code) == (Reason.WORKER_DIED, 1)
    assert row.detail == f"its worker, process {puppet.pid}, is dead: it was killed by SIGKILL"
    assert names_of(await other.tasks(3)) == [B, C, D]
    other.finish(B, C, D)
    assert (await shop.told(D, ENDED)).reason == Reason.NONE


async def test_what_a_dead_worker_still_said_counts(shop: Floor) -> None:
    puppet = await shop.puppet(threads=3)
    shop.give(A, B, C)
    await puppet.tasks(3)
    other = await shop.puppet(threads=3)
    puppet.start(B)
    puppet.finish(A)
    puppet.signal(signal.SIGKILL)
    puppet.hang_up()
    assert (await shop.told(A, ENDED)).reason == Reason.NONE
    assert (await shop.told(B, ENDED)).reason == Reason.WORKER_DIED
    assert names_of(await other.tasks(1)) == [C]


async def test_a_worker_that_is_written_to_while_it_dies_is_still_read_to_the_end(
    shop: Floor,
) -> None:
    # A write to a closed connection fails; what was begun before must not be given to another.
    puppet = await shop.puppet(threads=2, buffer=0)
    shop.give(A)
    await puppet.tasks(1)
    [worker] = shop.executor_loop.workers.groups.workers()
    worker.connection.pause()
    puppet.start(A)
    puppet.hang_up()
    shop.give(B)
    await until(lambda: any(one.name == B for one in worker.given.values()))
    assert worker.connection._is_deaf
    worker.connection.resume()
    assert (await shop.told(A, ENDED)).reason == Reason.WORKER_DIED
    other = await shop.puppet()
    assert names_of(await other.tasks(1)) == [B]


async def test_a_worker_that_lets_go_of_its_executor_is_killed(shop: Floor) -> None:
    puppet = await running(shop, A)
    puppet.hang_up()
    assert await puppet.exit_code() == -signal.SIGKILL
    row = await shop.told(A, ENDED)
    assert row.reason == Reason.WORKER_DIED
    assert "its connection ended" in row.detail


async def test_one_with_nothing_to_do_may_go(shop: Floor) -> None:
    puppet = await shop.puppet()
    puppet.hang_up()
    await until(lambda: shop.executor_loop.workers.groups.offers == ())
    assert puppet.process.poll() is None


async def test_what_waits_for_a_group_that_is_gone_is_refused_after_a_while(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executor.handlers.groups.WORKERLESS_MS", 200)
    puppet = await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.executor_loop.running == 2)
    puppet.signal(signal.SIGKILL)
    assert (await shop.told(B, REFUSED)).detail == WORKERLESS


async def test_a_worker_that_comes_back_in_time_gets_what_waited(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executor.handlers.groups.WORKERLESS_MS", 60_000)
    puppet = await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.executor_loop.running == 2)
    puppet.signal(signal.SIGKILL)
    again = await shop.puppet()
    assert names_of(await again.tasks(1)) == [B]


# ---- time


async def test_a_launch_over_its_time_is_cancelled_then_killed_with_its_worker(
    shop: Floor,
) -> None:
    puppet = await shop.puppet(threads=2, buffer=2)
    shop.give(A, timeout_ms=200)
    shop.give(B)
    await puppet.tasks(2)
    puppet.start(A, B)
    assert await puppet.cancelled() == [(A, int(Reason.TIMEOUT))]
    assert await puppet.exit_code() == -signal.SIGKILL  # it ignored that
    row, neighbour = await shop.told(A, ENDED), await shop.told(B, ENDED)
    assert row.reason == Reason.TIMEOUT
    assert "did not end when it was told to" in row.detail
    assert neighbour.reason == Reason.WORKER_DIED


async def test_one_that_ends_within_its_grace_harms_nobody(tmp_path: Path) -> None:
    async with floor(tmp_path, term_grace_ms=60_000) as shop:
        puppet = await shop.puppet()
        shop.give(A, timeout_ms=100)
        await puppet.tasks(1)
        puppet.start(A)
        await puppet.expect(wire.Cancel)
        puppet.finish(A, result=Result.CANCELLED, detail="tidied up")
        row = await shop.told(A, ENDED)
        assert (row.reason, row.detail) == (Reason.TIMEOUT, "tidied up")
        shop.give(B)
        assert names_of(await puppet.tasks(1)) == [B]


async def test_a_handlers_own_time_counts_where_it_is_shorter(shop: Floor) -> None:
    served = [wire.Served(HANDLER, timeout_ms=100)]
    puppet = await shop.puppet(served=served)
    shop.give(A, timeout_ms=600_000)
    await puppet.tasks(1)
    puppet.start(A)
    assert await puppet.cancelled() == [(A, int(Reason.TIMEOUT))]


async def test_a_frozen_worker_is_silent_and_killed(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A, heartbeat_ms=200)
    await puppet.tasks(1)
    puppet.start(A)
    puppet.signal(signal.SIGSTOP)
    row = await shop.told(A, ENDED)
    assert row.reason == Reason.SILENT
    assert await puppet.exit_code() == -signal.SIGKILL


def later(attempt: Attempt, before_ms: int) -> bool:
    return attempt.silent_at_ms > before_ms


async def test_one_that_says_it_is_alive_goes_on(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.give(A, heartbeat_ms=60_000)
    await puppet.tasks(1)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    [worker] = shop.executor_loop.workers.groups.workers()
    attempt = worker.given[puppet.number(A)]
    for _ in range(3):
        before = attempt.silent_at_ms
        await until(lambda: boot_ms() + 60_000 > attempt.silent_at_ms)
        puppet.say(wire.Beat([puppet.number(A), puppet.number("of another")]))
        await until(functools.partial(later, attempt, before))
    puppet.finish(A)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE


async def test_one_that_does_not_give_back_what_it_has_not_begun_is_killed(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.executor.handlers.workers.ANSWER_MS", 200)
    puppet = await shop.puppet()
    shop.give(A, late_ms=-3_000)
    await puppet.tasks(1)
    puppet.signal(signal.SIGSTOP)
    assert (await shop.told(A, REFUSED)).detail == LATE


# ---- the lease


async def test_guarded_launches_end_with_the_lease_and_the_rest_of_their_worker(
    shop: Floor,
) -> None:
    puppet = await shop.puppet()
    shop.give(A, guarded=True)
    shop.give(B)
    await puppet.tasks(2)
    puppet.start(A, B)
    await shop.told(B, ACCEPTED)
    shop.executor_loop.lease.until_ms = 0
    assert (await shop.told(A, ENDED)).reason == Reason.EXECUTOR_LOST
    assert (await shop.told(B, ENDED)).reason == Reason.WORKER_DIED
    assert await puppet.exit_code() == -signal.SIGKILL


async def test_without_a_lease_nothing_is_begun(shop: Floor) -> None:
    puppet = await running(shop, A, threads=1, buffer=1)
    shop.give(B)
    await puppet.tasks(1)
    shop.give(C)
    await until(lambda: shop.executor_loop.running == 3)
    shop.executor_loop.lease.until_ms = 0
    assert await puppet.cancelled() == [(B, int(Reason.EXECUTOR_LOST))]
    puppet.return_(B)
    for name in (B, C):
        assert (await shop.told(name, REFUSED)).detail == LEASE_OVER
    puppet.finish(A)  # it is not guarded
    assert (await shop.told(A, ENDED)).reason == Reason.NONE


async def test_a_renewed_lease_is_passed_on(shop: Floor) -> None:
    puppet = await shop.puppet()
    shop.lease(90_000)
    message: Any = None
    while not (
        isinstance(message, wire.Lease) and message.until_ms == shop.executor_loop.lease.until_ms
    ):
        if not puppet._heard:
            data = await asyncio.get_running_loop().sock_recv(puppet.end_of_line, 4096)
            puppet._heard += puppet._frames.feed(data)
        message = puppet._heard.pop(0)


# ---- who may not be killed


async def test_a_worker_of_another_user_is_waited_for(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    puppet = await running(shop, A)
    monkeypatch.setattr(Peer, "kill", lambda self: False)
    puppet.send(b"\0\0\0\x05hello")
    await puppet.expect(wire.Refused)
    [worker] = shop.executor_loop.workers.groups.workers()
    await until(lambda: bool(worker.killed_for))
    assert shop.on_disk(A) == ACCEPTED  # nothing is concluded while it lives
    puppet.process.kill()
    assert (await shop.told(A, ENDED)).reason == Reason.WORKER_DIED


# ---- the executor's own death


async def test_a_restarted_executor_kills_the_workers_of_the_last_before_it_concludes(
    shop: Floor,
) -> None:
    puppet = await running(shop, A)
    shop.give(B)
    await puppet.tasks(1)
    await shop.halt()
    shop.ledger.is_same_boot = True
    reaper = asyncio.create_task(puppet.exit_code())
    in_thread = shop.thread.submit(interrupt_all, shop.ledger, "executor")
    lost = await asyncio.wrap_future(in_thread)
    assert await reaper == -signal.SIGKILL
    assert sorted(row.name for row in lost) == [A, B]
    assert shop.on_disk(A) == shop.on_disk(B) == INTERRUPTED
    assert await asyncio.wrap_future(shop.thread.submit(shop.ledger.workers)) == []


async def test_while_a_worker_of_the_last_executor_lives_nothing_is_concluded(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    puppet = await running(shop, A)
    await shop.halt()
    shop.ledger.is_same_boot = True
    asked_again = threading.Event()
    calls: list[int] = []

    def unkillable(workers: list[tuple[int, int]]) -> None:
        calls.append(len(workers))
        if len(calls) > 1:
            asked_again.set()
        raise SurvivorsRemain("still there")

    monkeypatch.setattr("launcher.executor.loop.kill_workers", unkillable)
    monkeypatch.setattr(executor, "SURVIVORS_PAUSE_S", 0.001)
    stop = asyncio.Event()
    cleared = asyncio.create_task(executor._cleared(shop.thread, shop.ledger, stop))
    assert await asyncio.to_thread(asked_again.wait, 30)
    assert shop.on_disk(A) == ACCEPTED
    stop.set()
    assert not await cleared
    assert puppet.process.poll() is None


def start_executor(directory: Path) -> subprocess.Popen[bytes]:
    config = directory / "executor.toml"
    config.write_text('id = "e1"\ndata = "data"\nleaders = ["127.0.0.1:1"]\n')
    command = [sys.executable, "-m", "launcher.executor", "--config", str(config)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


async def test_an_executor_that_is_killed_and_started_again_ends_what_the_first_fed(
    tmp_path: Path,
) -> None:
    first = start_executor(tmp_path)
    path = tmp_path / "data" / "workers.sock"
    await until(path.exists)
    puppet = await asyncio.to_thread(Puppet, path)
    puppet.greet()
    await puppet.expect(wire.Welcome)
    first.kill()
    first.wait()
    assert await puppet.read() is None
    assert puppet.process.poll() is None  # a real worker would end by itself; this one does not
    second = start_executor(tmp_path)
    assert await puppet.exit_code() == -signal.SIGKILL
    other = await connected(path)
    other.greet()
    await other.expect(wire.Welcome)
    second.terminate()
    assert await asyncio.to_thread(second.wait, 30) == 0
    for one in (puppet, other):
        one.end()


async def connected(path: Path) -> Puppet:
    """A worker that connects as soon as somebody listens."""
    async with asyncio.timeout(60):
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    break
            await asyncio.sleep(0.01)
    return await asyncio.to_thread(Puppet, path)


def test_a_process_that_has_the_id_of_a_worker_again_is_spared() -> None:
    ticks = start_ticks(os.getpid())
    kill_workers([(os.getpid(), ticks - 1)])
    kill_workers([])


async def test_a_dead_spawner_takes_no_handler_with_it(shop: Floor) -> None:
    puppet = await running(shop, A)
    shop.order(names=(B,), command="sleep 60")
    await shop.told(B, ACCEPTED)
    watching = asyncio.create_task(shop.executor_loop.watch())
    watching.cancel()
    os.kill(shop.executor_loop._children.pid, signal.SIGKILL)
    await shop.told(B, INTERRUPTED)
    assert shop.on_disk(A) == ACCEPTED
    puppet.finish(A)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE
