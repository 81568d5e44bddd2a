"""A row of the ledger once its launch is over: what history keeps, audits and shows.

Rows are appended in log order, the same bytes on every replica. Append fields at the end with a
default, never reorder or reuse a place. `detail` is text that came from outside, and `note` says
the rest.
"""

from __future__ import annotations

import enum
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from cron.launch_state import LaunchState
from cron.notes import Note
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

NO_ROW: Final = -1
"""The row of what was never begun, or of what a restored cell knows by name alone."""
RESTORED_BY: Final = "restore"
"""`by` of rows that a restored cell recorded from what executors remember (rule R13)."""

Place: TypeAlias = tuple[int, str, str, int]
"""Log index of a Begin, executor id and ledger, and the row among what was begun there."""


class RowKind(enum.IntEnum):
    """What a row says."""

    ENDED = 0  # one launch (or attempt of it) is over
    RANGE = 1  # a run of skipped instants: `count` of them from scheduled_s to last_s
    AMENDMENT = 2  # a late report of an attempt that was recorded as lost (rule R9)
    OPEN = 4  # a launch that is not over, as it stands now: never in history. 3 marks a chunk


class Part(msgspec.Struct, array_like=True, gc=False):
    """A start of an attempt on one executor: one of several, each on its own, or the only one; or
    what is said of it.

    `executor` is the number that State gave to the executor `name` with that `ledger`, 0 where
    nobody remembers. `row` is the number of the part among what its entry began there. Times are
    the executor's; `held_until_ms` is the end of the time in which a lost part may be running.
    """

    executor: int
    state: LaunchState = LaunchState.BEGUN
    reason: Reason = Reason.NONE
    exit_code: int = -1
    started_ms: int = 0
    finished_ms: int = 0
    output_bytes: int = 0
    held_until_ms: int = 0
    retry_after_ms: int = 0  # asked for by what ran; 0: it did not say
    detail: str = ""
    name: str = ""
    ledger: str = ""
    note: Note | None = None
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    row: int = NO_ROW
    number: int = 1  # among the parts of its attempt


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One ended attempt, one range of skipped instants, or one amendment; or an open launch, where
    it is read like these.

    Times end in `_s` (epoch seconds, UTC) or `_ms` (epoch milliseconds, UTC); 0 is "never".
    `begun_index`, `launched_index`, `ended_index` are the log indexes of the two log points and of
    the end; 0 where there was none. `begun_at_ms` and `launched_at_ms` are the leader's times in
    those entries, `started_ms` and `finished_ms` the executor's. `local_min` is the nominal local
    time in minutes since 1970-01-01T00:00 of that wall clock, -1 where there is none.

    `ended_index` and `number` are the key of a row: no other row of the cell has both. `amends` is
    the key of the row that an amendment is about, None where that is not known. `cpu_ms` and
    `memory_peak_bytes` are what the control group of a command measured, 0 where there was none.
    `row` is the number of an attempt without parts among what its entry began on its executor. Only
    State and commands have it, for late reports of the attempt; it is not in history. Nor is
    `tries`: of a dead letter, which is the row of its last attempt without its parts, how many
    attempts failed.
    """

    kind: RowKind
    job: str
    revision: int
    scheduled_s: int
    trigger: int
    attempt: int  # 0: it was never begun
    state: LaunchState
    reason: Reason
    ended_index: int
    ended_at_ms: int
    last_s: int = 0  # of a task that ended before its time: when it ended, by which it is listed
    count: int = 1
    local_min: int = -1
    begun_index: int = 0
    begun_at_ms: int = 0
    epoch: Epoch = Epoch()
    executor: str = ""
    ledger: str = ""
    launched_index: int = 0
    launched_at_ms: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int = -1  # -1: none is known
    by: str = ""  # who triggered, reopened or cancelled it
    detail: str = ""
    due_at_ms: int = 0  # of a manual trigger: when it was asked for; its lateness counts from there
    output_bytes: int = 0  # what its executor kept of its output when it ended; 0: none is known
    parts: tuple[Part, ...] = ()  # where it ran in several; `output_bytes` is of the first
    note: Note | None = None
    number: int = -1  # among the rows of its entry, from 0; -1: it has none yet
    amends: tuple[int, int] | None = None
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    is_redriven: bool = False  # `by` redrove its dead letter
    row: int = NO_ROW
    tries: int = 0

    @property
    def key(self) -> tuple[int, int] | None:
        """What an amendment names it by, None where it is not in history."""
        return (self.ended_index, self.number) if self.number >= 0 else None

    def places(self) -> list[Place]:
        """Return where its parts were begun, in their order, or where it was begun as a whole."""
        if not self.parts:
            return [(self.begun_index, self.executor, self.ledger, self.row)]
        return [(self.begun_index, part.name, part.ledger, part.row) for part in self.parts]


_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Column = _Int | bytes
"""An integer for each row of a chunk: one that counts for all rows, or of each row 8 bytes, signed,
the lowest byte first."""
_WIDTH: Final = 8
_INT_MAX: Final = 2**63 - 1


def column(values: Sequence[int]) -> Column:
    """Return integers, one at least, as a column; of those that 64 bits do not hold the nearest,
    since applying must not fail for what an executor says.

    Equal integers always give equal columns, and an array of type `q` is the cheapest.
    """
    try:
        items = array("q", values)
    except OverflowError:
        items = array("q", [min(max(one, -_INT_MAX - 1), _INT_MAX) for one in values])
    first = items[0]
    if sys.byteorder == "big":
        items.byteswap()
    raw = items.tobytes()
    return first if raw == raw[:_WIDTH] * len(items) else raw


def at(one: Column, number: int) -> int:
    """Return the integer of a row, by its number from 0."""
    if isinstance(one, int):
        return one
    begin = _WIDTH * number
    return int.from_bytes(one[begin : begin + _WIDTH], "little", signed=True)


def values(one: Column, rows: int) -> array[int]:
    """Return the integers of a column of so many rows.

    Raises:
        ValueError: its bytes are not of so many.
    """
    if isinstance(one, int):
        return array("q", (one,)) * rows
    if len(one) != _WIDTH * rows:
        raise ValueError(f"a column of {rows} rows has {len(one)} bytes")
    items = array("q")
    items.frombytes(one)
    if sys.byteorder == "big":
        items.byteswap()
    return items


CHUNK: Final = 3
"""What marks a chunk where a row has its kind."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=CHUNK, gc=False):
    """Rows of one entry that say the same of several jobs, in columns; fields as in Row.

    They are attempts of one batch that ended alike, and `count` is 0; or each row is a run of
    `count` skipped instants up to `last_s`, the same for all of its jobs. Row i is what `row(i)`
    returns, with `number + i` as its number in the entry, and with nothing in the fields that a
    chunk does not have. `number` -1: it has none yet.
    """

    state: LaunchState
    reason: Reason
    exit_code: _Int
    ended_index: _Int
    ended_at_ms: _Int
    begun_index: _Int
    begun_at_ms: _Int
    epoch: Epoch
    executor: str
    ledger: str
    jobs: str  # the names of one at least, with line feeds between
    revisions: Column
    scheduled_s: Column
    triggers: Column = 0
    attempts: Column = 1
    local_mins: Column = -1
    launched_index: Column = 0
    launched_at_ms: Column = 0
    started_ms: Column = 0
    finished_ms: Column = 0
    output_bytes: Column = 0
    number: _Int = -1
    note: Note | None = None
    count: _Natural = 0
    last_s: _Int = 0
    cpu_ms: Column = 0
    memory_peak_bytes: Column = 0

    @classmethod
    def skipped(cls, like: Row, jobs: Iterable[str], revisions: Sequence[int]) -> Chunk:
        """Return the rows of jobs that are skipped like `like`, a row of one of them."""
        return cls(
            like.state,
            like.reason,
            like.exit_code,
            like.ended_index,
            like.ended_at_ms,
            0,  # begun_index
            0,  # begun_at_ms
            like.epoch,
            "",  # executor
            "",  # ledger
            "\n".join(jobs),
            column(revisions),
            like.scheduled_s,
            attempts=0,
            local_mins=like.local_min,
            number=like.number,
            note=like.note,
            count=like.count,
            last_s=like.last_s,
        )

    def __len__(self) -> int:
        """Return how many rows it has."""
        return self.jobs.count("\n") + 1

    def is_sound(self) -> bool:
        """Whether each of its columns is as `column` makes them, of as many rows as it has, and
        skipped instants are said as `skipped` says them."""
        rows = len(self)
        columns = [getattr(self, name) for name in COLUMNS]
        if not all(
            isinstance(one, int) or (len(one) == _WIDTH * rows and one != one[:_WIDTH] * rows)
            for one in columns
        ):
            return False
        if not self.count:
            return True
        like, revisions = self.row(0, self.jobs), values(self.revisions, rows)
        return self == self.skipped(like, [self.jobs], revisions)

    def names(self) -> list[str]:
        """Return the job of each row."""
        return self.jobs.split("\n")

    def rows(self) -> list[Row]:
        """Return all of its rows."""
        return [self.row(i, job) for i, job in enumerate(self.names())]

    def row(self, i: int, job: str = "") -> Row:
        """Return a row, from 0; it costs less if its job is given."""
        values = [at(getattr(self, one), i) for one in COLUMNS]
        revision, scheduled_s, trigger, attempt, local_min, *others = values
        launched_index, launched_at_ms, started_ms, finished_ms = others[:4]
        output_bytes, cpu_ms, memory_peak_bytes = others[4:]
        return Row(
            RowKind.RANGE if self.count > 1 else RowKind.ENDED,
            job or self.names()[i],
            revision,
            scheduled_s,
            trigger,
            attempt,
            self.state,
            self.reason,
            self.ended_index,
            self.ended_at_ms,
            self.last_s if self.count else scheduled_s,
            self.count or 1,
            local_min,
            self.begun_index,
            self.begun_at_ms,
            self.epoch,
            self.executor,
            self.ledger,
            launched_index,
            launched_at_ms,
            started_ms,
            finished_ms,
            self.exit_code,
            output_bytes=output_bytes,
            note=self.note,
            number=self.number + i,
            cpu_ms=cpu_ms,
            memory_peak_bytes=memory_peak_bytes,
        )


COLUMNS: Final = (
    "revisions", "scheduled_s", "triggers", "attempts", "local_mins", "launched_index",
    "launched_at_ms", "started_ms", "finished_ms", "output_bytes", "cpu_ms", "memory_peak_bytes",
)  # fmt: skip
"""The columns of a chunk, beside its jobs."""


def rows_of(item: Row | Chunk) -> list[Row]:
    """Return the rows of an item of history."""
    return item.rows() if isinstance(item, Chunk) else [item]
