"""Finding out what became of open launches: at takeover, when an executor returns, and from time
to time (SRE book ch. 24, "Resolving partial failures").

Looking it up is not enough: a start under way could arrive after the look. So the leader writes:
the same start again while its window is open, a fence afterwards; only the executor's answer to
either changes the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cron.leader.dispatch import Dispatcher, Source, StartRows, fence_order, source_of
from cron.leader.news import lost_fact
from cron.state.state import ExecutorRecord, LaunchRow, Start, State
from launcher.launch import LaunchState
from launcher.pool.events import Fact, Joined, Told
from launcher.pool.orders import FenceOrder
from launcher.pool.pool import Pool
from launcher.pool.settle import UNREPORTED, Move, Standing, standing, unreported

MARGIN_MS = 200
"""A start this close to the end of its window is not sent again: it would be refused on arrival."""
STALE_MS = 3_000
"""An unanswered start is this old before it is sent again."""

_Place = tuple[int, int]  # log index of a Begin, row


class _Report(NamedTuple):
    """What an executor said when it joined, the log index at which State stood then, and which of
    its rows State had as launched."""

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
    def waiting(self) -> frozenset[Source]:
        """The executors and ledgers whose reports wait."""
        return frozenset(self._reports)

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
        for launch, start in _starts_on(record):
            if start.row in known.get(launch.begun_index, ()) or _is_newer(launch, start, report):
                continue
            where = _standing(launch, start, now_ms)
            move = unreported(where, report.known.count)
            if move is Move.LOSE:
                lost.append(lost_fact(launch, start))
            else:
                questions.ask(launch, start, move)
        questions.send(self._pool)
        return Told((*report.known.facts, *lost), report.known.batches)

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about starts and kills that nobody answered for a while.

        A callback, a message or a wake-up may be lost; nothing may hang on any of them.
        """
        for record in state.executors.values():
            questions = _Questions(state, record, self._dispatcher)
            for launch, start in _starts_on(record):
                if now_ms - launch.begun_at_ms < STALE_MS:
                    continue
                self._dispatcher.kill_on(record, launch, start)
                where = _standing(launch, start, now_ms)
                if where is not Standing.LAUNCHED:
                    questions.ask(launch, start, UNREPORTED[where])
            questions.send(self._pool)


class _Questions:
    """What is written to one executor of which it says nothing."""

    def __init__(self, state: State, record: ExecutorRecord, dispatcher: Dispatcher) -> None:
        self._state = state
        self._record = record
        self._source = source_of(record)
        self._dispatcher = dispatcher
        self._again = StartRows()
        self._fences: list[FenceOrder] = []

    def ask(self, launch: LaunchRow, start: Start, move: Move) -> None:
        """Have a part started again, or fenced. What the log is about to take back since its first
        order never left, nothing may order meanwhile."""
        if self._dispatcher.unsent.has(self._source, launch.begun_index, start.row):
            return
        if move is Move.START:
            self._dispatcher.add_start(self._state, self._again, launch, start)
        elif move is Move.FENCE:
            self._fences.append(fence_order(self._state, launch, start))

    def send(self, pool: Pool) -> None:
        """Send it, a batch for each log index."""
        batches = self._again.batches()
        if batches:
            pool.start(*self._source, batches)
        if self._fences:
            pool.fence(*self._source, self._fences)


def _starts_on(record: ExecutorRecord) -> Iterator[tuple[LaunchRow, Start]]:
    """Yield what is open at an executor."""
    for launch in record.open.values():
        start = launch.start_on(record.number)
        if start is not None:
            yield launch, start


def _launched_on(record: ExecutorRecord) -> Iterator[_Place]:
    for launch, start in _starts_on(record):
        if start.state is LaunchState.LAUNCHED:
            yield launch.begun_index, start.row


def _rows_of(told: Told) -> dict[int, set[int]]:
    """Return the rows of which an executor says something, by the log index of their Begin."""
    known: dict[int, set[int]] = {}
    for fact in told.facts:
        known.setdefault(fact.index, set()).add(fact.row)
    for batch in told.batches:
        known.setdefault(batch.index, set()).update(batch.rows)
    return known


def _is_newer(launch: LaunchRow, start: Start, report: _Report) -> bool:
    """Whether a row came after a report: its own answer is on the way."""
    is_launched = start.state is LaunchState.LAUNCHED
    was_launched = (launch.begun_index, start.row) in report.launched
    return launch.begun_index > report.at_index or (is_launched and not was_launched)


def _standing(launch: LaunchRow, start: Start, now_ms: int) -> Standing:
    return standing(
        is_launched=start.state is LaunchState.LAUNCHED,
        cancel=launch.cancel,
        not_after_ms=launch.not_after_ms,
        now_wall_ms=now_ms,
        margin_ms=MARGIN_MS,
    )
