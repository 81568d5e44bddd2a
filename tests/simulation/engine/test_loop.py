"""Ordinary asyncio code runs in a ProcessLoop, by the world's clock, and dies with its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.engine.events import Events
from tests.simulation.engine.loop import ProcessLoop


class Rig:
    """A loop in a world of its own; what is done aside takes a second."""

    def __init__(self) -> None:
        self.events = Events()
        self.loop = ProcessLoop(
            self.events, draw_lag_s=lambda: 0.001, aside=self.aside, inside=contextlib.nullcontext
        )
        self.done: list[Any] = []

    def aside(self, work: Callable[[], Any], told: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - told to who waits
            result = error
        self.events.after(1.0, told, result)

    def spawn(self, coro: Any) -> asyncio.Task[Any]:
        with self.loop.running():
            task = self.loop.create_task(coro)
            task.add_done_callback(lambda task: self.done.append(task.result()))
            return task


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_time_is_the_worlds(rig: Rig) -> None:
    async def sleeper() -> float:
        await asyncio.sleep(2.0)
        return asyncio.get_running_loop().time()

    rig.spawn(sleeper())
    rig.events.run(1.9)
    assert rig.done == []
    rig.events.run(3.0)
    assert rig.done == [pytest.approx(2.0, abs=0.01)]


def test_timeouts_end_what_never_comes(rig: Rig) -> None:
    async def waiter() -> str:
        try:
            async with asyncio.timeout(0.5):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "given up"
        return "?"

    rig.spawn(waiter())
    rig.events.run(1.0)
    assert rig.done == ["given up"]


def test_threads_answer_later(rig: Rig) -> None:
    async def asks() -> tuple[int, str]:
        number = await asyncio.to_thread(lambda: 7)
        try:
            await asyncio.to_thread(lambda: [][1])
        except IndexError as error:
            return number, str(error)
        return number, "?"

    rig.spawn(asks())
    rig.events.run(1.9)
    assert rig.done == []
    rig.events.run(3.0)
    assert rig.done == [(7, "list index out of range")]


def test_a_stopped_process_does_nothing_and_goes_on(rig: Rig) -> None:
    async def counter() -> int:
        for _ in range(5):
            await asyncio.sleep(0.1)
        return 5

    rig.spawn(counter())
    rig.events.run(0.25)
    rig.loop.paused = True
    rig.events.run(10.0)
    assert rig.done == []
    rig.loop.resume()
    rig.events.run(11.0)
    assert rig.done == [5]


def test_a_dead_process_forgets_everything(rig: Rig) -> None:
    async def sleeper() -> None:
        await asyncio.sleep(1.0)

    rig.spawn(sleeper())
    rig.events.run(0.5)
    rig.loop.die()
    rig.events.run(5.0)
    assert rig.done == []


def test_what_waits_on_its_way_out_is_ended_too(rig: Rig) -> None:
    passed: list[str] = []

    async def clings() -> None:
        thread = asyncio.create_task(asyncio.to_thread(passed.append, "thread"))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            passed.append("out")
            await asyncio.wait([thread])
            passed.append("never")

    rig.spawn(clings())
    rig.events.run(0.5)
    rig.loop.die()
    gc.collect()
    assert passed == ["thread", "out"]


def test_nobody_else_sees_its_loop(rig: Rig) -> None:
    async def looks() -> bool:
        return asyncio.get_running_loop() is rig.loop

    rig.spawn(looks())
    rig.events.run(1.0)
    assert rig.done == [True]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_things_of_one_moment_happen_in_the_order_they_were_put(rig: Rig) -> None:
    seen: list[int] = []
    for number in range(5):
        rig.events.at(1.0, seen.append, number)
    rig.events.at(0.5, seen.append, 9)
    rig.events.run(1.0)
    assert seen == [9, 0, 1, 2, 3, 4]


def test_the_past_is_now(rig: Rig) -> None:
    seen: list[float] = []
    rig.events.run(1.0)
    rig.events.at(0.5, lambda: seen.append(rig.events.now))
    rig.events.run(2.0)
    assert seen == [1.0]


def test_the_digest_tells_other_runs_apart() -> None:
    digests = set()
    for what in ("one", "one", "other"):
        events = Events(tracing=True)
        events.note("somebody", what)
        events.mark(what.encode())
        digests.add(events.digest)
        assert events.trace == [f"  0.000000 somebody {what}"]
    assert len(digests) == 2
