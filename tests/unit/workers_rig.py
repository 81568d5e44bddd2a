"""An executor's loop with its turns running, and workers that do only what a test tells them.

A puppet is a process of its own, so that it can be killed and stopped; it connects to the socket,
hands the connection over to the test, and waits. What it says, the test says. With each SIGUSR1 it
takes 64 MiB of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from launcher.clock import wall_ms
from launcher.protocol.reports import BatchReport, RowReport
from launcher.protocol.work import WorkSpec
from launcher.worker import wire
from launcher.worker.wire import Result
from tests.sent_tasks import SentTask, SentTasks
from tests.unit.rows_rig import Start, orders, rows_of
from tests.unit.test_executor_loop import Ear, Shop

WITHIN_S = 60.0
HANDLER = "app.mail"
_PUPPET = """
import os, signal, socket, sys
held = []
signal.signal(signal.SIGUSR1, lambda *_: held.append(bytearray(64 << 20)))
end = socket.socket(socket.AF_UNIX)
end.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0), [b"x"], [end.fileno()])
end.close()
os.read(int(sys.argv[2]), 1)
"""
M = TypeVar("M")


def named(number: int, job: str = "mail", tenant: str = "default") -> str:
    """The attempt name of one of many launches."""
    minute, second = divmod(number, 60)
    return f"{tenant}/{job}@2026-11-20T15:{minute:02}:{second:02}Z#1"


class Book(Ear):
    """A report sink that keeps the newest row under each name."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, RowReport] = {}

    def send(self, changes: list[BatchReport]) -> None:
        super().send(changes)
        self.rows.update((row.name, row) for row in rows_of(changes))

    def status(self, name: str) -> int:
        """What was last told of a name; 0 for nothing."""
        row = self.rows.get(name)
        return row.status if row else 0


class Floor(Shop):
    """An executor loop whose turns and ticks go on by themselves."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.book = Book()
        self.ear = self.book
        self.puppets: list[Puppet] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, **settings: Any) -> None:
        await super().open(**settings)
        self.executor_loop.attach(self.ear)
        self._tasks = [
            asyncio.create_task(self.executor_loop.run(self.thread)),
            asyncio.create_task(self.executor_loop.workers.run()),
            asyncio.create_task(self.executor_loop.workers.watch_memory()),
        ]
        await until(lambda: self.ear.hello is not None)

    async def halt(self) -> None:
        """Take no turn any more, as if the process had died."""
        tasks = [*self._tasks, self.watch]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.watch = asyncio.create_task(asyncio.sleep(0))

    async def close(self) -> None:
        await self.halt()
        for puppet in self.puppets:
            puppet.end()
        await super().close()

    async def puppet(self, **hello: Any) -> Puppet:
        """A worker that was let in."""
        puppet = await self.stranger()
        puppet.greet(**hello)
        assert isinstance(await puppet.read(), wire.Welcome)
        return puppet

    async def stranger(self) -> Puppet:
        """A worker that is connected and has said nothing."""
        puppet = await asyncio.to_thread(Puppet, self.directory / "workers.sock")
        self.puppets.append(puppet)
        return puppet

    def give(self, *names: str, late_ms: int = -60_000, **work: Any) -> None:
        """Let the leader order launches of a handler."""
        spec = msgspec.msgpack.encode(WorkSpec((), **{"handler": HANDLER} | work))
        starts = [Start(name, spec, wall_ms() - late_ms) for name in names]
        self.executor_loop.order(self.ear, orders(*starts))

    async def told(self, name: str, status: int) -> RowReport:
        """The row of a launch, once the leader was told of that status."""
        await until(lambda: self.book.status(name) == status)
        return self.book.rows[name]


class Puppet:
    """A worker process, and its connection in the hands of a test. It has the tasks that it got, by
    name."""

    def __init__(self, path: Path) -> None:
        ours, theirs = socket.socketpair()
        held, self._hold = os.pipe()
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PUPPET, str(path), str(held)],
                stdin=theirs.fileno(),
                pass_fds=(held,),
            )
            theirs.close()
            _, (fd, *_), _, _ = socket.recv_fds(ours, 1, 1)
        os.close(held)
        self.end_of_line = socket.socket(fileno=fd)
        self.end_of_line.setblocking(False)
        self._frames = wire.to_child()
        self._heard: list[wire.ToChild] = []
        self._sent = SentTasks()
        self.numbers: dict[str, int] = {}
        self.resumed: set[str] = set()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    # ---- what it says

    def greet(self, **fields: Any) -> None:
        """Say Hello; one handler, two threads and room for two more unless told otherwise."""
        handlers = [wire.Served(name) for name in fields.pop("handlers", [HANDLER])]
        said: dict[str, Any] = {
            "version": wire.VERSION, "group": "app", "handlers": fields.pop("served", handlers),
            "threads": 2, "buffer": 2, "pid": self.pid, "parent_pid": os.getpid(),
        }  # fmt: skip
        self.say(wire.Hello(**said | fields))

    def say(self, message: wire.FromChild) -> None:
        """Send a message."""
        self.send(wire.encode(message))

    def send(self, data: bytes) -> None:
        """Send bytes, all of them."""
        self.end_of_line.setblocking(True)
        try:
            self.end_of_line.sendall(data)
        finally:
            self.end_of_line.setblocking(False)

    def start(self, *names: str) -> None:
        """Say that these have begun."""
        self.say(wire.Started([self.number(name) for name in names]))

    def leave(self, *names: str) -> None:
        """Say that it leaves, and gives these back."""
        self.say(wire.Leaving([self.number(name) for name in names]))

    def return_(self, *names: str) -> None:
        """Say that these were cancelled before they began."""
        tasks = [(self.number(name), 0, 0) for name in names]
        self.say(wire.Done([wire.Ends(Result.CANCELLED, tasks)]))

    def write(self, name: str, piece: bytes) -> None:
        """Write output of a launch."""
        self.say(wire.Output(self.number(name), piece))

    def number(self, name: str) -> int:
        """The number of a task; that of one which it never got for a name that it never got."""
        return self.numbers.get(name, 1 << 40)

    def finish(self, *names: str, result: wire.Result = wire.Result.OK, **fields: Any) -> None:
        """Say that these, which had begun, are over."""
        now = wall_ms()
        times = (fields.pop("started_ms", now), fields.pop("finished_ms", now))
        tasks = [(self.number(name), *times) for name in names]
        self.say(wire.Done([wire.Ends(result, tasks, **fields)]))

    # ---- what it hears

    async def read(self) -> wire.ToChild | None:
        """The next message, leases left out; None at the end."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WITHIN_S):
            while True:
                while self._heard:
                    message = self._heard.pop(0)
                    if not isinstance(message, wire.Lease):
                        return message
                try:
                    received = await loop.sock_recv(self.end_of_line, 1 << 16)
                except ConnectionError:
                    received = b""
                if not received:
                    return None
                self._heard += self._frames.feed(received)

    async def expect(self, kind: type[M]) -> M:
        """The next message, which is of that kind."""
        message = await self.read()
        assert isinstance(message, kind), message
        return message

    async def run(self) -> list[SentTask]:
        """The tasks of the next message, which are to be run."""
        message = await self.expect(wire.Run)
        found = self._sent.read(message)
        self.numbers |= {one.name: one.number for one in found}
        self.resumed |= {one.name for one in found if one.number in message.resumed}
        return found

    async def tasks(self, count: int) -> list[SentTask]:
        """The next tasks that it is to run."""
        found: list[SentTask] = []
        while len(found) < count:
            found += await self.run()
        assert len(found) == count, found
        return found

    async def cancelled(self) -> list[tuple[str, int]]:
        """The name and the reason of each task that the next message cancels."""
        names = {number: name for name, number in self.numbers.items()}
        asked = (await self.expect(wire.Cancel)).tasks
        return [(names[number], reason) for number, reason in asked]

    # ---- what becomes of it

    def signal(self, number: int) -> None:
        """Send its process a signal."""
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the connection; the process lives on."""
        self.end_of_line.close()

    async def exit_code(self) -> int:
        """Wait until its process has ended."""
        return await asyncio.to_thread(self.process.wait, WITHIN_S)

    def end(self) -> None:
        """End it for good."""
        self.end_of_line.close()
        os.close(self._hold)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; fails after a deadline."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - the condition is another task's state
            await asyncio.sleep(0.002)


@asynccontextmanager
async def floor(directory: Path, **settings: Any) -> AsyncIterator[Floor]:
    """A floor that is open."""
    one = Floor(directory)
    await one.open(**{"term_grace_ms": 300} | settings)
    try:
        yield one
    finally:
        await one.close()


async def running(shop: Floor, *names: str, **hello: Any) -> Puppet:
    """A worker that has begun with these; they may be over before the leader hears of that."""
    puppet = await shop.puppet(**{"threads": 2, "buffer": 2} | hello)
    shop.give(*names)
    await puppet.tasks(len(names))
    puppet.start(*names)
    await until(lambda: all(map(shop.book.status, names)))
    return puppet


def names_of(tasks: Sequence[SentTask]) -> list[str]:
    """The names of tasks, in order."""
    return [task.name for task in tasks]
