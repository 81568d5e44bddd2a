"""A real worker at a real executor's socket: both ends of the wire, and what the ledger says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from launcher.executor.rows import ENDED
from launcher.protocol.status import Reason
from launcher.worker.options import ChildOptions, WorkerOptions
from launcher.worker.parent import start_child
from tests.unit.worker_rig import WITHIN_S, in_folder, write_app
from tests.unit.workers_rig import Floor, floor, named, until


@asynccontextmanager
async def served(folder: Path, threads: int = 2, **settings: Any) -> AsyncIterator[Floor]:
    """An executor whose one worker has come."""
    (folder / "app").mkdir()
    write_app(folder / "app")
    (folder / "executor").mkdir(mode=0o700)
    async with floor(folder / "executor", **settings) as one:
        socket = str(one.directory / "workers.sock")
        options = WorkerOptions(app="shop", executor=socket, threads=threads)
        with in_folder(folder / "app"):
            child = start_child(ChildOptions(worker=options))
        try:
            await until(lambda: len(one.executor_loop.workers.groups.offers) == 1)
            yield one
        finally:
            os.killpg(child.pid, signal.SIGKILL)  # it leads a group: what handlers forked is in it
            await asyncio.to_thread(child.wait, WITHIN_S)


async def test_what_handlers_say_is_in_the_ledger(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        (offer,) = one.executor_loop.workers.groups.offers
        assert offer.group == "shop"
        assert "invoice" in offer.handlers
        said = {
            "ok": (b'"fine"', Reason.NONE, "fine", 0),
            "anoop": (b"", Reason.NONE, "", 0),
            "retry": (b"5", Reason.RETRY, "not yet", 5_000),
            "snooze": (b"", Reason.SNOOZE, "later", 3_600_000),
            "raise": (b"", Reason.RAISED, "ValueError: so not at", 0),
            "invoice": (b"{}", Reason.FATAL, "payload does not fit Invoice", 0),
        }
        for number, (handler, (payload, *_)) in enumerate(said.items()):
            one.give(named(number), handler=handler, payload=payload)
        for number, (_, reason, detail, after_ms) in enumerate(said.values()):
            row = await one.told(named(number), ENDED)
            assert (row.reason, row.retry_after_ms) == (reason, after_ms)
            assert row.detail.startswith(detail)
            assert 0 < row.started_ms <= row.finished_ms


async def test_many_launches_end_once_each(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        for at in range(0, 1_000, 100):
            names = [named(number) for number in range(at, at + 100)]
            one.give(*names, handler="noop")
            for name in names:
                assert (await one.told(name, ENDED)).reason == Reason.NONE


async def test_a_handler_over_its_time_is_cancelled_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        one.give(named(1), handler="until_cancelled", timeout_ms=50)
        row = await one.told(named(1), ENDED)
        assert (row.reason, row.detail) == (Reason.TIMEOUT, "cancelled: timeout")


async def test_a_silent_handler_is_ended(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        one.give(named(1), handler="async_until_cancelled", heartbeat_ms=50)
        assert (await one.told(named(1), ENDED)).reason == Reason.SILENT


async def test_a_crash_is_told_of_what_ran_and_not_of_what_waited(tmp_path: Path) -> None:
    async with served(tmp_path, threads=1) as one:
        one.give(named(1), handler="crash")
        one.give(named(2), handler="noop")
        assert (await one.told(named(1), ENDED)).reason == Reason.WORKER_DIED
        assert one.book.status(named(2)) != ENDED
