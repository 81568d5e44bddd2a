"""Finding out what became of open launches: at takeover, when an executor returns, and from time
to time (SRE book ch. 24, "Resolving partial failures").

Looking it up is not enough: a start under way could arrive after the look. So the leader writes:
the same start again while its window is open, a fence afterwards; only the executor's answer to
either changes the ledger.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from cron.leader.dispatch import Dispatcher, rows_in
from cron.scheduler.reports import BEGUN, LAUNCHED, Source, fence_order, lost_fact, source_of
from cron.state.batches import Batch
from cron.state.state import ExecutorRecord, State
from launcher.launch import Reason
from launcher.pool.events import Fact, Joined, Told
from launcher.pool.orders import FenceOrder, StartBatch
from launcher.pool.pool import Pool
from launcher.pool.settle import UNREPORTED, Move, Standing, standing, unreported

MARGIN_MS = 200
"""A start this close to the end of its window is not sent again: it would be refused on arrival."""
STALE_MS = 3_000
"""An unanswered start is this old before it is sent again."""

_Place = tuple[int, int]  # log index of a Begin, row


class _Report(NamedTuple):
    """What an executor said when it joined, the log index at which State stood then, and which of
    its rows that are parts State had as launched."""

    known: Told
    at_index: int
    launched: frozenset[_Place]


class Settler:
    """Settles open launches with the executors that have them."""

    def __init__(self, pool: Pool, dispatcher: Dispatcher) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._reports: dict[Source, _Report] = {}

    def clear(self) -> None:
        """Forget reports; at the end of leadership."""
        self._reports.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether any report waits for its executor to be ready."""
        return bool(self._reports)

    @property
    def waiting(self) -> tuple[Source, ...]:
        """The executors and ledgers whose reports wait, in the order in which they joined."""
        return tuple(self._reports)

    def joined(self, event: Joined, state: State) -> None:
        """Keep an executor's report until it may be given orders, and what State says by now of
        what that has."""
        record = state.executor_of(event.executor, event.ledger)
        launched = frozenset() if record is None else frozenset(_launched_on(record))
        self._reports[(event.executor, event.ledger)] = _Report(event.known, state.index, launched)

    def ready(self, state: State, record: ExecutorRecord, now_ms: int) -> Told:
        """Settle with an executor that may get orders now; nothing if it was settled before.

        Sends starts and fences for what the executor does not know; returns what it said, which is
        news like any other, and what is lost since it said nothing of it.
        """
        report = self._reports.pop(source_of(record), None)
        if report is None:
            return Told()
        known, lost = _rows_of(report.known), list[Fact]()
        questions = _Questions(state, record, self._dispatcher)
        for batch in record.batches.values():
            if batch.index > report.at_index:
                continue  # it came after the report: its own answer is on the way
            reported = known.get(batch.index, set())
            begun, launched = _unreported(batch, reported, report)
            questions.ask(batch, begun, now_ms)
            if unreported(Standing.LAUNCHED, report.known.count) is Move.LOSE:
                lost += [lost_fact(batch.index, row) for row in launched]
        questions.send(self._pool)
        return Told((*report.known.facts, *lost), report.known.batches)

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about starts and kills that nobody answered for a while.

        A callback, a message or a wake-up may be lost; nothing may hang on any of them.
        """
        for record in state.executors.values():
            questions = _Questions(state, record, self._dispatcher)
            for batch in record.batches.values():
                if now_ms - batch.at_ms < STALE_MS:
                    continue
                for launch in batch.odd.values():
                    start = launch.start_on(record.number)
                    if start is not None:
                        self._dispatcher.kill_on(record, launch, start)
                questions.ask(batch, [*rows_in(batch, BEGUN), *batch.odd], now_ms)
            questions.send(self._pool)


class _Questions:
    """What is written to one executor of which it says nothing."""

    def __init__(self, state: State, record: ExecutorRecord, dispatcher: Dispatcher) -> None:
        self._state = state
        self._source = source_of(record)
        self._dispatcher = dispatcher
        self._again: list[StartBatch] = []
        self._fences: list[FenceOrder] = []

    def ask(self, batch: Batch, rows: Sequence[int], now_ms: int) -> None:
        """Have rows that are begun started again, or fenced. What the log is about to take back
        since its first order never left, nothing may order meanwhile."""
        again: list[int] = []
        for row in sorted(rows):
            if row < 0 or self._dispatcher.unsent.has(self._source, batch.index, row):
                continue
            where = _standing(batch, row, now_ms)
            if UNREPORTED[where] is Move.START:
                again.append(row)
            elif UNREPORTED[where] is Move.FENCE:
                self._fence(batch, row)
        usual, odd = (
            [row for row in again if row not in batch.odd],
            sorted(batch.odd.keys() & again),
        )
        self._again += self._dispatcher.orders(self._state, batch, usual, odd)

    def _fence(self, batch: Batch, row: int) -> None:
        launch = batch.launch(row)
        start = launch.start_on(batch.executor) if launch is not None else None
        if launch is not None and start is not None:
            self._fences.append(fence_order(self._state, launch, start))

    def send(self, pool: Pool) -> None:
        """Send it, a batch for each log index."""
        if self._again:
            pool.start(*self._source, self._again)
        if self._fences:
            pool.fence(*self._source, self._fences)


def _launched_on(record: ExecutorRecord) -> Iterator[_Place]:
    """Yield the rows that are launched parts at an executor; of others State tells when they
    were launched, of launches with parts only when the first one was."""
    for batch in record.batches.values():
        for row, launch in batch.odd.items():
            start = launch.start_on(record.number) if launch.parts else None
            if start is not None and start.state is LAUNCHED:
                yield batch.index, row


def _unreported(
    batch: Batch, reported: Container[int], report: _Report
) -> tuple[list[int], list[int]]:
    """Return the rows of a batch that are begun, and those that were launched when the executor
    reported, of which it said nothing."""
    begun = [row for row in rows_in(batch, BEGUN) if row not in reported]
    launched = [
        row
        for row in rows_in(batch, LAUNCHED)
        if row not in reported and batch.launched_index[row] <= report.at_index
    ]
    for row, launch in batch.odd.items():
        start = launch.start_on(batch.executor)
        if start is None or row < 0 or row in reported:
            continue
        if start.state is BEGUN:
            begun.append(row)
        elif launch.parts:
            if (batch.index, row) in report.launched:
                launched.append(row)
        elif launch.launched_index <= report.at_index:
            launched.append(row)  # it may have been usual when the executor reported
    return begun, launched


def _rows_of(told: Told) -> dict[int, set[int]]:
    """Return the rows of which an executor says something, by the log index of their Begin."""
    known: dict[int, set[int]] = {}
    for fact in told.facts:
        known.setdefault(fact.index, set()).add(fact.row)
    for batch in told.batches:
        known.setdefault(batch.index, set()).update(batch.rows)
    return known


def _standing(batch: Batch, row: int, now_ms: int) -> Standing:
    launch = batch.odd.get(row)
    start = launch.start_on(batch.executor) if launch is not None else None
    state = batch.states[row] if launch is None else (start.state if start is not None else 0)
    return standing(
        is_launched=state == LAUNCHED,
        cancel=Reason.NONE if launch is None else launch.cancel,
        not_after_ms=batch.not_after_ms[row] if launch is None else launch.not_after_ms,
        now_wall_ms=now_ms,
        margin_ms=MARGIN_MS,
    )
