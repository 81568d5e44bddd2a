"""Orders to executors as values: batches to start with the work of their rows, fences, kills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from launcher.protocol.names import AttemptName
from launcher.protocol.status import Reason

WORK_FRAME_BYTES: Final = 24
"""What one piece of work takes in a message beside its job and its spec."""
W = TypeVar("W")
BatchRows: TypeAlias = tuple[int, Sequence[int]]
"""Log index of a Begin, and rows of the batch that it began on an executor."""


class JobWork(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The work of a job at one revision, compared by identity: another object is sent again.

    `job` is `tenant/job`, `spec` an encoded `WorkSpec`, `size` about how many bytes they take in a
    message.
    """

    job: str
    spec: bytes
    size: int


def work_of(job: str, spec: bytes) -> JobWork:
    """Return the work of a job."""
    return JobWork(job, spec, len(job) + len(spec) + WORK_FRAME_BYTES)


class StartBatch(msgspec.Struct, Generic[W], frozen=True, array_like=True, kw_only=True, gc=False):
    """Rows of one batch to start, each once: the order that a leader gives, that an executor's
    journal keeps, and that a worker gets from its executor. Columns as in pool.proto, but without
    differences: they have one value for all rows, or one for each, or none for the default.

    `index` is the log index of the Begin (rule R4), `rows` is ascending. `works` are the leader's,
    or numbers that the journal or the connection of a worker gave to them. The executor refuses a
    row after the leader's wall time `not_after_ms` (rule R7), and after `deadlines_ms` by any
    clock; 0: no deadline. `is_first`: no leader has given these orders to a stream before.

    A worker knows rows by numbers of its connection: `first`, and those that follow. It gets
    neither `rows` nor times at which they expire.
    """

    first: int = 0
    index: int
    epoch: str = ""
    works: Sequence[W]
    scheduled_s: Sequence[int]
    attempts: Sequence[int] = []
    triggers: Sequence[int] = []
    parts: Sequence[int] = []
    rows: Sequence[int] = []
    not_after_ms: Sequence[int] = []
    deadlines_ms: Sequence[int] = []
    is_first: bool = False

    def pick(self, places: Iterable[int]) -> StartBatch[W]:
        """Return a batch of the rows at these places, which are ascending."""
        places = list(places)
        found = {name: getattr(self, name) for name in _COLUMNS}
        picked = {name: [one[at] for at in places] for name, one in found.items() if len(one) > 1}
        rows = [self.rows[at] for at in places]
        return msgspec.structs.replace(self, rows=rows, **picked)


_COLUMNS: Final = (
    "works",
    "scheduled_s",
    "not_after_ms",
    "deadlines_ms",
    "attempts",
    "triggers",
    "parts",
)


class FenceOrder(msgspec.Struct, frozen=True, gc=False):
    """A tombstone to write for a row, unless the row is known. A restored cell, which may not know
    the numbers, knows it by name."""

    index: int
    row: int
    name: AttemptName


class KillOrder(msgspec.Struct, frozen=True, gc=False):
    """A row to end; its Cancel is committed (rule R8). An executor that knows the row under another
    name kills nothing."""

    index: int
    row: int
    reason: Reason
    name: AttemptName
