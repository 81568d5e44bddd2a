"""The executor's end of the spawner's socket: nothing said is lost, and little of it wakes us."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from launcher.errors import InvariantViolated, SpawnerDied
from launcher.executor.children import Children, News, _Line, decode, encode
from launcher.executor.clock import boot_ms
from launcher.executor.lease import Lease
from launcher.executor.pulse import Pulse
from launcher.limits import FRAME_BYTES_MAX


class Wire:
    """A line, the spawner's end of it, and what was heard, look by look."""

    def __init__(self) -> None:
        ours, self.spawner = socket.socketpair()
        self.looks: list[list[News]] = []
        self.then: Callable[[], None] = lambda: None
        self.heard = asyncio.Event()
        self.line = _Line(self._hear, ours, 5)
        self._ours = ours

    async def open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.line, sock=self._ours)
        self.line.listen(Pulse(boot_ms()))

    def _hear(self, news: list[News]) -> None:
        self.looks.append(news)
        then, self.then = self.then, lambda: None
        then()
        self.heard.set()

    def say(self, *messages: News) -> None:
        """Say each message in a frame of its own."""
        for message in messages:
            self.spawner.sendall(encode([message]))

    async def looks_of(self, count: int) -> list[list[News]]:
        async with asyncio.timeout(30):
            while len(self.looks) < count:
                self.heard.clear()
                await self.heard.wait()
        return self.looks

    async def over(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.line.over), 30)

    def close(self) -> None:
        self.spawner.close()
        if self.line.transport is not None:
            self.line.transport.abort()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = Wire()
    await wire.open()
    yield wire
    wire.close()


@pytest.mark.parametrize(
    "message",
    [
        ["start", {"name": "é", "argv": ["/bin/true", "\n"], "timeout_ms": 0, "login": None}],
        ["started", "a", 1, 1 << 40, -1],
        ["failed", "a", 13, "directory /\udcff: no such"],
    ],
)
def test_a_message_comes_back_as_it_was(message: News) -> None:
    frame = encode([message])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(frame[4:]) == [message]


async def test_what_is_said_after_a_look_is_heard_in_one(wire: Wire) -> None:
    later: list[News] = [["started", name, 1, 2, 3] for name in "bcde"]
    wire.then = lambda: wire.say(*later)
    wire.say(["started", "a", 1, 2, 3])
    assert await wire.looks_of(2) == [[["started", "a", 1, 2, 3]], later]


async def test_a_frame_in_pieces_is_heard_when_it_is_whole(wire: Wire) -> None:
    frame = encode([["ended", "a", 0, 0, 1, 0, ""]])
    wire.then = lambda: wire.spawner.sendall(frame[7:])
    wire.spawner.sendall(encode([["started", "a", 1, 2, 3]]) + frame[:7])
    assert (await wire.looks_of(2))[1] == [["ended", "a", 0, 0, 1, 0, ""]]


async def test_the_end_comes_after_all_that_was_said(wire: Wire) -> None:
    def leave() -> None:
        wire.say(["started", "b", 1, 2, 3])
        wire.spawner.close()

    wire.then = leave
    wire.say(["started", "a", 1, 2, 3])
    await wire.over()
    assert [one[1] for look in wire.looks for one in look] == ["a", "b"]


async def test_the_last_words_are_heard_also_when_an_order_found_nobody(wire: Wire) -> None:
    def die() -> None:
        # Between two looks: it says something, dies, and then we write.
        wire.say(["started", "b", 1, 2, 3], ["started", "c", 1, 2, 3])
        wire.spawner.close()
        assert wire.line.transport is not None
        wire.line.transport.write(encode([["ping"]]))

    wire.then = die
    wire.say(["started", "a", 1, 2, 3])
    await wire.over()
    assert [one[1] for look in wire.looks for one in look] == ["a", "b", "c"]


async def test_nothing_is_read_before_somebody_listens_or_after() -> None:
    wire = Wire()
    wire.say(["started", "a", 1, 2, 3])
    await asyncio.get_running_loop().create_connection(lambda: wire.line, sock=wire._ours)
    await asyncio.sleep(0)
    assert wire.looks == []
    wire.line.listen(Pulse(boot_ms()))
    await wire.looks_of(1)
    wire.line.pause()
    wire.say(["started", "b", 1, 2, 3])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wire.looks_of(2), 0.02)
    wire.close()


async def test_a_frame_beyond_the_bound_ends_the_line(wire: Wire) -> None:
    wire.spawner.sendall((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(InvariantViolated, match="a frame of"):
        await wire.over()


async def test_what_a_hearer_raises_reaches_who_listens() -> None:
    def hear(news: list[News]) -> None:
        raise KeyError("x")

    some = Children(hear, 1, "ledger", 5)
    await some.start()
    order: dict[str, Any] = {"name": "a"}
    some.send([["drain", 0], ["start", order]])
    with pytest.raises(KeyError):
        await asyncio.wait_for(some.listen(Lease()), 30)
    await some.stop()


async def test_a_spawner_that_ends_is_said_to_have_died() -> None:
    some = Children(lambda news: None, 1, "ledger", 5)
    await some.start()
    listening = asyncio.create_task(some.listen(Lease()))
    assert await some.stop()
    with pytest.raises(SpawnerDied, match="is gone"):
        await asyncio.wait_for(listening, 30)
    some.send([["ping"]])  # nobody is there; it is no error


async def test_a_stopped_spawner_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        some = Children(lambda news: None, 1, "ledger", 5)
        await some.start()
        await some.stop()
    # Fewer where threads of an earlier test have let go of theirs meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before
