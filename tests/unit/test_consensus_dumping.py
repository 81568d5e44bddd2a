"""Dumps that are asked for: each is of all that was applied when it was asked for, or of more."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consensus.config import EngineConfig
from consensus.engine import replica
from consensus.engine.replica import EngineLog
from consensus.errors import Stopped
from consensus.leadership import Position
from tests.conformance.ledger import Ledger
from tests.fakes.ports import free_ports

TIMEOUT_S = 60
TIMEOUT_MS = 5_000


class Asking(Ledger):
    """An Applier that has a dump taken as soon as it has applied `snapshot`."""

    def __init__(self) -> None:
        super().__init__()
        self.log: EngineLog | None = None
        self.asked: list[tuple[Position, asyncio.Task[Position]]] = []

    def apply(self, position: Position, entry: bytes) -> int:
        if entry == b"snapshot":
            asyncio.get_running_loop().call_soon(self._ask, position)
        return super().apply(position, entry)

    def _ask(self, position: Position) -> None:
        assert self.log is not None
        self.asked.append((position, asyncio.create_task(self.log.snapshot())))


@asynccontextmanager
async def alone(path: Path, applier: Asking) -> AsyncIterator[EngineLog]:
    """A cell of one replica, that leads."""
    config = EngineConfig(
        replica="r1",
        peers={"r1": f"127.0.0.1:{free_ports(1)[0]}"},
        data=str(path),
        start="bootstrap",
        election_min_ms=100,
        election_max_ms=200,
        heartbeat_ms=20,
    )
    failures: list[BaseException] = []
    log = applier.log = EngineLog(config, applier, on_failure=failures.append)
    leads = asyncio.Event()
    log.subscribe(lambda belief: leads.set() if belief.leads else None)
    await log.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await leads.wait()
            yield log
    finally:
        await log.stop()
    assert failures == []


class SlowDisk:
    """Holds back the writing of dumps until told, and can let it fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Semaphore(0)
        self.error: OSError | None = None
        self.real = replica.write_dump
        patch.setattr(replica, "write_dump", self.write)

    def write(self, *args: object, **options: object) -> object:
        self.begun.release()
        self.may_go_on.acquire(timeout=TIMEOUT_S)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.real(*args, **options)  # type: ignore[arg-type]

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, True, TIMEOUT_S)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    made = SlowDisk(monkeypatch)
    yield made
    for _ in range(20):
        made.may_go_on.release()


async def test_an_entry_may_have_a_dump_taken_that_holds_it(tmp_path: Path) -> None:
    applier = Asking()
    async with alone(tmp_path, applier) as log:
        for number in range(5):
            await log.append(b"%d" % number, timeout_ms=TIMEOUT_MS)
            await log.append(b"snapshot", timeout_ms=TIMEOUT_MS)
        dumped = [(await task, at) for at, task in applier.asked]
    assert len(dumped) == 5
    assert all(of.index >= at.index for of, at in dumped)
    again = Asking()
    async with alone(tmp_path, again):
        assert again.restored, "it begins with a dump"
        assert again.restored[0] >= dumped[-1][1]
        assert again.entries[-1] == b"snapshot"


async def test_one_that_is_asked_for_meanwhile_is_a_later_one(
    tmp_path: Path, slow: SlowDisk
) -> None:
    async with alone(tmp_path, Asking()) as log:
        early = (await log.append(b"early", timeout_ms=TIMEOUT_MS)).position
        first = asyncio.create_task(log.snapshot())
        await slow.has_begun()
        late = (await log.append(b"late", timeout_ms=TIMEOUT_MS)).position
        second = [asyncio.create_task(log.snapshot()) for _ in range(3)]
        slow.may_go_on.release()
        assert early.index <= (await first).index < late.index
        await slow.has_begun()
        assert not any(task.done() for task in second), "its state is of before they asked"
        slow.may_go_on.release()
        assert min([(await task).index for task in second]) >= late.index


async def test_one_dump_answers_all_who_asked_for_no_later_state(
    tmp_path: Path, slow: SlowDisk
) -> None:
    async with alone(tmp_path, Asking()) as log:
        await log.append(b"early", timeout_ms=TIMEOUT_MS)
        first = asyncio.create_task(log.snapshot())
        await slow.has_begun()
        second = asyncio.create_task(log.snapshot())
        await asyncio.sleep(0)
        slow.may_go_on.release()
        assert await first == await second


async def test_an_error_is_told_to_all_who_wait_and_the_next_one_is_taken(
    tmp_path: Path, slow: SlowDisk
) -> None:
    async with alone(tmp_path, Asking()) as log:
        await log.append(b"early", timeout_ms=TIMEOUT_MS)
        first = asyncio.create_task(log.snapshot())
        await slow.has_begun()
        await log.append(b"late", timeout_ms=TIMEOUT_MS)
        second = asyncio.create_task(log.snapshot())
        await asyncio.sleep(0)
        slow.error = OSError(errno.ENOSPC, "no room")
        slow.may_go_on.release()
        for task in (first, second):
            with pytest.raises(OSError, match="no room"):
                await task
        for _ in range(2):
            slow.may_go_on.release()
        assert (await log.snapshot()).index >= 4


async def test_what_waits_ends_with_the_log(tmp_path: Path, slow: SlowDisk) -> None:
    async with alone(tmp_path, Asking()) as log:
        await log.append(b"early", timeout_ms=TIMEOUT_MS)
        waiting = asyncio.create_task(log.snapshot())
        await slow.has_begun()
        slow.may_go_on.release()
        stop = asyncio.create_task(log.stop())
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        await stop
        assert isinstance(outcome, Position | Stopped)
        with pytest.raises(Stopped):
            await log.snapshot()
