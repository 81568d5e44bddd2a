"""Finding out what became of open launches: at takeover, when an executor returns, and from time
to time (SRE book ch. 24, "Resolving partial failures").

Looking it up is not enough: a start under way could arrive after the look. So the leader writes:
the same start again while its window is open, a fence afterwards; only the executor's answer to
either changes the ledger.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from cron.leader.dispatch import Dispatcher
from cron.state import commands as c
from cron.state.state import ExecutorRecord, LaunchRow, Start, State
from launcher.launch import LaunchState, Reason
from launcher.names import AttemptName
from launcher.pool.events import Fact, Fate, Joined
from launcher.pool.pool import Pool
from launcher.pool.settle import OpenAttempt, settle

MARGIN_MS = 200
"""A start this close to the end of its window is not sent again: it would be refused on arrival."""
STALE_MS = 3_000
"""An unanswered start is this old before it is sent again."""


_Started = tuple[c.Key, int, int]  # key, attempt, part


class _Report(NamedTuple):
    """What an executor said when it joined, the log index at which State stood then, and what of
    its State had as launched."""

    joined: Joined
    at_index: int
    launched: frozenset[_Started]


class Settler:
    """Settles open launches with the executors that have them."""

    def __init__(self, pool: Pool, dispatcher: Dispatcher) -> None:
        self._pool = pool
        self._dispatcher = dispatcher
        self._reports: dict[tuple[str, str], _Report] = {}

    def clear(self) -> None:
        """Forget reports; at the end of leadership."""
        self._reports.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether any report waits for its executor to be ready."""
        return bool(self._reports)

    @property
    def waiting(self) -> frozenset[tuple[str, str]]:
        """The executors and ledgers whose reports wait."""
        return frozenset(self._reports)

    def joined(self, event: Joined, state: State) -> None:
        """Keep an executor's report until it may be given orders, and what State says by now of
        what that has."""
        record = state.executor_of(event.executor, event.ledger)
        launched = frozenset() if record is None else frozenset(_launched_on(record))
        self._reports[(event.executor, event.ledger)] = _Report(event, state.index, launched)

    def ready(self, state: State, record: ExecutorRecord, now_ms: int) -> list[Fact]:
        """Settle with an executor that may get orders now; nothing if it was settled before.

        Sends starts, fences, kills and acknowledgements; returns the facts to record.
        """
        report = self._reports.pop((record.executor, record.ledger), None)
        if report is None:
            return []
        known = {fact.name: fact for fact in report.joined.known}
        attempts = [
            item
            for row in record.open.values()
            if (start := row.start_on(record.number)) is not None
            and (item := self._open_attempt(state, row, start, report, known)) is not None
        ]
        settlement = settle(attempts, known, now_ms, MARGIN_MS, _lost_names(state, known))
        executor, ledger = record.executor, record.ledger
        if settlement.starts:
            self._pool.start(executor, ledger, settlement.starts)
        if settlement.fences:
            self._pool.fence(executor, ledger, settlement.fences, index=state.index)
        if settlement.kills:
            self._pool.kill(executor, ledger, settlement.kills)
        self._dispatcher.acknowledge(record, settlement.acks)
        return [*settlement.facts, *map(_never_heard_of, settlement.lost)]

    def _open_attempt(
        self,
        state: State,
        row: LaunchRow,
        start: Start,
        report: _Report,
        known: Container[AttemptName],
    ) -> OpenAttempt | None:
        """Return what the log knows of an attempt that the report knows of, or would know of."""
        order = self._dispatcher.start_order(state, row, start.part)
        if order is None:
            return None
        is_launched = start.state is LaunchState.LAUNCHED
        was_launched = (row.key, row.attempt, start.part) in report.launched
        is_newer = row.begun_index > report.at_index or (is_launched and not was_launched)
        if is_newer and order.name not in known:
            return None  # it came after the report: its own answer is on the way
        return OpenAttempt(
            name=order.name,
            begun_index=order.begun_index,
            not_after_ms=order.not_after_ms,
            is_launched=is_launched,
            cancel=row.cancel,
            work=order.work,
            deadline_ms=order.deadline_ms,
        )

    def stale(self, state: State, now_ms: int) -> None:
        """Ask again about starts and kills that nobody answered for a while.

        A callback, a message or a wake-up may be lost; nothing may hang on any of them.
        """
        for row in state.active.values():
            if now_ms - row.begun_at_ms < STALE_MS:
                continue
            if row.cancel is not Reason.NONE:
                self._dispatcher.kill(state, row)
            for start in row.starts():
                record = state.executors.get(start.executor)
                if record is not None and start.state is LaunchState.BEGUN:
                    self._ask_again(state, record, row, start.part, now_ms)

    def _ask_again(
        self, state: State, record: ExecutorRecord, row: LaunchRow, part: int, now_ms: int
    ) -> None:
        order = self._dispatcher.start_order(state, row, part)
        if order is None:
            return
        is_wanted = row.cancel is Reason.NONE and now_ms + MARGIN_MS < row.not_after_ms
        if is_wanted:
            self._pool.start(record.executor, record.ledger, [order])
        else:
            self._pool.fence(record.executor, record.ledger, [order.name], index=row.begun_index)


def _launched_on(record: ExecutorRecord) -> Iterator[_Started]:
    for row in record.open.values():
        start = row.start_on(record.number)
        if start is not None and start.state is LaunchState.LAUNCHED:
            yield row.key, row.attempt, start.part


def _never_heard_of(name: AttemptName) -> Fact:
    return Fact(name, Fate.INTERRUPTED, is_recorded=False)


def _lost_names(state: State, known: dict[AttemptName, Fact]) -> frozenset[AttemptName]:
    """Return those of the reported attempts that the log holds for lost (rule R9)."""
    names = []
    for name in known:
        key: c.Key | None = state.key_of(name.launch)
        if key is not None and (key, name.attempt) in state.lost:
            names.append(name)  # each part has its own to tell
    return frozenset(names)
