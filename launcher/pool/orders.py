"""Orders for executors, as values: batches to start with the work of their rows, fences, kills."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from launcher.launch import Reason
from launcher.names import AttemptName
from launcher.pool import limits

BatchRows: TypeAlias = tuple[int, Sequence[int]]
"""Log index of a Begin, and rows of the batch that it began on an executor."""
_SIZE: Final = attrgetter("size")


class Work(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a job is to do, at one revision. Whoever orders it keeps one of these: another one is
    another work, and sent again. `job` is `tenant/job`, `spec` an encoded `WorkSpec`; `size` is how
    many bytes of a message they take, about."""

    job: str
    spec: bytes
    size: int


def work_of(job: str, spec: bytes) -> Work:
    """Return the work of a job."""
    return Work(job, spec, len(job) + len(spec) + limits.WORK_FRAME_BYTES)


class StartBatch(msgspec.Struct, frozen=True, gc=False):
    """Rows of one batch to start, each once; columns as in pool.proto, but without differences.

    `index` is the log index of the Begin (rule R4), `rows` are ascending. `not_after_ms` is the
    leader's wall time after which the executor refuses a row (rule R7), `deadlines_ms` that after
    which it must not start by anybody's clock; 0: there is none. `is_first`: no leader has given
    these orders to any stream before.
    """

    index: int
    rows: Sequence[int]
    works: Sequence[Work]
    scheduled_s: Sequence[int]
    not_after_ms: Sequence[int]
    deadlines_ms: Sequence[int] = ()
    attempts: Sequence[int] = ()
    triggers: Sequence[int] = ()
    parts: Sequence[int] = ()
    is_first: bool = False

    def cut(self, first: int, last: int) -> StartBatch:
        """Return a batch of the rows at places `first` to before `last`."""
        if first <= 0 and last >= len(self.rows):
            return self
        place = slice(first, last)
        return self._with(self.rows[place], lambda column: column[place])

    def without(self, works: Container[Work]) -> StartBatch:
        """Return a batch without the rows that have one of these works."""
        if len(self.works) == 1:
            return self.cut(0, 0) if self.works[0] in works else self
        kept = [place for place, work in enumerate(self.works) if work not in works]
        rows = [self.rows[place] for place in kept]
        return self._with(rows, lambda column: [column[place] for place in kept])

    def _with(
        self, rows: Sequence[int], pick: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> StartBatch:
        """Return a batch of some rows; `pick` returns what a column has for these."""

        def picked(column: Sequence[Any]) -> Sequence[Any]:
            return pick(column) if len(column) > 1 else column

        return StartBatch(
            self.index,
            rows,
            picked(self.works),
            picked(self.scheduled_s),
            picked(self.not_after_ms),
            picked(self.deadlines_ms),
            picked(self.attempts),
            picked(self.triggers),
            picked(self.parts),
            self.is_first,
        )

    @property
    def size(self) -> int:
        """How many bytes it takes if no work was sent before, about."""
        works: int = sum(map(_SIZE, self.works))
        if len(self.works) == 1:
            works *= len(self.rows)
        return limits.BATCH_BYTES + limits.ROW_BYTES * len(self.rows) + works


class FenceOrder(msgspec.Struct, frozen=True, gc=False):
    """A tombstone to leave for a row, unless it is known. Who forgot numbers knows it by name."""

    index: int
    row: int
    name: AttemptName


class KillOrder(msgspec.Struct, frozen=True, gc=False):
    """A row to end; its Cancel is committed (rule R8)."""

    index: int
    row: int
    reason: Reason
