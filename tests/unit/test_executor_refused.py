"""How often an executor asks again that a leader refuses, in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from launcher.config import ExecutorConfig
from launcher.executor import connector
from launcher.executor.channel import StreamEnded
from launcher.executor.connector import Connector
from launcher.executor.loop import ExecutorLoop
from launcher.protocol.work import Epoch
from tests.simulation.loop import SimLoop
from tests.simulation.patching import patched

LEADERS = ("127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:7403")
LEADER = LEADERS[1]


class Able:
    """An executor loop that can always work, and has met no leader."""

    def __init__(self) -> None:
        self.able = asyncio.Event()
        self.able.set()
        self.highest = Epoch()


class Silent:
    """What replicas report of who leads: nothing."""

    newest = None

    def __init__(self, *_: object) -> None:
        """Watch nobody."""

    async def run(self, *_: object) -> None:
        await asyncio.Event().wait()

    newer = run

    def usable(self, address: str) -> str:
        return address


async def visits_within(seconds: float, refusal: StreamEnded) -> list[str]:
    """Return the addresses that were visited, where the leader ends all streams with `refusal`."""
    visits: list[str] = []

    class Stream:
        welcomed = False
        epoch = Epoch()

        def __init__(self, *_: object) -> None:
            """Open nothing yet."""

        async def attend(self, address: str) -> None:
            visits.append(address)
            if address != LEADER:
                raise StreamEnded("this replica does not lead", LEADER)
            raise refusal

    loop = cast("ExecutorLoop", cast("Any", Able()))
    config = ExecutorConfig(id="e1", data="d", leaders=LEADERS, cell="c")
    with patched(connector, LeaderStream=Stream, LeaderWatch=lambda *_: Silent()):
        way = asyncio.create_task(Connector(config, loop, "i1").run())
        await asyncio.sleep(seconds)
        way.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await way
    return visits


def asked_in_a_minute(refusal: StreamEnded) -> int:
    """Return how often the leader was asked."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(visits_within(60.0, refusal)).count(LEADER)
    finally:
        loop.close()


def test_an_executor_that_a_leader_refuses_asks_again_once_a_second_at_most() -> None:
    # E.g. a second executor that was started with the id of another: it may run for weeks.
    taken = StreamEnded("ALREADY_EXISTS: e1 is connected already", is_refusal=True)
    assert 50 <= asked_in_a_minute(taken) <= 61


def test_an_executor_whose_stream_only_broke_asks_again_at_once() -> None:
    assert asked_in_a_minute(StreamEnded("UNAVAILABLE: the connection broke")) > 300
