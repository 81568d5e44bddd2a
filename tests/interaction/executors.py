"""Executors of a story: a ledger in memory, and the wires between them and the leader.

They hold to the rules of the real ones: a known name is answered and not repeated (design), a
fenced name, an older epoch and a start after its window are refused for good (R3, R7), and a
restarted executor reports what it ran as interrupted (R4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launcher.launch import Reason
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate
from launcher.pool.lease import LeaseTimes
from launcher.pool.orders import StartOrder
from launcher.work import Epoch


@dataclass
class Message:
    """An order on its way: `verb` is start, fence, kill or ack."""

    verb: str
    epoch: Epoch
    name: AttemptName
    body: Any = None


@dataclass
class FakeExecutor:
    """One executor process and its ledger."""

    executor: str
    ledger: str
    slots: int
    highest: Epoch = field(default_factory=Epoch)
    rows: dict[AttemptName, Fact] = field(default_factory=dict)
    started: list[AttemptName] = field(default_factory=list)
    acked: list[AttemptName] = field(default_factory=list)

    def receive(self, message: Message, now_ms: int) -> Fact | None:
        """Do as ordered and return the answer; None where there is none."""
        if message.epoch < self.highest:
            return None  # from a leader that is none any more
        self.highest = message.epoch
        known = self.rows.get(message.name)
        if message.verb == "ack":
            self.acked.append(message.name)  # no need to report it again; the name stays (R4)
            return None
        if message.verb == "kill":
            if known is None:
                return Fact(message.name, Fate.UNKNOWN)
            if known.fate is Fate.ACCEPTED:
                return self.end(message.name, 143, now_ms, message.body)
            return known
        if known is None and message.verb == "start":
            known = self._start(message.name, message.body, now_ms)
        elif known is None:
            known = Fact(message.name, Fate.FENCED)
        self.rows[message.name] = known
        return known

    def report(self) -> tuple[Fact, ...]:
        """What the ledger says when it connects."""
        return tuple(fact for name, fact in self.rows.items() if name not in self.acked)

    def _start(self, name: AttemptName, order: StartOrder, now_ms: int) -> Fact:
        if now_ms > order.not_after_ms:
            late_ms = now_ms - order.not_after_ms
            return Fact(name, Fate.REFUSED, detail=f"{late_ms} ms too late")
        self.started.append(name)
        return Fact(name, Fate.ACCEPTED, started_ms=now_ms)

    def end(
        self, name: AttemptName, exit_code: int, now_ms: int, reason: Reason = Reason.NONE
    ) -> Fact:
        """End what runs under `name`."""
        row = self.rows[name]
        assert row.fate is Fate.ACCEPTED, f"{name} does not run"
        ended = Fact(name, Fate.ENDED, reason, exit_code, row.started_ms, now_ms)
        self.rows[name] = ended
        return ended

    def restart(self) -> None:
        """The process dies and its children with it; the ledger stays."""
        for name, row in self.rows.items():
            if row.fate is Fate.ACCEPTED:
                self.rows[name] = Fact(name, Fate.INTERRUPTED, detail="the executor died")


@dataclass
class FakeSession:
    """What the leader sees of a connected executor."""

    executor: str
    ledger: str
    slots: int
    is_leased: bool = False
    gets_work: bool = False


class FakePool:
    """The leader's side of the wires: orders wait on them until a story delivers or drops them."""

    lease = LeaseTimes()

    def __init__(self) -> None:
        self.epoch = Epoch()
        self.connected: dict[str, FakeSession] = {}
        self.wires: dict[str, list[Message]] = {}
        self.sent: list[tuple[str, Message]] = []

    def sessions(self) -> list[FakeSession]:
        return [self.connected[name] for name in sorted(self.connected)]

    def is_leased(self, executor: str, ledger: str) -> bool:
        """Whether that executor may be given orders."""
        session = self.connected.get(executor)
        return session is not None and session.ledger == ledger and session.is_leased

    def close(self) -> None:
        """The leader is none any more: nothing leaves; what is on a wire may still arrive."""
        self.connected.clear()

    def welcome(self, executor: str) -> None:
        session = self.connected.get(executor)
        if session is not None:
            session.is_leased = session.gets_work = True

    def _send(self, executor: str, ledger: str, message: Message) -> bool:
        session = self.connected.get(executor)
        if session is None or session.ledger != ledger:
            return False
        self.wires.setdefault(executor, []).append(message)
        self.sent.append((executor, message))
        return True

    def start(self, executor: str, ledger: str, orders: list[StartOrder]) -> None:
        for order in orders:
            self._send(executor, ledger, Message("start", self.epoch, order.name, order))

    def fence(self, executor: str, ledger: str, names: list[AttemptName], *, index: int) -> None:
        for name in names:
            self._send(executor, ledger, Message("fence", self.epoch, name))

    def kill(self, executor: str, ledger: str, kills: list[tuple[AttemptName, Reason]]) -> None:
        for name, reason in kills:
            self._send(executor, ledger, Message("kill", self.epoch, name, reason))

    def ack(self, executor: str, ledger: str, names: list[AttemptName]) -> None:
        for name in names:
            self._send(executor, ledger, Message("ack", self.epoch, name))
