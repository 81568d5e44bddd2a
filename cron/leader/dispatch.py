"""From applied outcomes to orders for executors: the only place from which anything is started.

What is sent follows from what was applied in the leader's own epoch, never from the return of an
append, which may be lost (DESIGN.md, "A reign").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec

from cron.failpoints import hit
from cron.state import commands as c
from cron.state.codec import encode_work
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import ExecutorRecord, LaunchRow, State
from launcher.launch import Reason
from launcher.names import AttemptName
from launcher.pool.orders import StartOrder
from launcher.pool.pool import Pool

_ENDED = (
    Verdict.ACCEPTED,
    Verdict.AMENDED,
    Verdict.NOT_OPEN,
    Verdict.WRONG_ATTEMPT,
    Verdict.WRONG_STATE,
)
"""Verdicts after which an executor need not report the end of that attempt again."""


class Dispatcher:
    """Sends what applied entries ask for, while this replica leads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._work: dict[tuple[int, int], bytes] = {}  # (job number, revision) -> encoded work
        self.unsent: dict[AttemptName, tuple[str, str]] = {}
        """Starts that never left and never will, by the executor and ledger that they were for,
        until the log has taken them back: nothing may order them meanwhile."""

    def clear(self) -> None:
        """Forget what was encoded; at a takeover and when jobs change."""
        self._work.clear()

    def follow(self, state: State, outcome: Outcome) -> None:
        """Send starts, kills and acknowledgements for one applied entry of our own."""
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                hit("after-begin")
                self._start(state, command, result)
            elif isinstance(command, c.Cancel):
                self._kill(state, command, result)
            elif isinstance(command, c.Launched):
                hit("after-launched")

    def start_order(
        self, state: State, row: LaunchRow, part: int = 1, *, is_first: bool = False
    ) -> StartOrder | None:
        """Return the order to start a part of a begun attempt; None if its job cannot be found, or
        if the log is about to take the attempt back."""
        if row.job is None:
            return None
        cached = self._work.get((row.number, row.revision))
        if cached is None:
            work = row.job.work
            if row.job.is_limited and not work.guarded:  # declared to an older release
                work = msgspec.structs.replace(work, guarded=True)
            cached = encode_work(work)
            self._work[(row.number, row.revision)] = cached
        name = attempt_name(state, row.key, row.attempt, part)
        if name in self.unsent:
            return None
        return StartOrder(
            name, row.begun_index, row.not_after_ms, cached, is_first, row.deadline_ms
        )

    def _start(self, state: State, command: c.Begin, result: Result) -> None:
        by_executor: dict[int, list[StartOrder]] = {}
        verdicts = result.items or repeat(Verdict.ACCEPTED)
        for (executor, begun), verdict in zip(command.rows(), verdicts, strict=False):
            row = None if verdict else state.active.get(begun.key)  # 0 is ACCEPTED
            if row is not None:
                order = self.start_order(state, row, begun.part or 1, is_first=True)
                if order is not None:
                    by_executor.setdefault(executor, []).append(order)
        for number, orders in by_executor.items():
            record = state.executors.get(number)
            if record is not None:
                self._pool.start(record.executor, record.ledger, orders)

    def _kill(self, state: State, command: c.Cancel, result: Result) -> None:
        for item, verdict in zip(command.items, result.items, strict=True):
            row = state.active.get(item.key) if verdict == Verdict.ACCEPTED else None
            if row is not None:
                self.kill(state, row)

    def kill(self, state: State, row: LaunchRow) -> None:
        """Order the end of an attempt whose Cancel is committed, part by part (rule R8)."""
        for start in row.starts() if row.cancel is not Reason.NONE else ():
            record = state.executors.get(start.executor)
            if record is not None:
                name = attempt_name(state, row.key, row.attempt, start.part)
                self._pool.kill(record.executor, record.ledger, [(name, row.cancel)])

    def acknowledge(self, executor: ExecutorRecord, names: Sequence[AttemptName]) -> None:
        """Tell an executor that these ends are committed."""
        if names:
            self._pool.ack(executor.executor, executor.ledger, names)


def is_settled(verdict: int) -> bool:
    """Whether the end of an attempt needs no further report after this verdict."""
    return verdict in _ENDED


def attempt_name(state: State, key: c.Key, attempt: int, part: int = 1) -> AttemptName:
    """Return the name that the executor's ledger has it under."""
    return AttemptName(state.launch_name(key), attempt, part)
