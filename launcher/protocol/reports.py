"""The messages of executors as values: who they are, what they serve, and reports of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from launcher.protocol.names import AttemptName
from launcher.protocol.status import Reason, Status
from launcher.protocol.work import Epoch


class RowReport(msgspec.Struct, frozen=True, gc=False):
    """What an executor's journal says of one row of a batch.

    `index` is the log index of the batch's Begin. `exit_code` is 128 + signal if a signal ended the
    process. `started_ms` and `finished_ms` are the executor's wall clock in epoch milliseconds, 0
    for never. `detail` is for people. `output_bytes` is the size of the output that the executor
    keeps of an ended row (`Pool.output` reads it). `retry_after_ms` is how long after its end a
    handler wants to be tried again, 0 if it did not say. `cpu_ms` and `memory_peak_bytes` are what
    its control group measured, 0 without one. `is_recorded` is False if the report says that the
    journal has no such row.
    """

    index: int
    row: int
    status: Status
    reason: Reason = Reason.NONE
    exit_code: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    detail: str = ""
    output_bytes: int = 0
    retry_after_ms: int = 0
    cpu_ms: int = 0
    memory_peak_bytes: int = 0
    is_recorded: bool = True

    def as_batch(self) -> BatchReport:
        """Return the report of a batch that has this one row."""
        shared = {name: getattr(self, name) for name in _SHARED}
        columns: dict[str, Any] = {name: [getattr(self, name)] for name in _COLUMNS}
        return BatchReport(rows=[self.row], **shared, **columns)


class BatchReport(msgspec.Struct, frozen=True, gc=False):
    """What an executor's journal says of rows of one batch, in columns; fields as in RowReport.

    `rows` is ascending. Each other column has a value for each row. A column from `output_bytes` on
    may be empty, which means 0 for every row.
    """

    index: int
    status: Status
    reason: Reason
    exit_code: int
    rows: list[int]
    started_ms: list[int]
    finished_ms: list[int]
    output_bytes: list[int] = []
    detail: str = ""
    cpu_ms: list[int] = []
    memory_peak_bytes: list[int] = []
    retry_after_ms: list[int] = []
    is_recorded: bool = True

    def pick(self, places: Iterable[int]) -> BatchReport:
        """Return the report of the rows at these places, which are ascending."""
        places = list(places)
        found = {name: getattr(self, name) for name in ("rows", *_COLUMNS)}
        picked = {name: [one[at] for at in places] for name, one in found.items() if one}
        return msgspec.structs.replace(self, **picked)

    def row_reports(self) -> Iterator[RowReport]:
        """Yield a report for each row."""
        shared = {name: getattr(self, name) for name in _SHARED}
        zeros = [0] * len(self.rows)
        columns = [getattr(self, name) or zeros for name in _COLUMNS]
        for row, *values in zip(self.rows, *columns, strict=True):
            yield RowReport(row=row, **shared, **dict(zip(_COLUMNS, values, strict=True)))


_SHARED: Final = ("index", "status", "reason", "exit_code", "detail", "is_recorded")
_COLUMNS: Final = (
    *("started_ms", "finished_ms", "output_bytes"),
    *("cpu_ms", "memory_peak_bytes", "retry_after_ms"),
)


def lost_rows(index: int, rows: Sequence[int]) -> BatchReport:
    """Return the report that rows are lost because their executor has no record of them."""
    zeros = [0] * len(rows)
    same = (Status.INTERRUPTED, Reason.NONE, 0)
    return BatchReport(index, *same, list(rows), zeros, zeros, is_recorded=False)


class OfferedOutput(msgspec.Struct, frozen=True):
    """An output that an executor has packed for object storage: the object's size and SHA-256."""

    name: AttemptName
    size: int
    sha256: bytes


class GroupOffer(msgspec.Struct, frozen=True):
    """A group of workers of one executor: they share slots and serve the same handlers. The group
    of commands has no name and no handlers.

    `slots` is how many launches run at once, plus those that may wait there.
    """

    group: str
    slots: int
    handlers: tuple[str, ...]


class Greeting(msgspec.Struct, frozen=True):
    """What an executor says of itself in its Hello, validated.

    `known` has all rows of its journal that the leader may still ask about. An executor without
    `can_inventory` cannot send the inventory of its journal, and so never proves that it forgot
    nothing. Launches may use `cpu_milli` and `memory_bytes` there together, 0 for no limit.
    """

    executor: str
    ledger: str
    incarnation: str
    slots: int
    host: str
    pid: int
    version: str
    wall_ms: int
    highest_epoch: Epoch
    labels: dict[str, str]
    known: tuple[BatchReport, ...]
    can_inventory: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0


class InventoryRow(msgspec.Struct, frozen=True):
    """One row of the inventory of an executor's journal, acknowledged or not, with its name.

    A tombstone has the index of the Begin that it forbids. `epoch` is the
    `GENERATION.TERM.REPLICA` that ordered the row, empty if the journal does not have it.
    """

    name: AttemptName
    report: RowReport
    epoch: str
