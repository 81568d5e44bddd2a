"""Launches of handlers that declare memory: their worker is judged while it runs one alone."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.executor.commands.footprint import tree_bytes
from launcher.executor.handlers.worker import WorkerProcess
from launcher.executor.rows import ENDED
from launcher.protocol.status import Reason
from tests.unit.workers_rig import Floor, Puppet, floor, named, names_of, until

MIB = 1 << 20
TAKEN = 64 * MIB
"""What a puppet takes at each SIGUSR1."""
A, B = named(0), named(1)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


async def running(shop: Floor, *names: str, memory_mib: int, threads: int = 1) -> Puppet:
    puppet = await shop.puppet(threads=threads, buffer=2)
    shop.give(*names, memory_bytes=memory_mib * MIB)
    await puppet.tasks(len(names))
    puppet.start(names[0])
    await until(lambda: worker_of(shop, puppet).begun == 1)
    return puppet


def worker_of(shop: Floor, puppet: Puppet) -> WorkerProcess:
    workers = shop.executor_loop.workers.groups.workers()
    return next(one for one in workers if one.pid == puppet.pid)


async def test_a_worker_whose_launch_takes_more_than_it_declares_is_killed(shop: Floor) -> None:
    puppet = await running(shop, A, B, memory_mib=32)
    other = await shop.puppet(threads=1)
    puppet.signal(signal.SIGUSR1)
    row = await shop.told(A, ENDED)
    assert (row.reason, row.exit_code) == (Reason.MEMORY, 1)
    assert row.detail.startswith(f"its worker, process {puppet.pid}, is dead: its launch took ")
    assert row.detail.endswith("its memory is looked at each second, and its limit is 32 MiB")
    assert row.memory_peak_bytes > 32 * MIB
    # What it had not begun is not lost with it.
    assert names_of(await other.tasks(1)) == [B]


async def test_what_a_worker_had_before_is_not_taken_for_its_launchs(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1)
    puppet.signal(signal.SIGUSR1)
    await until(lambda: tree_bytes(puppet.pid) > TAKEN)
    shop.give(A, memory_bytes=96 * MIB)
    await puppet.tasks(1)
    puppet.start(A)
    worker = worker_of(shop, puppet)
    await until(lambda: worker.alone is not None)
    puppet.signal(signal.SIGUSR1)
    await until(lambda: worker.alone is None or worker.alone.memory_peak_bytes >= TAKEN)
    puppet.finish(A)
    row = await shop.told(A, ENDED)
    assert (row.reason, row.exit_code) == (Reason.NONE, 0)
    assert TAKEN <= row.memory_peak_bytes < 96 * MIB


async def test_threads_of_one_process_cannot_be_told_apart(shop: Floor) -> None:
    puppet = await running(shop, A, memory_mib=32, threads=2)
    assert worker_of(shop, puppet).alone is None


async def test_a_launch_beside_another_one_is_judged_from_the_end_of_that(shop: Floor) -> None:
    # A worker announces quick launches ahead: the second one has begun in name only.
    puppet = await running(shop, A, B, memory_mib=32)
    worker = worker_of(shop, puppet)
    puppet.start(B)
    await until(lambda: worker.begun == 2)
    assert worker.alone is None
    puppet.finish(A)
    await shop.told(A, ENDED)
    assert worker.alone is not None
    assert worker.alone.name == B
    assert worker.base_bytes > 0
