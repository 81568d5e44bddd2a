"""Executors that keep output, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from launcher.pool.errors import NotConnected, OutputUnavailable
from launcher.pool.session import OutputSlice, OutputsWaiting
from launcher.protocol.names import AttemptName
from launcher.protocol.v1 import pool_pb2


class FakeExecutors:
    """A pool of executors. `kept`: what each has of an attempt, and how much it dropped before.

    `hanging` ones are waited for until `released`; `failing` says why an executor gives nothing, or
    not that attempt.
    `packed` is what they have packed, `places` what they are told about it.
    `after_slice` is called with the number of slices given.
    """

    def __init__(self) -> None:
        self.connected: set[str] = {"e1"}
        self.kept: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.failing: dict[str, str] = {}
        self.hanging: set[str] = set()
        self.released = asyncio.Event()
        self.asked: list[tuple[str, str, int]] = []
        self.at_once = 0
        self.most_at_once: dict[str, int] = {}
        self.after_slice: Callable[[int], None] = lambda _count: None
        self._now: dict[str, int] = {}
        self.places: list[tuple[str, pool_pb2.OutputPlace]] = []
        self.packed: dict[str, bytes] = {}
        self.waiting: dict[str, int] = {}
        self.problems: dict[str, str] = {}

    def sessions(self) -> list[Any]:
        names = sorted(self.connected)
        return [SimpleNamespace(executor=name, ledger=f"ledger-{name}") for name in names]

    def outputs_waiting(self) -> OutputsWaiting:
        count = sum(self.waiting.get(name, 0) for name in self.connected)
        first = min((name for name in self.problems if self.waiting.get(name)), default="")
        return OutputsWaiting(count, first, self.problems.get(first, ""))

    def place_output(self, executor: str, ledger: str, place: pool_pb2.OutputPlace) -> None:
        assert ledger == f"ledger-{executor}"
        self.places.append((executor, place))

    async def output(
        self, executor: str, ledger: str, name: AttemptName, *,
        offset: int, limit: int, timeout_ms: int, packed: bool = False,
    ) -> OutputSlice:  # fmt: skip
        assert ledger == f"ledger-{executor}"
        if packed:
            self.kept[(executor, str(name))] = 0, self.packed.get(str(name), b"")
        assert timeout_ms > 0
        self.asked.append((executor, str(name), offset))
        self._now[executor] = self._now.get(executor, 0) + 1
        self.at_once = max(self.at_once, sum(self._now.values()))
        self.most_at_once[executor] = max(self.most_at_once.get(executor, 0), self._now[executor])
        try:
            await asyncio.sleep(0)
            if executor in self.hanging:
                await self.released.wait()
        finally:
            self._now[executor] -= 1
        if executor not in self.connected:
            raise NotConnected(f"executor {executor} is not connected")
        if why := self.failing.get(executor) or self.failing.get(str(name)):
            raise OutputUnavailable(why)
        dropped, content = self.kept.get((executor, str(name)), (0, b""))
        begin = min(max(offset, dropped), dropped + len(content))
        data = content[begin - dropped : begin - dropped + limit]
        is_last = begin + len(data) == dropped + len(content)
        piece = OutputSlice(data, begin, len(content), is_last, dropped)
        self.after_slice(len(self.asked))
        return piece


class IdleUploads:
    """The uploads of an executor that has printed nothing."""

    waiting = 0
    problem = ""

    def attach(self, link: object, *, stores: bool) -> None: ...

    def detach(self, link: object) -> None: ...

    def receive(self, place: pool_pb2.OutputPlace) -> None: ...

    def fetched(self, name: str) -> None: ...
