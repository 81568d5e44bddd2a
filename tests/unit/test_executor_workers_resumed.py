"""Launches whose handler can look up what became of them: after the death of a worker another one
gets them again, and what nobody can tell is lost."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.executor import launches
from launcher.executor.handlers import groups, workers
from launcher.executor.refusals import KILLED
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED
from launcher.protocol.status import Reason
from launcher.worker import wire
from launcher.worker.wire import Result
from tests.unit.workers_rig import HANDLER, Floor, Puppet, floor, named, names_of, running, until

A, B = (named(number) for number in range(2))
LOOKS_UP = [wire.Served(HANDLER, resumes=True)]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


def die(puppet: Puppet) -> None:
    """Let a worker die."""
    puppet.signal(signal.SIGKILL)
    puppet.hang_up()


async def test_another_worker_gets_what_a_dead_one_had_begun_and_is_told_so(shop: Floor) -> None:
    first = await running(shop, A, served=LOOKS_UP)
    started_ms = shop.book.rows[A].started_ms
    die(first)
    other = await shop.puppet(served=LOOKS_UP)
    assert names_of(await other.tasks(1)) == [A]
    assert other.resumed == {A}
    assert shop.book.status(A) == ACCEPTED
    other.start(A)
    other.finish(A, detail="found it")
    row = await shop.told(A, ENDED)
    assert (row.reason, row.detail, row.started_ms) == (Reason.NONE, "found it", started_ms)


async def test_what_had_not_begun_is_not_said_to_be_resumed(shop: Floor) -> None:
    first = await running(shop, A, served=LOOKS_UP)
    shop.give(B)
    await first.tasks(1)
    die(first)
    other = await shop.puppet(served=LOOKS_UP)
    assert set(names_of(await other.tasks(2))) == {A, B}
    assert other.resumed == {A}


async def test_its_time_goes_on_while_nobody_has_it(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await shop.puppet(served=LOOKS_UP)
    shop.give(A, timeout_ms=60_000)
    await first.tasks(1)
    first.start(A)
    await shop.told(A, ACCEPTED)
    die(first)
    other = await shop.puppet(served=LOOKS_UP)
    await other.tasks(1)
    began_ms = boot_ms()
    monkeypatch.setattr(workers, "boot_ms", lambda: began_ms + 60_000)
    other.start(A)
    assert await other.cancelled() == [(A, Reason.TIMEOUT)]


async def test_what_no_handler_can_tell_is_lost(shop: Floor) -> None:
    puppet = await running(shop, A, served=LOOKS_UP)
    puppet.write(A, b"sent\n")
    puppet.finish(A, result=Result.LOST, detail="its worker died after it had sent it")
    row = await shop.told(A, INTERRUPTED)
    assert (row.reason, row.exit_code) == (Reason.NONE, 0)
    assert row.detail == "its worker died after it had sent it"
    assert shop.on_disk(A) == INTERRUPTED
    assert shop.executor_loop.running == 0


async def test_what_no_worker_comes_for_is_lost_after_a_while(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "WORKERLESS_MS", 100)
    monkeypatch.setattr(groups, "RESUMABLE_MS", 600)
    first = await running(shop, A, served=LOOKS_UP)
    shop.give(B)
    await first.tasks(1)
    die(first)
    await until(lambda: shop.book.status(B) != 0)
    assert shop.book.status(A) == ACCEPTED, "it waits longer than one that had not begun"
    row = await shop.told(A, INTERRUPTED)
    assert "no other looked it up" in row.detail


async def test_one_that_is_killed_while_nobody_has_it_is_lost(shop: Floor) -> None:
    first = await running(shop, A, served=LOOKS_UP)
    die(first)
    await until(lambda: not shop.executor_loop.workers.groups.workers())
    assert shop.executor_loop.workers.kill(A, Reason.KILLED)
    row = await shop.told(A, INTERRUPTED)
    assert row.detail.endswith(KILLED)


async def test_one_whose_workers_die_again_and_again_is_lost(
    shop: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "RESUMES_MAX", 1)
    puppet = await running(shop, A, served=LOOKS_UP)
    die(puppet)
    puppet = await shop.puppet(served=LOOKS_UP)
    await puppet.tasks(1)
    puppet.start(A)
    die(puppet)
    await shop.told(A, INTERRUPTED)
