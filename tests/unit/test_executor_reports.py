"""Reports on their way out: at once after a pause, gathered while others follow, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from launcher.config import ExecutorConfig
from launcher.executor.ledger import Page
from launcher.executor.rows import ENDED, changes_of
from launcher.executor.stream import LeaderStream
from launcher.executor.uploads import Packed
from launcher.protocol.columns import sums
from launcher.protocol.reports import RowReport
from tests.unit.test_executor_return import IdleExecutorLoop, executor_loop_of

WITHIN_S = 60.0


class Outgoing:
    """A stream without a replica, and what would leave over it."""

    def __init__(self) -> None:
        config = ExecutorConfig(id="e1", data="d", leaders=("127.0.0.1:1",))
        self.stream = LeaderStream(config, executor_loop_of(IdleExecutorLoop()), "i1")

    def report(self, *rows: int) -> None:
        """Report the ends of these rows."""
        self.stream.send(changes_of([RowReport(9, row, ENDED, started_ms=1) for row in rows]))

    def left(self) -> list[Any]:
        """What has left: the rows of a message with reports, the kind of any other."""
        found: list[Any] = []
        while not self.stream._outgoing.empty():
            message = self.stream._outgoing.get_nowait()
            assert message is not None
            kind = message.WhichOneof("kind")
            rows = [row for batch in message.reports.batches for row in sums(batch.rows)]
            found.append(rows if kind == "reports" else kind)
        return found


async def test_reports_that_follow_others_share_the_next_message() -> None:
    outgoing = Outgoing()
    outgoing.report(1, 2)
    assert outgoing.left() == [[1, 2]]
    outgoing.stream._gathers_until_s = asyncio.get_running_loop().time() + WITHIN_S
    outgoing.report(3)
    outgoing.report(4)
    assert outgoing.left() == []
    outgoing.stream.send([], at_once=True)
    assert outgoing.left() == [[3, 4]]


async def test_gathered_reports_leave_by_themselves() -> None:
    outgoing = Outgoing()
    outgoing.report(1)
    outgoing.report(2)
    async with asyncio.timeout(WITHIN_S):
        for row in (1, 2):
            message = await outgoing.stream._outgoing.get()
            assert message is not None
            assert [one.rows for one in message.reports.batches] == [[row]]


async def test_what_follows_from_a_report_does_not_overtake_it() -> None:
    outgoing = Outgoing()
    outgoing.stream._gathers_until_s = asyncio.get_running_loop().time() + WITHIN_S
    outgoing.report(1)
    outgoing.stream.keep("default/a@2026-11-20T15:00:00Z#1", Packed(Path(), 1, b""))
    outgoing.stream._gathers_until_s = asyncio.get_running_loop().time() + WITHIN_S
    outgoing.report(2)
    outgoing.stream.recollect(Page([], 0, None))
    assert outgoing.left() == [[1], "kept", [2], "recollection"]
