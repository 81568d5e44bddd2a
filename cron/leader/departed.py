"""Executors that were drained and have left: State lets go of them, and people ask again.

A script that is run twice must not fail because the executor has gone meanwhile, as it was told to;
an id that is misspelt must not pass for one that has gone. What each replica applies says which it
is, so that a new leader knows it, too. A replica that began, or was given a snapshot, after an
executor had left does not: then it is not found, as one that never was.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cron.leader.applier import StateApplier
from cron.state.commands import Claim, ExecutorJoined, ExecutorLeft
from cron.state.outcome import Outcome, Verdict
from cron.state.pool import Drain
from cron.state.state import ExecutorRecord

DEPARTED_KEPT: Final = 10_000
"""Executors remembered, about half a KiB each: as many as a cell may have, all of which may be
replaced in a night."""


class Departure(msgspec.Struct, frozen=True):
    """An executor as it was when it left, and when that was (ms, the leader's clock). Not its
    whole record, whose labels may be long."""

    executor: str
    ledger: str
    host: str
    version: str
    drained_by: str
    drained_ms: int
    left_ms: int


class Departed:
    """Remembers, on every replica, the executors that left because they were drained."""

    def __init__(self, applier: StateApplier) -> None:
        self._applier = applier
        self._drained: dict[int, ExecutorRecord] = {}  # by number, of State
        self._left: dict[str, Departure] = {}  # by id, the oldest first
        applier.subscribe(self._applied)

    def of(self, executor: str) -> Departure | None:
        """Return how an executor left that was drained, None if it came back since, or if that is
        not known."""
        return self._left.get(executor)

    def _applied(self, _index: int, outcome: Outcome) -> None:
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, Claim | Drain):
                # With a Claim, since State may be of a snapshot, and older than what was seen.
                records = self._applier.state.executors.values()
                self._drained = {record.number: record for record in records if record.drained_by}
            elif isinstance(command, ExecutorJoined):
                self._left.pop(command.executor, None)
            elif isinstance(command, ExecutorLeft) and result.verdict is Verdict.ACCEPTED:
                self._leave(self._drained.pop(command.number, None))

    def _leave(self, record: ExecutorRecord | None) -> None:
        if record is None:
            return
        self._left.pop(record.executor, None)
        self._left[record.executor] = Departure(
            executor=record.executor,
            ledger=record.ledger,
            host=record.host,
            version=record.version,
            drained_by=record.drained_by,
            drained_ms=record.drained_ms,
            left_ms=self._applier.state.at_ms,
        )
        if len(self._left) > DEPARTED_KEPT:
            del self._left[next(iter(self._left))]
