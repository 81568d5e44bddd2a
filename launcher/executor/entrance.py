"""Connections of workers, until it is known who they are: a Hello that is in order, in time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, Protocol

from launcher import logs
from launcher.executor.line import Line, Peer
from launcher.executor.worker import Worker
from launcher.limits import WORKERS_MAX
from launcher.worker import wire

log = logs.get()

HELLO_WITHIN_S: Final = 10.0


class House(Protocol):
    """Who takes workers in, and hears what they say from then on."""

    def refusal(self, hello: wire.Hello, pid: int) -> str:
        """Why a process that greets so is not fed, or nothing."""

    def join(self, worker: Worker) -> None:
        """Take a worker in."""

    def take(self, worker: Worker, messages: Sequence[wire.FromChild]) -> None:
        """Hear what it says."""

    def over(self, worker: Worker, blame: str) -> None:
        """Its connection is over; `blame` is why, if that is its fault."""


class Entrance:
    """Where connections wait for their Hello."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.visitors: set[Visitor] = set()
        self._noted = ""

    def enter(self, end: socket.socket) -> None:
        """Take a new connection."""
        if len(self.visitors) >= WORKERS_MAX:
            self.note(0, f"{len(self.visitors)} connections wait to say hello already")
            end.close()
            return
        try:
            peer = Peer(end)
        except OSError as error:
            self.note(0, f"it cannot be watched: {error}")
            end.close()
            return
        self.visitors.add(Visitor(self, end, peer))

    def close(self) -> None:
        """Send away all that have said nothing yet."""
        for visitor in list(self.visitors):
            visitor.line.close()

    def note(self, pid: int, text: str) -> None:
        """Log a refusal that a person has to end, once: a worker tries again and again."""
        if text != self._noted:
            self._noted = text
            log.warning("worker.refused", pid=pid, error=text)


class Visitor:
    """One connection, before and after its Hello."""

    def __init__(self, entrance: Entrance, end: socket.socket, peer: Peer) -> None:
        self._entrance = entrance
        self._peer = peer
        self._worker: Worker | None = None
        self.line = Line(end, self._take, self._over)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HELLO_WITHIN_S, self.line.close, "it did not say hello")

    def _take(self, messages: list[wire.FromChild]) -> None:
        if self._worker is None:
            first, messages = messages[0], messages[1:]
            if not isinstance(first, wire.Hello):
                self.line.close("its first message is no hello")
                return
            if refusal := self._entrance.house.refusal(first, self._peer.pid):
                self.line.close(refusal)
                return
            self._leave_entrance()
            self._worker = Worker(first, self._peer, self.line)
            self._entrance.house.join(self._worker)
        if any(isinstance(one, wire.Hello) for one in messages):
            self.line.close("it said hello twice")
        elif messages:
            self._entrance.house.take(self._worker, messages)

    def _over(self, blame: str) -> None:
        if self._worker is not None:
            self._entrance.house.over(self._worker, blame)
            return
        if blame:
            self._entrance.note(self._peer.pid, blame)
        self._leave_entrance()
        self._peer.close()

    def _leave_entrance(self) -> None:
        self._timer.cancel()
        self._entrance.visitors.discard(self)
