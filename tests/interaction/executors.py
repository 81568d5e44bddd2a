"""Executors of a story: a ledger in memory, and the wires between them and the leader.

They hold to the rules of the real ones: a known name is answered and not repeated (design), a
fenced name, an older epoch and a start after its window are refused for good (R3, R7), and a
restarted executor reports what it ran as interrupted (R4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.executor.refusals import late_by
from launcher.pool.lease import LeaseTimes
from launcher.protocol.columns import full
from launcher.protocol.names import AttemptName, LaunchName
from launcher.protocol.orders import BatchRows, FenceOrder, JobWork, KillOrder, StartBatch
from launcher.protocol.reports import RowReport
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch

Place = tuple[int, int]
"""Log index of a Begin, row of the batch."""


@dataclass
class Message:
    """An order on its way: `verb` is start, fence, kill or ack."""

    verb: str
    epoch: Epoch
    place: Place
    name: AttemptName
    body: Any = None


@dataclass
class FakeExecutor:
    """One executor process and its ledger."""

    executor: str
    ledger: str
    slots: int
    highest: Epoch = field(default_factory=Epoch)
    rows: dict[AttemptName, RowReport] = field(default_factory=dict)
    started: list[AttemptName] = field(default_factory=list)
    acked: list[AttemptName] = field(default_factory=list)

    def receive(self, message: Message, now_ms: int) -> RowReport | None:
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
                return RowReport(*message.place, Status.UNKNOWN)
            if known.status is Status.ACCEPTED:
                return self.end(message.name, 143, now_ms, message.body)
            return known
        if known is None and message.verb == "start":
            known = self._start(message, now_ms)
        elif known is None:
            known = RowReport(*message.place, Status.FENCED)
        self.rows[message.name] = known
        return known

    def report(self) -> dict[AttemptName, RowReport]:
        """What the ledger says when it connects."""
        return {name: fact for name, fact in self.rows.items() if name not in self.acked}

    def _start(self, message: Message, now_ms: int) -> RowReport:
        late_ms = now_ms - message.body
        if late_ms > 0:
            return RowReport(*message.place, Status.REFUSED, detail=late_by(late_ms))
        self.started.append(message.name)
        return RowReport(*message.place, Status.ACCEPTED, started_ms=now_ms)

    def end(
        self, name: AttemptName, exit_code: int, now_ms: int, reason: Reason = Reason.NONE
    ) -> RowReport:
        """End what runs under `name`."""
        row = self.rows[name]
        assert row.status is Status.ACCEPTED, f"{name} does not run"
        ended = RowReport(
            row.index, row.row, Status.ENDED, reason, exit_code, row.started_ms, now_ms
        )
        self.rows[name] = ended
        return ended

    def restart(self) -> None:
        """The process dies and its children with it; the ledger stays."""
        for name, row in self.rows.items():
            if row.status is Status.ACCEPTED:
                died = RowReport(row.index, row.row, Status.INTERRUPTED, detail="the executor died")
                self.rows[name] = died


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
        self.names: dict[tuple[str, int, int], AttemptName] = {}
        """Of each row that was ordered, by executor and place: stories speak of names."""

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

    def _order(self, verb: str, executor: str, ledger: str, place: Place, body: Any = None) -> None:
        name = self.names[(executor, *place)]
        self._send(executor, ledger, Message(verb, self.epoch, place, name, body))

    def order(
        self,
        executor: str,
        ledger: str,
        *,
        starts: Sequence[StartBatch[JobWork]] = (),
        fences: Sequence[FenceOrder] = (),
        kills: Sequence[KillOrder] = (),
        acks: Sequence[BatchRows] = (),
    ) -> None:
        for batch in starts:
            count = len(batch.rows)
            columns = (batch.scheduled_s, batch.not_after_ms, batch.triggers)
            whole = [full(column, count) for column in columns]
            tries = [full(column, count, 1) for column in (batch.attempts, batch.parts)]
            works = batch.works if len(batch.works) == count else list(batch.works) * count
            for row, work, at_s, end_ms, trigger, attempt, part in zip(
                batch.rows, works, *whole, *tries, strict=True
            ):
                launch = LaunchName(work.job, at_s, trigger)
                self.names[(executor, batch.index, row)] = AttemptName(launch, attempt, part)
                self._order("start", executor, ledger, (batch.index, row), end_ms)
        for fence in fences:
            self.names[(executor, fence.index, fence.row)] = fence.name
            self._order("fence", executor, ledger, (fence.index, fence.row))
        for kill in kills:
            self._order("kill", executor, ledger, (kill.index, kill.row), kill.reason)
        for index, rows in acks:
            for row in rows:
                self._order("ack", executor, ledger, (index, row))
